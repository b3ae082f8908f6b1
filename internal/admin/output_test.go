package admin_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/admin"
	"github.com/nstance-go/nstance/internal/wire"
)

// TestTimesThatAreUnusual: what is shown of times that are no ages, of what is missed and of
// drains without an end.
func TestTimesThatAreUnusual(t *testing.T) {
	t.Parallel()
	w := newWorld(t).populate()
	now := time.Now()
	w.set(func() {
		i := w.instances[string(webB)]
		i.CreatedAt = wire.Time(now.Add(time.Hour)) // this machine's clock is behind
		i.Drain.StartedAt, i.Drain.Deadline = wire.Time(now), wire.Time(now.Add(nstance.UnlimitedDrain))
		w.reclaims = []*apiv1.Interruption{{
			EventId: "e1", Tenant: "default", Group: "web", Instance: string(webB), InstanceType: "m5.large", Zone: "a", Market: "spot",
			Notice: &apiv1.Notice{Kind: "reclaim", Deadline: wire.Time(now)}, DetectedAt: wire.Time(now.Add(-time.Minute)),
			DrainedAt: wire.Time(now.Add(1500 * time.Millisecond)), DrainOutcome: "drained",
		}}
		w.status = func(s *apiv1.GetShardStatusResponse) {
			s.Frozen, s.FrozenAt = "audit", wire.Time(now.Add(-time.Hour))
			s.Attention[0].Until, s.Attention[0].Kind = wire.Time(now.Add(time.Hour)), "backoff"
		}
	})
	for _, c := range []struct{ args, shows string }{
		{"instance list", string(webB) + `.* 0s +notice:reclaim,drifted\n`},
		{"instance get " + string(webB), "generation 1 until it is empty by the agent"},
		{"top", "until empty agent"},
		{"interruption show e1", `Time left: +none, the deadline was missed by 1\.5s\n`},
		{"interruption show e1", `Pool: +m5\.large, a, spot\n`},
		{"status", `Frozen: +20\S+, 60m ago, audit\n`},
		{"status", `it is wrong \(until ` + now.Add(time.Hour).UTC().Format("2006-01-02T15:04:05")},
	} {
		t.Run(c.args, func(t *testing.T) { require.Regexp(t, c.shows, w.run(strings.Fields(c.args)...).out) })
	}
	t.Run("top of another tenant", func(t *testing.T) { require.NotContains(t, w.run("top", "--tenant", "blue").out, "WAVE") })
}

// TestFactorThatFitsFirst: the first one counts, and the others do not.
func TestFactorThatFitsFirst(t *testing.T) {
	t.Parallel()
	for _, flag := range []string{"--factor", "--price"} {
		c := decoded[admin.Cost](t, newWorld(t).populate().run("cost", "-o", "json", flag, "c*=9", flag, "m5.large=0.5", flag, "m5.*=0.25", flag, "*=0.125"))
		require.InDelta(t, map[string]float64{"--factor": 3, "--price": 6 + 40*0.5}[flag], c.Pools[1].Cost, 1e-9, flag)
	}
}

// TestEverythingAboutAnInstance: what the server knows of one is shown, and what it could not read
// is said.
func TestEverythingAboutAnInstance(t *testing.T) {
	t.Parallel()
	w := newWorld(t).populate()
	at := wire.Time(time.Date(2026, 10, 1, 0, 0, 0, 0, time.UTC))
	w.set(func() {
		i := w.instances[string(webA)]
		i.OnDemand, i.MarketAsked, i.RuntimeHash, i.Conditions = true, "on-demand", "v1:00", []string{"runtime_drifted"}
		i.Drift = []*apiv1.FieldChange{{Path: "instance_types", Before: "a", After: "b", Effect: "replace"}}
		i.LastReport.Files = []*apiv1.FileStatus{{Path: "tls/key", Digest: "sha256:1"}, {Path: "app.env", Error: "no variable x"}, {Path: "gone"}}
		i.LastReport.FilesError, i.LastReport.MetadataError = "disk is full", proto.String("port is taken")
		w.life = &apiv1.Life{ReadyAt: at, Replaces: string(gone), Outcome: "replaced", Interruptions: []*apiv1.Interruption{{EventId: "e7", DetectedAt: at, Notice: &apiv1.Notice{Kind: "reclaim", Source: "aws/spot"}}}}
		w.unread = []string{"ledger/eu1a/x: line 3"}
	})
	r := w.run("instance", "get", string(webA))
	require.Zero(t, r.code, r.errors)
	require.Contains(t, r.errors, "warning: what the ledger holds here is missing: ledger/eu1a/x: line 3")
	for _, line := range []string{
		`Group: +default/web, on demand, beside its size`, `Market: +spot, asked for on-demand`, `Runtime hash: +v1:00, differs from its group's`,
		`Differs: +instance_types: "a", its group desires "b" \(replace\)`, `Metadata service: +port is taken`, `Files: +disk is full`, `File tls/key: +sha256:1`,
		`File app.env: +no variable x`, `File gone: +missing`, `Ready: +2026-10-01T00:00:00.000Z`, `Replaces: +` + string(gone), `Outcome: +replaced`,
		`Interruption: +e7 reclaim from aws/spot at 2026-10-01T00:00:00.000Z, drain none, or under way`,
	} {
		t.Run(line, func(t *testing.T) { require.Regexp(t, "(?m)^"+line+"$", r.out) })
	}
	require.Contains(t, w.run("interruption", "rates").errors, "ledger/eu1a/x: line 3")
}

// TestIdentityOfTheUser: without a name it is in the user's configuration.
func TestIdentityOfTheUser(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("HOME", dir)
	t.Setenv("XDG_CONFIG_HOME", "")
	base, err := os.UserConfigDir()
	require.NoError(t, err)
	r := run(t, strings.NewReader(""), nil, "status")
	require.Equal(t, 4, r.code)
	require.Contains(t, r.errors, "not logged in: "+filepath.Join(base, "nstance")+" holds no identity")
}

// TestEverythingAboutAGroup: what a group is made from and how it stands.
func TestEverythingAboutAGroup(t *testing.T) {
	t.Parallel()
	w := newWorld(t).populate()
	w.web(func(g *apiv1.Group) {
		g.Owner, g.Protect, g.HasOverlay, g.SpotMarket, g.OnDemandMarket, g.FailedReturns = "uid-1", true, true, 2, 1, 3
		g.Market = &apiv1.Market{
			Type: "spot", MaxPrice: "0.05", Fallback: "on-demand", FallbackAfter: durationpb.New(5 * time.Minute), ReturnAfter: durationpb.New(time.Hour), OnDemandBase: "20%",
			FallbackWhen: &apiv1.ReclaimLimit{Reclaims: 3, Window: durationpb.New(2 * time.Hour)},
		}
		g.Spread, g.Rollout = &apiv1.Spread{By: "zone", MaxShare: "34%"}, &apiv1.Rollout{MaxSurge: "1", MinReady: durationpb.New(time.Minute), HaltAfter: proto.Int32(2)}
		g.WarmPool, g.Standby, g.Parked, g.Claims = &apiv1.WarmPool{Size: 2, Mode: "stopped"}, 2, 1, []*apiv1.StandbyClaim{{}, {}}
	})
	out := w.run("group", "get", "web").out
	for _, line := range []string{
		`Owner: +uid-1`, `Source: +config, changed, protected`, `Members by market: +2 spot, 1 on-demand \(3 attempts failed\)`, `Spread: +at most 34% in one zone`,
		`Market: +spot, at most 0.05 an hour, on-demand while it is sold out for 5m0s, or was reclaimed 3 times within 2h0m0s, back to spot after 1h0m0s, 20% on-demand in any case`,
		`Rollout: +max surge 1, min ready 1m0s, halt after 2`, `Warm pool: +2 stopped; there are 2, of which 1 asleep, 2 claims`,
	} {
		t.Run(line, func(t *testing.T) { require.Regexp(t, "(?m)^"+line+"$", out) })
	}
}
