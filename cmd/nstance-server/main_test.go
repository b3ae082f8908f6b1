//go:build linux

package main_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	_ "github.com/nstance-go/nstance/internal/servercmd" // so that go test knows what the program is made of, and does not repeat an old result
)

func TestEndToEnd(t *testing.T) {
	bin := build(t)
	t.Run("interrupt", func(t *testing.T) { interrupt(t, bin) })
	t.Run("mass", func(t *testing.T) {
		events, s := play(t, bin, "mass", "--count", "5")
		require.Equal(t, 5, s.Count)
		require.Zero(t, *s.Lost)
		require.Equal(t, 5, count(events, nstance.EventReplacementRequested))
		require.Equal(t, 10, count(events, nstance.EventReady))
		require.Equal(t, 5, count(events, nstance.EventDeleted))
	})
	t.Run("crash", func(t *testing.T) {
		events, s := play(t, bin, "crash")
		require.Zero(t, count(events, nstance.EventDrainStarted))
		require.Equal(t, 1, count(events, nstance.EventMachineGone))
		require.Equal(t, 1, count(events, nstance.EventReplacementRequested))
		require.Nil(t, s.Drained)
		require.NotNil(t, s.Ready)
	})
	t.Run("rollout", func(t *testing.T) {
		events, s := play(t, bin, "rollout", "--instances", "2")
		require.Equal(t, 2, s.Count)
		require.Equal(t, 2, count(events, nstance.EventDrainAcknowledged))
		require.Equal(t, 4, count(events, nstance.EventReady))
		require.Equal(t, 2, count(events, nstance.EventDeleted))
	})
	t.Run("failover", func(t *testing.T) {
		events, s := play(t, bin, "failover", "--election-ttl", "3s")
		for _, n := range []*int{s.Leaked, s.Duplicated, s.Lost} {
			require.NotNil(t, n)
			require.Zero(t, *n)
		}
		require.Positive(t, *s.Failover)
		require.Equal(t, 1, count(events, nstance.EventDrainAcknowledged))
		require.Equal(t, 1, count(events, nstance.EventDeleted))
	})
	t.Run("clouds", func(t *testing.T) { onClouds(t, bin) })
	t.Run("interactive", func(t *testing.T) { interactive(t, bin) })
	t.Run("killed, it leaves no machine", func(t *testing.T) { killed(t, bin) })
	t.Run("killed, it leaves no server", func(t *testing.T) { killedPair(t, bin) })
	t.Run("refusals", func(t *testing.T) { refusals(t, bin) })
	t.Run("validate", func(t *testing.T) { validate(t, bin) })
	t.Run("run", func(t *testing.T) { runs(t, bin) })
	t.Run("run, as the documents say", func(t *testing.T) { documented(t, bin) })
}

func refusals(t *testing.T, bin string) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for _, tt := range []struct {
		name string
		code int
		says string
		args []string
	}{
		{"unknown scenario", 2, "use interrupt, mass, crash, rollout", []string{"dev", "--scenario", "storm"}},
		{"data that cannot be written", 2, "name a directory that you may write to", []string{"dev", "--data", file}},
		{"count without mass", 2, "--count", []string{"dev", "--count", "7"}},
		{"instances with mass", 2, "--instances", []string{"dev", "--scenario", "mass", "--instances", "7"}},
		{"no machines", 2, "--instances", []string{"dev", "--instances", "0"}},
		{"a term without failover", 2, "--election-ttl", []string{"dev", "--election-ttl", "3s"}},
		{"unknown level", 2, "use debug, info, warn or error", []string{"dev", "--log-level", "loud"}},
		{"unknown format of the log", 2, "use text or json", []string{"dev", "--log-format", "xml"}},
		{"unknown flag", 2, "--help", []string{"dev", "--loud"}},
		{"unknown command", 2, "--help", []string{"serve"}},
		{"unknown provider", 2, `did you mean "aws"?`, []string{"dev", "--provider", "asw"}},
		{"another metadata service than the cloud's", 2, "--metadata", []string{"dev", "--provider", "aws", "--metadata", "gcp"}},
		{"kills where whole nodes are taken back", 2, "use failover", []string{"dev", "--provider", "proxmox", "--scenario", "kill"}},
		{"not started by a cloud", 2, "NSTANCE_LOCAL_DIR", []string{"machine"}},
		{"run without a key", 2, "NSTANCE_SECRET_KEY", []string{"run", "--shard", "a"}},
		{"run without a shard", 2, "--shard", []string{"run", "--key-provider", "none", "--storage", "mem://"}},
		{"run with an unknown key provider", 2, "env, file or none", []string{"run", "--shard", "a", "--key-provider", "vault"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			code, out, errs := call(t, bin, tt.args...)
			require.Equal(t, tt.code, code, errs)
			require.Empty(t, out)
			require.Contains(t, errs, tt.says)
			require.Equal(t, 1, strings.Count(errs, "nstance-server: "), "said once: %s", errs)
		})
	}
}
