//go:build linux && servers

package dev_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/clouds/store"
	"github.com/nstance-go/nstance/integration/realserver"
	"github.com/nstance-go/nstance/internal/dev"
	"github.com/nstance-go/nstance/internal/servercmd"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/local"
)

// TestMain makes this program nstance-server too: the machines and the servers of these
// tests are copies of it.
func TestMain(m *testing.M) {
	if len(os.Args) < 2 || !slices.Contains([]string{"machine", "drain-demo", "run"}, os.Args[1]) {
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	parts := servercmd.Parts{Kinds: provider.Kinds{local.Kind(servercmd.Machine()...)}, Storage: store.Open}
	code := servercmd.Main(ctx, parts, os.Args[1:], os.Stdout, os.Stderr, os.Getenv)
	stop()
	os.Exit(code)
}

// output is what a scenario prints.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// summary returns the last line.
func (o *output) summary(t *testing.T) dev.Summary {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(o.String()), "\n")
	var s dev.Summary
	require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &s), o)
	return s
}

// Two real servers with nothing in common but an S3 server.
func TestServers(t *testing.T) {
	s3 := realserver.NewS3(t)
	for _, o := range []dev.Options{
		{Scenario: dev.Failover, ElectionTTL: 3 * time.Second},
		{Scenario: dev.Kill, Count: 6, Seed: 3},
	} {
		t.Run(o.Scenario, func(t *testing.T) {
			var out output
			o.Open, o.Storage = store.Open, realserver.URL(s3.Bucket(t), s3.Endpoint)
			o.JSON, o.Out, o.HTTP = true, &out, "127.0.0.1:0"
			require.NoError(t, dev.Run(t.Context(), &o), &out)
			s := out.summary(t)
			require.True(t, s.OK, &out)
			for name, n := range map[string]*int{"lost": s.Lost, "leaked": s.Leaked, "duplicated": s.Duplicated} {
				require.NotNil(t, n, name)
				require.Zero(t, *n, name)
			}
			opened, err := store.Open(t.Context(), o.Storage)
			require.NoError(t, err)
			for e, err := range opened.List(t.Context(), "", "") {
				require.NoError(t, err)
				require.Fail(t, "an object stays behind", e.Key)
			}
		})
	}
}
