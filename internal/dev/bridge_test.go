//go:build linux

package dev_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/dev"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/pki"
)

func TestBridge(t *testing.T) {
	t.Parallel()
	tmp := t.TempDir()
	var out screen
	err := dev.Run(t.Context(), &dev.Options{Temp: tmp, Scenario: dev.Bridge, Instances: 2, Count: 2, JSON: true, Out: &out, HTTP: "127.0.0.1:0"})
	require.NoError(t, err, out.String())
	s := lastLine(t, out.String())
	nothingLost(t, s)
	require.Len(t, s.Bridge, 1)
	r := s.Bridge[0]
	require.Positive(t, r.WithPool.CapacityBackMS)
	require.Positive(t, r.WithoutPool.CapacityBackMS)
	require.GreaterOrEqual(t, r.ProviderWakeMS, r.WakeMS)
	require.GreaterOrEqual(t, r.ParkedAgainMS, r.WithPool.CapacityBackMS)
	left, err := os.ReadDir(tmp)
	require.NoError(t, err)
	require.Empty(t, left, "a temporary directory stays behind")
}

func TestBridgeThatDoesNotWake(t *testing.T) {
	t.Parallel()
	var out screen
	o := dev.Options{Scenario: dev.Bridge, Instances: 1, JSON: true, Out: &out, HTTP: "127.0.0.1:0", Machine: []string{"/bin/sh", "-c", `
		[ -e booted ] && exec sleep 60
		touch booted
		exec "$0" machine`, os.Args[0]}}
	err := dev.Run(t.Context(), dev.Impatient(o, "bridge_ready", 12*time.Second))
	var f *dev.Failure
	require.ErrorAs(t, err, &f)
	require.Equal(t, "bridge_ready", f.Stage)
	require.ErrorContains(t, err, "no event ready for bridge web")
	require.False(t, lastLine(t, out.String()).OK)
}

// A sleeper reads the events of a scenario with a hibernated pool while it is played.
type sleeper struct {
	*testing.T
	data string
	out  screen
}

// events returns the events of a type so far.
func (s *sleeper) events(eventType nstance.EventType) (all []nstance.Event) {
	for line := range strings.SplitSeq(s.out.String(), "\n") {
		var e nstance.Event
		if json.Unmarshal([]byte(line), &e) == nil && e.Type == eventType {
			all = append(all, e)
		}
	}
	return all
}

// await returns the nth event of a type about an instance of a group.
func (s *sleeper) await(n int, want nstance.Event) (found nstance.Event) {
	s.Helper()
	require.Eventually(s, func() bool {
		seen := 0
		for _, e := range s.events(want.Type) {
			if (want.Instance == "" || e.Instance == want.Instance) && (want.Group == "" || e.Group == want.Group) {
				if seen++; seen == n {
					found = e
					return true
				}
			}
		}
		return false
	}, time.Minute, 10*time.Millisecond, "%s of %s%s", want.Type, want.Instance, want.Group)
	return found
}

// file returns the content of a file of a machine.
func (s *sleeper) file(id nstance.InstanceID, path string) []byte {
	s.Helper()
	found, err := filepath.Glob(filepath.Join(s.data, "machines", "*", string(id), path))
	require.NoError(s, err)
	require.Len(s, found, 1, path)
	content, err := os.ReadFile(found[0])
	require.NoError(s, err)
	return content
}

// open begins a session with an identity, and returns why it ended.
func (s *sleeper) open(addr string, cert tls.Certificate, roots []byte) error {
	pool := x509.NewCertPool()
	require.True(s, pool.AppendCertsFromPEM(roots))
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(credentials.NewTLS(pki.ClientTLS(pool, &cert, "local", "dev"))))
	require.NoError(s, err)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
	defer cancel()
	stream, err := apiv1.NewAgentServiceClient(conn).Connect(ctx)
	for err == nil {
		_, err = stream.Recv()
	}
	return err
}

// TestHibernatedAgent: an agent that was suspended with its machine reconnects when that
// wakes and renews its certificate, and the one it slept with is refused. Another one, which
// is suspended without its server knowing, finds out by the clock.
func TestHibernatedAgent(t *testing.T) {
	t.Parallel()
	s := &sleeper{T: t, data: t.TempDir()}
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		ended <- dev.Run(ctx, &dev.Options{
			Scenario: dev.Bridge, Instances: 2, Park: nstance.ParkHibernated, Protocol: "gcp", JSON: true, Out: &s.out, HTTP: "127.0.0.1:0", Data: s.data,
		})
	}()
	defer func() {
		cancel()
		require.Error(t, <-ended, "it was not played to its end")
	}()

	bridge := s.await(1, nstance.Event{Type: nstance.EventParked}).Instance
	key := s.file(bridge, "identity/key.pem")
	old, err := tls.X509KeyPair(s.file(bridge, "identity/cert.pem"), key)
	require.NoError(t, err)
	roots := s.file(bridge, "identity/ca.pem")
	addr := regexp.MustCompile(`msg=connected .*addr=(\S+)`).FindSubmatch(s.file(bridge, "agent.log"))

	s.await(2, nstance.Event{Type: nstance.EventReady, Group: "plain"})
	var other nstance.InstanceID // not the one that is reclaimed
	for _, e := range s.events(nstance.EventReady) {
		if e.Group == "plain" {
			other = e.Instance
		}
	}
	pid, err := strconv.Atoi(string(s.file(other, "machine.pid")))
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	stopped := time.Now()

	s.await(2, nstance.Event{Type: nstance.EventReady, Instance: bridge})
	renewed, err := tls.X509KeyPair(s.file(bridge, "identity/cert.pem"), s.file(bridge, "identity/key.pem"))
	require.NoError(t, err)
	require.NotEqual(t, old.Leaf.SerialNumber, renewed.Leaf.SerialNumber)
	require.Contains(t, string(s.file(bridge, "agent.log")), `msg="certificate renewed"`)

	require.Equal(t, codes.PermissionDenied, status.Code(s.open(string(addr[1]), old, roots)), "the certificate that it slept with is no more")
	s.await(1, nstance.Event{Type: eventtype.RemovalRequested, Instance: bridge}) // there may be a copy of the key

	require.Eventually(t, func() bool { return time.Since(stopped) > 6*time.Second }, time.Minute, 50*time.Millisecond)
	require.NoError(t, syscall.Kill(pid, syscall.SIGCONT))
	require.Eventually(t, func() bool {
		return strings.Contains(string(s.file(other, "agent.log")), "the machine was asleep, reconnecting")
	}, time.Minute, 10*time.Millisecond)
}
