// Package realserver runs, for tests, the storage servers that `make servers`
// builds. A server that is missing is a failure, never a reason to pass.
package realserver

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/test/freeport"
)

// Begin runs a server from $NSTANCE_TEST_SERVERS on a free port until the test
// ends, and returns its host and port.
func Begin(t testing.TB, name string, args func(host, port string) []string) string {
	t.Helper()
	dir := os.Getenv("NSTANCE_TEST_SERVERS")
	require.NotEmpty(t, dir, "NSTANCE_TEST_SERVERS must name the folder with the servers: run it through make")
	path := filepath.Join(dir, name)
	require.FileExists(t, path, "make builds it")
	addr, err := freeport.Address()
	require.NoError(t, err)
	host, port, _ := net.SplitHostPort(addr)
	ctx, stop := context.WithCancel(context.Background()) // t.Context would end it before the tests' clean-up
	cmd := exec.CommandContext(ctx, path, args(host, port)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.Dir = &out, &out, t.TempDir()
	require.NoError(t, cmd.Start())
	died := make(chan struct{})
	go func() { defer close(died); _ = cmd.Wait() }()
	t.Cleanup(func() {
		stop()
		<-died
		if t.Failed() {
			t.Logf("%s said at the end: %s", name, out.Bytes()[max(0, out.Len()-2000):])
		}
	})
	require.Eventually(t, func() bool {
		conn, err := net.DialTimeout("tcp", addr, time.Second)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	}, time.Minute, 20*time.Millisecond, "%s does not listen", name)
	return addr
}

// An S3 is a running versitygw: S3 over a folder.
type S3 struct {
	Endpoint string // its URL
	client   *s3.Client
	buckets  atomic.Int32
}

// NewS3 starts an S3 server for as long as the test lasts, and gives the test's
// environment, which processes inherit, its credentials and no others.
func NewS3(t testing.TB) *S3 {
	t.Helper()
	data := onDisk(t)
	addr := Begin(t, "versitygw", func(host, port string) []string {
		return []string{"--port", host + ":" + port, "--access", "key", "--secret", "secret", "--quiet", "posix", data}
	})
	for k, v := range map[string]string{
		"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_EC2_METADATA_DISABLED": "true",
		"AWS_CONFIG_FILE": os.DevNull, "AWS_SHARED_CREDENTIALS_FILE": os.DevNull,
	} {
		t.Setenv(k, v)
	}
	endpoint := "http://" + addr
	return &S3{Endpoint: endpoint, client: s3.New(s3.Options{
		Region: "us-east-1", BaseEndpoint: aws.String(endpoint), UsePathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider("key", "secret", ""),
	})}
}

// onDisk returns a folder beside the servers. In memory versitygw's listings may lack objects that
// are replaced meanwhile: Linux's tmpfs moves the entry of a file that another is renamed over.
func onDisk(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp(os.Getenv("NSTANCE_TEST_SERVERS"), "data-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

// Bucket makes an empty bucket and returns its name.
func (s *S3) Bucket(t testing.TB) string {
	t.Helper()
	name := fmt.Sprintf("nstance-%d", s.buckets.Add(1))
	_, err := s.client.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: &name})
	require.NoError(t, err)
	return name
}

// URL names a bucket at an endpoint, as clouds/store reads it.
func URL(bucket, endpoint string) string {
	return "s3://" + bucket + "?use_path_style=true&endpoint=" + url.QueryEscape(endpoint)
}
