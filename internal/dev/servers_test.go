//go:build linux && servers

package dev_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/dev"
	"github.com/nstance-go/nstance/internal/test/realserver"
	"github.com/nstance-go/nstance/storage/blob"
)

// Two real servers with nothing in common but an S3 server.
func TestServers(t *testing.T) {
	s3 := realserver.NewS3(t)
	for _, o := range []dev.Options{
		{Scenario: dev.Failover, ElectionTTL: 3 * time.Second},
		{Scenario: dev.Kill, Count: 6, Seed: 3},
	} {
		t.Run(o.Scenario, func(t *testing.T) {
			var out screen
			o.Open, o.Storage = blob.Open, realserver.URL(s3.Bucket(t), s3.Endpoint)
			o.JSON, o.Out, o.HTTP = true, &out, "127.0.0.1:0"
			require.NoError(t, dev.Run(t.Context(), &o), &out)
			nothingLost(t, lastLine(t, out.String()))
			store, err := blob.Open(t.Context(), o.Storage)
			require.NoError(t, err)
			for e, err := range store.List(t.Context(), "", "") {
				require.NoError(t, err)
				require.Fail(t, "an object stays behind", e.Key)
			}
		})
	}
}
