//go:build servers

package server_test

import (
	"testing"
	"time"

	"github.com/nstance-go/nstance/internal/test/realserver"
)

// The same as TestDamagedStorage, over a real S3 server and for longer.
func TestDamagedServers(t *testing.T) {
	s3 := realserver.NewS3(t)
	liveThrough(t, 2, s3.Bucket(t), s3.Endpoint, 30*time.Second)
}
