package store_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/clouds/store"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

func TestOpen(t *testing.T) {
	t.Setenv("STORAGE_EMULATOR_HOST", "127.0.0.1:1")
	t.Setenv("AZURE_STORAGE_ACCOUNT", "account")
	t.Setenv("AZURE_STORAGE_KEY", "a2V5")
	for _, u := range []string{"mem://", "file://" + t.TempDir(), "s3://bucket?region=eu-west-1", "gs://bucket?prefix=a", "azblob://container"} {
		t.Run(u[:3], func(t *testing.T) {
			s, err := store.Open(t.Context(), u)
			require.NoError(t, err)
			require.NotNil(t, s)
		})
	}
	for name, u := range map[string]string{
		"another scheme": "ftp://user:topsecret@host", "no scheme": "topsecret", "not a URL": "s3://topsecret%zz", "nothing": "",
		"gs with a parameter": "gs://bucket?key=topsecret", "azblob without container": "azblob://",
	} {
		t.Run("refuses "+name, func(t *testing.T) {
			_, err := store.Open(t.Context(), u)
			require.ErrorIs(t, err, nstance.Invalid)
			require.ErrorContains(t, err, "storage.url")
			require.NotContains(t, err.Error(), "topsecret")
		})
	}
}

func TestOpenReadOnly(t *testing.T) {
	t.Setenv("STORAGE_EMULATOR_HOST", "127.0.0.1:1")
	dir := t.TempDir()
	_, err := storage.OpenDir(dir, nil)
	require.NoError(t, err)
	for _, u := range []string{"mem://", "file://" + dir, "gs://bucket"} {
		t.Run(u[:3], func(t *testing.T) {
			s, err := store.OpenReadOnly(t.Context(), u)
			require.NoError(t, err)
			_, err = s.PutIfAbsent(t.Context(), "a", nil)
			require.ErrorIs(t, err, nstance.Denied)
		})
	}
	_, err = store.OpenReadOnly(t.Context(), "ftp://host")
	require.ErrorIs(t, err, nstance.Invalid)
}

func TestMemory(t *testing.T) {
	storagetest.Run(t, func(t *testing.T) storage.Store {
		s, err := store.Open(t.Context(), "mem://")
		require.NoError(t, err)
		return s
	})
}

func ExampleOpen() {
	ctx := context.Background()
	opened, err := store.Open(ctx, "mem://")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(storage.Probe(ctx, opened))
	_, err = store.Open(ctx, "s3://bucket?regoin=eu-west-1")
	fmt.Println(err)
	// Output:
	// <nil>
	// storage.url: parameter "regoin" is unknown (use prefix, region, profile, role, dualstack, fips, endpoint, use_path_style, sse, kms_key, bucket_key, checksum, request_payer)
}
