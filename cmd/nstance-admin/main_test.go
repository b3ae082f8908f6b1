package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/clouds/store"
	"github.com/nstance-go/nstance/internal/admin"
	"github.com/nstance-go/nstance/internal/test/repository"
)

// TestBucketByName: the name of a bucket is enough, and the request goes where AWS's
// settings say.
func TestBucketByName(t *testing.T) {
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "eu-west-1", "AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_MAX_ATTEMPTS": "1",
	} {
		t.Setenv(name, value)
	}
	key := map[string]string{"NSTANCE_SECRET_KEY": "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="}
	var out, errs bytes.Buffer
	code := admin.Main(t.Context(), store.Open, []string{"cluster", "nonce", "--storage-bucket", "my-bucket", "--key-provider", "env"},
		strings.NewReader(""), &out, &errs, func(k string) string { return key[k] })
	require.NotEqual(t, 2, code, &errs)
	require.Contains(t, errs.String(), "127.0.0.1:1")
}

// TestSuitesStayOutOfPrograms keeps test suites out of what people ship.
func TestSuitesStayOutOfPrograms(t *testing.T) { repository.RequireNoTesting(t, ".") }
