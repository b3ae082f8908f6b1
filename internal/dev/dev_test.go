//go:build linux

package dev_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/dev"
	"github.com/nstance-go/nstance/internal/servercmd"
	"github.com/nstance-go/nstance/internal/test/freeport"
	"github.com/nstance-go/nstance/internal/test/parallel"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/local"
	"github.com/nstance-go/nstance/provider/qemu"
	"github.com/nstance-go/nstance/storage"
)

// TestMain makes this program nstance-server too: the machines and the servers
// of these tests are copies of it, so that the race detector sees them as well.
func TestMain(m *testing.M) {
	if len(os.Args) < 2 || !slices.Contains([]string{"machine", "drain-demo", "run"}, os.Args[1]) {
		os.Exit(parallel.Run(m))
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	code := servercmd.Main(ctx, servercmd.Parts{Kinds: provider.Kinds{local.Kind(servercmd.Machine()...), qemu.Kind()}, Storage: storage.Open}, os.Args[1:], os.Stdout, os.Stderr, os.Getenv)
	stop()
	os.Exit(code)
}

// screen is an output that a test reads while it is written.
type screen struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *screen) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(b)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func lastLine(t *testing.T, out string) dev.Summary {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(out), "\n")
	var s dev.Summary
	require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &s), out)
	require.Equal(t, "summary", s.Event)
	return s
}

func TestInterruptOnGCP(t *testing.T) {
	t.Parallel()
	tmp := t.TempDir()
	var out screen
	err := dev.Run(t.Context(), &dev.Options{Temp: tmp, Scenario: dev.Interrupt, Instances: 1, Protocol: "gcp", JSON: true, Out: &out, HTTP: "127.0.0.1:0"})
	require.NoError(t, err, out.String())
	s := lastLine(t, out.String())
	require.True(t, s.OK)
	require.Empty(t, s.Stage)
	require.Less(t, *s.DetectedMS, int64(1500), "gcp announces without being polled")
	require.LessOrEqual(t, *s.DetectedMS, *s.DrainedMS)
	require.LessOrEqual(t, *s.DrainedMS, *s.DeletedMS)
	left, err := os.ReadDir(tmp)
	require.NoError(t, err)
	require.Empty(t, left, "a temporary directory stays behind")
}

// TestDemo: four scenes, each explained, in order. The third waits for an attempt after 30 s.
func TestDemo(t *testing.T) {
	t.Parallel()
	var out screen
	err := dev.Run(t.Context(), dev.WithoutPauses(dev.Options{Temp: t.TempDir(), Scenario: dev.Demo, Instances: 2, DrainHook: []string{"/bin/true"}, Out: &out, HTTP: "127.0.0.1:0"}))
	require.NoError(t, err, out.String())
	require.Regexp(t, `(?s)^status page .*--- 1 of 4, reclaim.*notice_published.*--- 2 of 4, wave.*--- 3 of 4, rollout.*config_accepted.*--- 4 of 4, shortage.*notice_published.*hold_started[^\n]*sold out.*has capacity again.*that was all.*scenario demo: ok`, out.String())
}

func TestFailureNamesItsStage(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, stage, why string
		o                dev.Options
	}{
		{"machines that do not come up", "group_ready", "0 of 1 members", dev.Options{Machine: []string{"/bin/sh", "-c", "exec sleep 60"}}},
		{"a drain that fails", "drain_acknowledged", "no event drain_acknowledged for web", dev.Options{DrainHook: []string{"/bin/false"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tmp := t.TempDir()
			var out screen
			tt.o.Scenario, tt.o.Instances, tt.o.JSON, tt.o.Out, tt.o.HTTP, tt.o.Temp = dev.Interrupt, 1, true, &out, "127.0.0.1:0", tmp
			err := dev.Run(t.Context(), dev.Impatient(tt.o, tt.stage, 3*time.Second))
			var f *dev.Failure
			require.ErrorAs(t, err, &f)
			require.Equal(t, dev.Interrupt, f.Scenario)
			require.Equal(t, tt.stage, f.Stage)
			require.ErrorContains(t, err, tt.why)
			s := lastLine(t, out.String())
			require.False(t, s.OK)
			require.Equal(t, tt.stage, s.Stage)
			require.Contains(t, s.Error, tt.why)
			require.Nil(t, s.DeletedMS)
			left, err := os.ReadDir(tmp)
			require.NoError(t, err)
			require.Empty(t, left)
		})
	}
}

func TestWithoutScenario(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	data, ended := t.TempDir(), make(chan error, 1)
	var out screen
	go func() { ended <- dev.Run(ctx, &dev.Options{Instances: 2, Data: data, Out: &out, HTTP: "127.0.0.1:0"}) }()
	require.Eventually(t, func() bool { return strings.Contains(out.String(), "group_ready") }, time.Minute, 20*time.Millisecond)
	require.Contains(t, out.String(), "export NSTANCE_ADMIN_DIR="+data+"/admin")
	require.FileExists(t, data+"/admin/cert.pem")

	t.Run("a directory is used by one at a time", func(t *testing.T) {
		err := dev.Run(t.Context(), &dev.Options{Data: data})
		require.ErrorIs(t, err, nstance.Conflict)
		require.ErrorContains(t, err, data)
	})
	cancel()
	require.NoError(t, <-ended, "a stop by a signal is no failure")

	t.Run("a directory can be used again", func(t *testing.T) {
		var out screen
		err := dev.Run(t.Context(), &dev.Options{Scenario: dev.Interrupt, Instances: 2, Data: data, JSON: true, Out: &out, HTTP: "127.0.0.1:0"})
		require.NoError(t, err, out.String())
		require.True(t, lastLine(t, out.String()).OK)
	})
}

// blocked is a reader that has gone away.
type blocked struct{}

func (blocked) Write([]byte) (int, error) { return 0, syscall.EPIPE }

func TestBrokenOutput(t *testing.T) {
	t.Parallel()
	err := dev.Run(t.Context(), &dev.Options{Scenario: dev.Interrupt, Instances: 1, JSON: true, Out: blocked{}, HTTP: "127.0.0.1:0"})
	require.ErrorIs(t, err, nstance.Unavailable)
	require.ErrorContains(t, err, "broken pipe")
}

func TestInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(context.Canceled)
	for _, scenario := range []string{"", dev.Interrupt} {
		err := dev.Run(ctx, &dev.Options{Scenario: scenario, Data: t.TempDir(), HTTP: "127.0.0.1:0"})
		require.Equal(t, scenario == "", err == nil, "%v", err)
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	sealed := t.TempDir()
	require.NoError(t, os.WriteFile(sealed+"/file", nil, 0o600))
	for _, tt := range []struct {
		name string
		o    dev.Options
		code nstance.Code
		says string
	}{
		{"unknown scenario", dev.Options{Scenario: "storm"}, nstance.Invalid, "interrupt, mass, crash, rollout, failover, kill, bridge"},
		{"too many", dev.Options{Instances: 501}, nstance.Invalid, "instances: "},
		{"fewer than none", dev.Options{Count: -1}, nstance.Invalid, "count: "},
		{"beyond loopback", dev.Options{HTTP: "0.0.0.0:8990"}, nstance.Invalid, "http: "},
		{"no address", dev.Options{HTTP: "8990"}, nstance.Invalid, "http: "},
		{"unknown metadata service", dev.Options{Protocol: "moon"}, nstance.Invalid, "aws, gcp or azure"},
		{"no such program", dev.Options{Machine: []string{"/no/such/program"}}, nstance.Invalid, "/no/such/program"},
		{"a term that is too short", dev.Options{ElectionTTL: time.Millisecond}, nstance.Invalid, "election-ttl: "},
		{"no such server", dev.Options{Scenario: dev.Failover, Server: []string{"/no/such/program"}}, nstance.Invalid, "/no/such/program"},
		{"data is too deep for a socket", dev.Options{Scenario: dev.Failover, Data: sealed + "/" + strings.Repeat("x", 100)}, nstance.Invalid, "endpoint: "},
		{"storage of one process only", dev.Options{Storage: "mem://"}, nstance.Invalid, "several processes"},
		{"unknown storage", dev.Options{Storage: "ftp://bucket"}, nstance.Invalid, "storage.url: "},
		{"data is no directory", dev.Options{Data: sealed + "/file"}, nstance.Invalid, "data: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := dev.Run(t.Context(), &tt.o)
			require.Equal(t, tt.code, nstance.CodeOf(err), "%v", err)
			require.ErrorContains(t, err, tt.says)
		})
	}
}

func TestFree(t *testing.T) {
	l, err := freeport.Listen()
	require.NoError(t, err)
	defer l.Close()
	next, err := dev.Free(t.Context(), l.Addr().String())
	require.NoError(t, err)
	require.NotEqual(t, l.Addr().String(), next)
	require.NoError(t, l.Close())
	same, err := dev.Free(t.Context(), l.Addr().String())
	require.NoError(t, err)
	require.Equal(t, l.Addr().String(), same)
	whichever, err := dev.Free(t.Context(), "127.0.0.1:0")
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:0", whichever)
	for _, wrong := range []string{"127.0.0.1", "127.0.0.1:99999", "127.0.0.1:no-such-port"} {
		_, err := dev.Free(t.Context(), wrong)
		require.ErrorIs(t, err, nstance.Invalid)
	}
}

func TestMachineAlone(t *testing.T) {
	require.ErrorIs(t, dev.Machine(t.Context()), nstance.Invalid)
}

func ExampleRun() {
	err := dev.Run(context.Background(), &dev.Options{Scenario: "flood"})
	fmt.Println(err)
	// Output:
	// scenario: "flood" is not a scenario of this version (use interrupt, mass, crash, rollout, failover, kill, bridge, demo)
}
