package main

import (
	"bytes"
	"context"
	"encoding/json"
	"log"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/grpclog"

	"github.com/nstance-go/nstance/clouds/store"
	"github.com/nstance-go/nstance/internal/admin"
	"github.com/nstance-go/nstance/internal/test/repository"
	"github.com/nstance-go/nstance/storage"
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

// asProgram makes this test binary the program, with storage whose library logs.
const asProgram = "NSTANCE_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) == "" {
		os.Exit(m.Run())
	}
	os.Exit(run(context.Background(), func(context.Context, string) (storage.Store, error) {
		log.Print("a library says so")
		grpclog.Error("and gRPC")
		return storage.NewMemory(), nil
	}))
}

// TestLinesOfLibraries: with JSON, every line on standard error is JSON, those of libraries too.
func TestLinesOfLibraries(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self, "cluster", "status", "--storage", "s3://bucket", "--wait", "0", "-o", "json")
	cmd.Env = append(os.Environ(), asProgram+"=1")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	_ = cmd.Run() // there is no cluster
	for line := range strings.Lines(errs.String()) {
		require.True(t, json.Valid([]byte(line)), line)
	}
	require.Contains(t, errs.String(), `"msg":"a library says so"`)
	require.Contains(t, errs.String(), `"msg":"grpc: and gRPC"`)
}

// TestSuitesStayOutOfPrograms keeps test suites out of what people ship.
func TestSuitesStayOutOfPrograms(t *testing.T) { repository.RequireNoTesting(t, ".") }
