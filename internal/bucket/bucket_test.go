package bucket_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gocloud.dev/blob"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/bucket"
)

// What a Store does is tested through the drivers: aws/s3 with real
// answers and faults, integration/storage against servers.

func TestParseURL(t *testing.T) {
	u, err := bucket.ParseURL("x://box/?prefix=a/b&k=v", "x", "k", "l")
	require.NoError(t, err)
	require.Equal(t, "box", u.Bucket)
	require.Equal(t, "a/b", u.Prefix)
	require.Equal(t, map[string][]string{"k": {"v"}}, map[string][]string(u.Params))
}

func TestPrefix(t *testing.T) {
	for prefix, ok := range map[string]bool{
		"": true, "a": true, "a/": true, "a/b": true, strings.Repeat("a", 200): true,
		"/a": false, "a//": false, "a/../b": false, ".a": false, "a b": false, strings.Repeat("a/", 200): false,
	} {
		none := func(*bucket.Pool) (*blob.Bucket, bucket.Driver, error) { return nil, nil, nil }
		_, err := bucket.New(none, nil, &bucket.Options{Prefix: prefix})
		require.Equal(t, ok, err == nil, "%q", prefix)
		if !ok {
			require.ErrorIs(t, err, nstance.Invalid)
		}
	}
}

func FuzzParseURL(f *testing.F) {
	for _, s := range []string{"x://box", "x://box?prefix=a/b&k=v", "x://u:secretsecret@box/p?k=#f", "x://box?k=%zz", "x:box", "://"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		u, err := bucket.ParseURL(raw, "x", "k")
		if err != nil {
			require.ErrorIs(t, err, nstance.Invalid)
			return
		}
		require.NotEmpty(t, u.Bucket)
		require.NotContains(t, u.Bucket, "/")
		require.NotContains(t, u.Bucket, "@")
		for name, values := range u.Params {
			require.Equal(t, "k", name)
			require.Len(t, values, 1)
			require.NotEmpty(t, values[0])
		}
	})
}

func ExampleParseURL() {
	u, err := bucket.ParseURL("s3://prod?prefix=nstance&region=eu-west-1", "s3", "region")
	fmt.Println(u.Bucket, u.Prefix, u.Params.Get("region"), err)
	_, err = bucket.ParseURL("s3://key:secret@prod", "s3", "region")
	fmt.Println(err)
	// Output:
	// prod nstance eu-west-1 <nil>
	// storage.url: names not just a bucket; a folder goes into prefix (use s3://bucket?prefix=a/b)
}
