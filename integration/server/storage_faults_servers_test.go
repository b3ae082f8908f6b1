//go:build servers

package server_test

import (
	"testing"
	"time"

	"github.com/nstance-go/nstance/integration/realserver"
)

// TestServersStorageFaults is TestStorageFaults with a real S3 server and for longer.
func TestServersStorageFaults(t *testing.T) {
	s3 := realserver.NewS3(t)
	testStorageFaults(t, 2, s3.Bucket(t), s3.Endpoint, 30*time.Second)
}
