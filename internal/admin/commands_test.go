package admin_test

import (
	"cmp"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/admin"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/wire"
)

var update = flag.Bool("update", false, "write the golden files anew")

// times are replaced by one of the same width, so that columns stay in place.
var times = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`)

// seqs begin at the wall clock.
var seqs = regexp.MustCompile(`(seq"?: )"\d+"`)

// golden compares what a run printed with testdata/name.golden.
func (w *world) golden(name, got string) {
	w.t.Helper()
	got = times.ReplaceAllString(strings.ReplaceAll(got, w.operator, "127.0.0.1:8993"), "2026-01-02T03:04:05.000Z")
	got = seqs.ReplaceAllString(got, `${1}"1"`)
	path := filepath.Join("testdata", name+".golden")
	if *update {
		require.NoError(w.t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(w.t, err)
	require.Equal(w.t, string(want), got)
}

// populate gives the world something to show.
func (w *world) populate() *world {
	now := time.Now().UTC()
	w.groups = []*apiv1.Group{
		{Tenant: "blue", Group: "db", Template: "db", Size: 1, Ready: 1, InstanceTypes: []string{"m7i.large"}},
		{
			Tenant: "default", Group: "web", Template: "web", Size: 3, Ready: 1, Booting: 1, Leaving: 1, Stale: 1, IsStatic: true,
			InfraHash: "v1:sha256:00", Vars: map[string]string{"color": "green"},
			Holds: []*apiv1.Hold{{Kind: "budget", Reason: "1 create a second", Since: wire.Time(now.Add(-time.Minute))}},
		},
	}
	w.instances[string(webA)] = &apiv1.Instance{
		Id: string(webA), Tenant: "default", Group: "web", State: "ready", ProviderId: "i-0a1b", NodeProviderId: "aws:///eu-central-1a/i-0a1b", InstanceType: "t4g.small", Market: "spot", Zone: "eu-central-1a",
		Addresses: []string{"10.0.0.1"}, CreatedAt: wire.Time(now.Add(-5*time.Hour - 30*time.Minute)), RegisteredAt: wire.Time(now.Add(-5 * time.Hour)),
		LastReportAt: wire.Time(now.Add(-150 * time.Second)), Connected: true, Reason: "refill", ShapeChoice: "capacity", InfraHash: "v1:sha256:00",
		LastReport: &apiv1.HealthReport{Version: "1.0.0", Software: "0.3.0", CpuUsage: 15.2, MemoryUsage: 45.8, DiskUsage: 20, Load: 0.5, Timestamp: wire.Time(now),
			Probes: []*apiv1.ProbeResult{{Name: "web", Ok: true}, {Name: "disk", Message: "exit status 1: no space"}}},
	}
	w.instances[string(webB)] = &apiv1.Instance{
		Id: string(webB), Tenant: "default", Group: "web", State: "draining", CreatedAt: wire.Time(now.Add(-75 * time.Hour)),
		Conditions: []string{"notice:reclaim", "drifted"}, Drifted: true, Market: "spot",
		Drain: &apiv1.Drain{
			Instance: string(webB), Tenant: "default", Group: "web", Generation: 1, Executor: "agent", StartedAt: wire.Time(now),
			Deadline: wire.Time(now.Add(time.Minute)), Causes: []*apiv1.Cause{{Kind: "notice", EventId: "e1", Message: "reclaim at noon"}},
		},
	}
	w.instances[string(dbA)] = &apiv1.Instance{
		Id: string(dbA), Tenant: "blue", Group: "db", State: "ready", OnDemand: true, CreatedAt: wire.Time(now.Add(-30 * time.Minute)),
	}
	w.instances[string(gone)] = &apiv1.Instance{Id: string(gone), Tenant: "default", Group: "web", State: "deleted"}
	say := func(ago time.Duration, e nstance.Event) {
		e.Time, e.Tenant, e.Group = now.Add(-ago), "default", "web"
		w.event(e)
	}
	say(6*time.Hour, nstance.Event{Type: nstance.EventDeleted, Instance: gone})
	say(5*time.Hour, nstance.Event{Type: nstance.EventReplacementRequested, Instance: webA, Replaces: gone, Reason: "replace"})
	say(4*time.Hour, nstance.Event{Type: nstance.EventReady, Instance: webA, Replaces: gone})
	say(time.Minute, nstance.Event{
		Type: nstance.EventNoticeReceived, Instance: webB,
		Notice: &nstance.Notice{Kind: nstance.Reclaim, Action: "terminate", Deadline: now, Source: "aws/spot", EventID: "e1", DetectedAt: now},
	})
	w.config = &apiv1.GetConfigStatusResponse{
		Digest: "sha256:abc", LoadedAt: wire.Time(now.Add(-3 * time.Hour)), RejectedAt: wire.Time(now.Add(-10 * time.Minute)),
		RejectedError: "groups.default.web.siez: unknown setting",
		HeldDigest:    "0123456789abcdef", HeldAt: wire.Time(now.Add(-5 * time.Minute)),
		HeldReason: "it would remove 30 and replace 0 of 40 members, and shard.max_change permits 10",
	}
	w.orphans = []*apiv1.Orphan{
		{
			Id: string(webNew), Tenant: "default", Group: "web", ProviderId: "i-0c3d", Status: "running", InstanceType: "t4g.small", Market: "spot",
			Addresses: []string{"10.0.0.9"}, CreatedAt: wire.Time(now.Add(-5*time.Hour - 30*time.Minute)), SeenAt: wire.Time(now.Add(-30*time.Minute - 30*time.Second)),
			Spared: "2 machines without a record are more than 1",
		},
		{Id: string(gone), Tenant: "blue", Group: "db", ProviderId: "i-0e5f", Status: "stopped", CreatedAt: wire.Time(now.Add(-75 * time.Hour))},
	}
	w.rates = []*apiv1.InterruptionRate{
		{MachineTime: durationpb.New(90 * time.Minute), Notices: map[string]int32{"maintenance": 1}},
		{
			InstanceType: "m5.large", Zone: "eu-1a", Market: "spot", MachineTime: durationpb.New(240 * time.Hour), Notices: map[string]int32{"reclaim": 3, "rebalance": 12},
			Reclaims: 4, Unwarned: 1, TooLate: 1, ReclaimsPerDay: 0.4, ReclaimsPer_100Hours: 1.6667,
			Cost: 6, PricedTime: durationpb.New(200 * time.Hour), MedianNotice: durationpb.New(118 * time.Second), P10Notice: durationpb.New(0), Drains: 3, DrainsInTime: 2, Recommended: 11, RecommendedReclaimed: 3,
		},
	}
	w.problems = []string{"record instance/eu1a/default/web/x.json cannot be read, its group is held"}
	return w
}

// TestTop: without a terminal it is printed once.
func TestTop(t *testing.T) {
	t.Parallel()
	r := newWorld(t).populate().run("top")
	require.Zero(t, r.code, r.errors)
	require.Contains(t, r.out, "GROUP")
	require.Contains(t, r.out, string(webB))
	require.Contains(t, r.out, "notice:reclaim")
	require.Regexp(t, `WAVE +RECLAIMED[^\n]*\ndefault/web, 60m ago +1 +0 +0 +1 +1:(29|30) +passed 58m ago\n`, r.out)
	require.Equal(t, 2, newWorld(t).run("top", "--interval", "1ms").code)
}

func TestOutput(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"group-list":          {"group", "list"},
		"group-list-tenant":   {"group", "list", "--tenant", "blue"},
		"instance-list":       {"instance", "list"},
		"instance-list-group": {"instance", "list", "--group", "db"},
		"instance-get":        {"instance", "get", string(webA)},
		"instance-get-drain":  {"instance", "get", string(webB)},
		"status":              {"status"},
		"config-status":       {"config", "status"},
		"config-refresh":      {"config", "refresh"},
		"config-confirm":      {"config", "confirm", "0123456789", "--yes"},
		"config-confirm-dry":  {"config", "confirm", "01234567", "--dry-run"},
		"events-type":         {"events", "--type", "ready,deleted", "--since", "24h"},
		"interruption-list":   {"interruption", "list"},
		"interruption-show":   {"interruption", "show", "e1"},
		"cost":                {"cost", "--since", "2026-10-01T00:00:00Z", "--until", "2026-10-11T00:00:00Z", "--factor", "m5.*/spot=0.5", "--price", "m5.large=0.1"},
		"interruption-rates":  {"interruption", "rates", "--since", "2026-10-01T00:00:00Z", "--until", "2026-10-11T00:00:00Z"},
		"warm-pool-estimate": {"warm-pool", "estimate", "--size", "2", "--price", "0.192", "--disk", "40", "--disk-price", "0.0952", "--reclaims", "60",
			"--boot", "4m", "--wake", "25s", "--drain", "5m", "--max-age", "7d", "--notice", "0"},
		"preserve":          {"instance", "preserve", string(webA), "--for", "2h", "--yes"},
		"preserve-end":      {"instance", "preserve", string(webA), "--end", "--yes"},
		"preserve-dry-run":  {"instance", "preserve", string(webA), "--dry-run"},
		"record-show":       {"record", "show", "state/eu1a.json"},
		"record-repair":     {"record", "repair", "state/eu1a.json", "--from", "testdata/shard.jsonc", "--yes"},
		"record-remove-dry": {"record", "repair", "state/eu1a.json", "--remove", "--dry-run"},
		"config-validate":   {"config", "validate", "testdata/shard.jsonc"},
		"events":            {"events"},
		"events-instance":   {"events", "--instance", string(webB)},
		"scale":             {"group", "scale", "web", "5"},
		"delete":            {"instance", "delete", string(webA), "--yes"},
		"drain":             {"instance", "drain", string(webA), "--yes", "--reason", "kernel update"},
		"interrupt":         {"interrupt", string(webA), "--yes"},
		"interrupt-dry-run": {"interrupt", string(webA), "--dry-run"},
		"orphan-list":       {"orphan", "list"},
		"orphan-adopt":      {"orphan", "adopt", string(webNew), "--yes"},
		"orphan-delete":     {"orphan", "delete", string(webNew), string(gone), "--yes"},
		"orphan-dry-run":    {"orphan", "delete", string(webNew), "--dry-run"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).populate() // its own: texts have the ages of what is there
			for _, form := range []string{"table", "json", "yaml"} {
				w.set(func() { w.groups[1].Size = 3 })
				r := w.run(append(args, "-o", form)...)
				require.Zero(t, r.code, r.errors)
				require.Empty(t, r.errors)
				w.golden(name+"."+form, r.out)
			}
		})
	}
}

// YAML and JSON are two spellings of one thing.
func TestFormsAgree(t *testing.T) {
	t.Parallel()
	w := newWorld(t).populate()
	for _, args := range [][]string{{"group", "list"}, {"instance", "get", string(webB)}, {"config", "status"}} {
		var fromJSON, fromYAML any
		require.NoError(t, json.Unmarshal([]byte(w.run(append(args, "-o", "json")...).out), &fromJSON))
		require.NoError(t, yaml.Unmarshal([]byte(w.run(append(args, "-o", "yaml")...).out), &fromYAML))
		again, err := json.Marshal(fromYAML)
		require.NoError(t, err)
		want, err := json.Marshal(fromJSON)
		require.NoError(t, err)
		require.JSONEq(t, string(want), string(again))
	}
}

func TestEmptyLists(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, args := range [][]string{{"group", "list"}, {"instance", "list"}, {"events"}, {"orphan", "list"}} {
		r := w.run(args...)
		require.Zero(t, r.code)
		require.True(t, strings.HasPrefix(r.out, "no "), r.out)
		require.Equal(t, "[]\n", w.run(append(args, "-o", "json")...).out, "an empty list, not null")
	}
}

// Texts from machines must not control the terminal.
func TestControlCharactersDoNotReachTheTerminal(t *testing.T) {
	t.Parallel()
	w := newWorld(t).populate()
	w.event(nstance.Event{Type: nstance.EventAlarm, Tenant: "default", Group: "web", Instance: webA, Reason: "a\x1b[2Jb\nc\u009bd"})
	r := w.run("instance", "get", string(webA))
	require.Contains(t, r.out, "a [2Jb c d")
	require.NotContains(t, r.out, "\x1b")
	w.set(func() { w.fail["ListGroups"] = nstance.Errorf(nstance.Internal, "x\x1b[2J") })
	require.NotContains(t, w.run("group", "list").errors, "\x1b")
}

func TestScale(t *testing.T) {
	t.Parallel()
	w := newWorld(t).populate()
	t.Run("up needs no confirmation", func(t *testing.T) {
		require.Zero(t, w.run("group", "scale", "web", "4").code)
		require.Equal(t, []string{"size default/web 4 dry=false"}, w.done())
	})
	t.Run("down needs one", func(t *testing.T) {
		r := w.run("group", "scale", "web", "2")
		require.Equal(t, 2, r.code)
		require.Contains(t, r.errors, "scaling group default/web from 4 to 2 drains and deletes 2 instances")
		require.Contains(t, r.errors, "--yes")
		require.Empty(t, w.done())
	})
	t.Run("down with --yes", func(t *testing.T) {
		r := w.run("group", "scale", "web", "2", "-y", "-o", "json")
		require.Zero(t, r.code, r.errors)
		require.EqualValues(t, 2, message(t, r.out, &apiv1.UpdateGroupResponse{}).GetGroup().GetSize())
		require.Equal(t, []string{"size default/web 2 dry=false"}, w.done())
	})
	t.Run("a dry run changes nothing and asks nothing", func(t *testing.T) {
		r := w.run("group", "scale", "web", "0", "--dry-run")
		require.Equal(t, "group default/web: size 2 → 0 would be accepted\n", r.out)
		require.Equal(t, []string{"size default/web 0 dry=true"}, w.done())
	})
	t.Run("to the present size", func(t *testing.T) {
		require.Equal(t, "group default/web has size 2 already\n", w.run("group", "scale", "web", "2").out)
		w.done()
	})
	t.Run("of a group that two tenants have", func(t *testing.T) {
		w.set(func() { w.groups = append(w.groups, &apiv1.Group{Tenant: "blue", Group: "web", Size: 1}) })
		r := w.run("group", "scale", "web", "9")
		require.Equal(t, 2, r.code)
		require.Contains(t, r.errors, "--tenant")
		require.Empty(t, w.done())
		require.Zero(t, w.run("group", "scale", "web", "9", "--tenant", "blue").code)
		require.Equal(t, []string{"size blue/web 9 dry=false"}, w.done())
	})
	t.Run("of a group that does not exist", func(t *testing.T) {
		r := w.run("group", "scale", "wbe", "9")
		require.Equal(t, 3, r.code)
		require.Contains(t, r.errors, `no group "wbe"`)
		require.Contains(t, r.errors, "nstance-admin group list")
	})
}

func TestRemovals(t *testing.T) {
	t.Parallel()
	w := newWorld(t).populate()
	for name, tc := range map[string]struct {
		args []string
		code int
		call string // empty: nothing was changed
		says string
	}{
		"delete unconfirmed":       {[]string{"instance", "delete", string(webA)}, 2, "", "ready; this drains it, then deletes it, and its group replaces it"},
		"delete":                   {[]string{"instance", "delete", string(webA), "-y"}, 0, "delete " + string(webA) + " drain=true dry=false", ""},
		"delete without a drain":   {[]string{"instance", "delete", string(webA), "--no-drain", "-y"}, 0, "delete " + string(webA) + " drain=false dry=false", ""},
		"delete on demand":         {[]string{"instance", "delete", string(dbA)}, 2, "", "this drains it, then deletes it:"},
		"delete, dry":              {[]string{"instance", "delete", string(webA), "--dry-run"}, 0, "delete " + string(webA) + " drain=true dry=true", ""},
		"delete what is gone":      {[]string{"instance", "delete", string(gone), "-y"}, 3, "", "deleted already"},
		"delete what never was":    {[]string{"instance", "delete", string(webNew), "-y"}, 3, "", "nstance-admin instance list"},
		"preserve for no time":     {[]string{"instance", "preserve", string(webA), "--for", "0s", "-y"}, 2, "", "--for: is 0s (use more than 0, or --end)"},
		"drain unconfirmed":        {[]string{"instance", "drain", string(webA)}, 2, "", "--yes"},
		"drain":                    {[]string{"instance", "drain", string(webA), "-y", "--reason", "x"}, 0, "drain " + string(webA) + ` because="x" dry=false`, ""},
		"drain, dry":               {[]string{"instance", "drain", string(webA), "--dry-run"}, 0, "drain " + string(webA) + ` because="" dry=true`, ""},
		"interrupt unconfirmed":    {[]string{"interrupt", string(webA)}, 2, "", "--yes"},
		"interrupt":                {[]string{"interrupt", string(webA), "-y", "--notice", "30s"}, 0, "interrupt " + string(webA) + " notice=30s dry=false", ""},
		"interrupt, dry":           {[]string{"interrupt", string(webA), "--dry-run"}, 0, "interrupt " + string(webA) + " notice=2m0s dry=true", ""},
		"interrupt what is going":  {[]string{"interrupt", string(webB), "-y"}, 6, "", "draining already"},
		"interrupt what never was": {[]string{"interrupt", string(webNew), "-y"}, 3, "", "no instance"},
	} {
		t.Run(name, func(t *testing.T) {
			r := w.run(tc.args...)
			require.Equal(t, tc.code, r.code, r.errors)
			require.Contains(t, r.errors, tc.says)
			require.Equal(t, tc.call, strings.Join(w.done(), ";"))
		})
	}
}

// A long story comes with its beginning, though an answer has only its end.
func TestInstanceWithManyEvents(t *testing.T) {
	t.Parallel()
	w := newWorld(t).populate()
	for range 1500 {
		w.event(nstance.Event{Time: time.Now(), Type: eventtype.CertificateRenewed, Tenant: "default", Group: "web", Instance: webA})
	}
	w.set(func() { w.pageSize = 700 })
	r := w.run("instance", "get", string(webA), "-o", "json")
	require.Zero(t, r.code, r.errors)
	s := message(t, r.out, &apiv1.GetInstanceResponse{})
	require.Len(t, s.Events, 1502)
	require.Equal(t, string(nstance.EventReplacementRequested), s.Events[0].Type)
	require.True(t, slices.IsSortedFunc(s.Events, func(a, b *apiv1.Event) int { return cmp.Compare(a.Seq, b.Seq) }))
}

func TestEventsPageByPage(t *testing.T) {
	t.Parallel()
	w := newWorld(t).populate()
	r := w.run("events", "--group", "web", "-o", "json")
	events := messages[apiv1.Event](t, r)
	require.Equal(t, string(gone), events[0].Instance)
	require.Equal(t, string(webA), events[1].Instance)
	require.Len(t, events, 4)
	require.Equal(t, 3, w.run("events", "--group", "nope").code)

	w.set(func() { w.pageSize = 3 })
	r = w.run("events", "--limit", "2", "-o", "json")
	events = messages[apiv1.Event](t, r)
	require.Equal(t, []string{string(webA), string(webB)}, []string{events[0].Instance, events[1].Instance}, "the newest, oldest first")
	require.Len(t, messages[apiv1.Event](t, w.run("events", "--limit", "4", "-o", "json")), 4, "of two pages")
	w.set(func() { w.pageSize = 2 })
	require.Len(t, messages[apiv1.Event](t, w.run("events", "--limit", "3", "-o", "json")), 3, "no more of the second page")
	r = w.run("events", "--all", "-o", "json")
	lines := strings.Split(strings.TrimSpace(r.out), "\n")
	require.Len(t, lines, 4, "over both pages")
	require.Equal(t, 1, strings.Count(w.run("events", "--all").out, "INSTANCE"), "one line of names")
	require.Equal(t, string(gone), message(t, lines[0], &apiv1.Event{}).Instance)
	for flag, bad := range map[string]string{"--since": "yesterday", "--until": "-5m", "--limit": "10001"} {
		r = w.run("events", flag, bad)
		require.Equal(t, 2, r.code)
		require.Contains(t, r.errors, flag)
	}
	require.Equal(t, 2, w.run("events", "--limit", "0").code)
	require.Equal(t, 3, w.run("interruption", "show", "e9").code)
}

func TestCostRefusesNumbers(t *testing.T) {
	t.Parallel()
	for _, wrong := range []string{"m5.large", "=1", "m5=x", "m5/cheap=1", "[=1", "m5=-1", "m5=NaN"} {
		for _, flag := range []string{"--factor", "--price"} {
			r := newWorld(t).run("cost", flag, wrong)
			require.Equal(t, 2, r.code, wrong)
			require.Contains(t, r.errors, flag)
		}
	}
}

// TestWarmPoolEstimate: the sums are those of the document.
func TestWarmPoolEstimate(t *testing.T) {
	t.Parallel()
	all := func(more ...string) []string {
		return append([]string{"warm-pool", "estimate", "-o", "json", "--price", "0.1", "--boot", "6m"}, more...)
	}
	var e admin.PoolEstimate
	estimate := func(args ...string) {
		r := newWorld(t).run(all(args...)...)
		require.Zero(t, r.code, r.errors)
		e = admin.PoolEstimate{}
		require.NoError(t, json.Unmarshal([]byte(r.out), &e))
	}
	estimate("--size", "2", "--wake", "36s", "--disk", "100", "--disk-price", "0.08", "--reclaims", "10", "--drain", "4m")
	require.InDelta(t, 16, e.Waiting, 1e-9, "2 disks of 100 GB")
	require.InDelta(t, 10*0.1/6, e.Bridging, 1e-9, "10 times 10 minutes")
	require.InDelta(t, 1, e.MissingWithout, 1e-9)
	require.InDelta(t, 0.1, e.MissingWith, 1e-9)
	require.InDelta(t, e.Total/0.9, e.CostOfHourLess, 1e-9)
	require.InDelta(t, 2*(73+8), e.RunningSpares, 1e-9)
	estimate("--mode", "hibernated", "--wake", "1m", "--memory", "32", "--memory-price", "0.17")
	require.InDelta(t, 5.44, e.Waiting, 1e-9)
	estimate("--mode", "running", "--reclaims", "10")
	require.InDelta(t, 73, e.Total, 1e-9)
	estimate("--wake", "1m", "--notice", "10m", "--reclaims", "10")
	require.True(t, e.LostWithinNotice)
	require.Zero(t, e.CostOfHourLess)
	for flag, args := range map[string][]string{
		"--size": {"--wake", "1m", "--size", "0"}, "--wake": nil, "--memory": {"--wake", "1m", "--memory", "1"},
		"--price": {"--wake", "1m", "--price", "0"}, "--boot": {"--wake", "1m", "--boot", "0s"}, "--reclaims": {"--wake", "1m", "--reclaims", "-1"}, "--disk": {"--wake", "1m", "--disk", "NaN"},
	} {
		r := newWorld(t).run(all(args...)...)
		require.Equal(t, 2, r.code, flag)
		require.Contains(t, r.errors, flag)
	}
}

func TestPeriodOfInterruptions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, name := range []string{"list", "rates"} {
		r := w.run("interruption", name, "--since", "2h", "--until", "2026-10-11T00:00:00Z")
		require.Zero(t, r.code, r.errors)
		for flag, bad := range map[string]string{"--since": "yesterday", "--until": "-5m"} {
			r := w.run("interruption", name, flag, bad)
			require.Equal(t, 2, r.code)
			require.Contains(t, r.errors, flag)
			require.Contains(t, r.errors, "how long ago, such as 30m or 2d")
		}
	}
	require.Zero(t, w.run("interruption", "list").code)
	r := w.run("interruption", "rates")
	require.Zero(t, r.code)
	require.Contains(t, r.out, "no machines between")

	type period interface {
		GetSince() *timestamppb.Timestamp
		GetUntil() *timestamppb.Timestamp
	}
	var asked []period
	for _, req := range w.requests {
		if p, ok := req.(period); ok {
			asked = append(asked, p)
		}
	}
	require.Len(t, asked, 4)
	for _, p := range asked[:2] {
		require.WithinDuration(t, time.Now().Add(-2*time.Hour), p.GetSince().AsTime(), time.Minute)
		require.Equal(t, time.Date(2026, 10, 11, 0, 0, 0, 0, time.UTC), p.GetUntil().AsTime())
	}
	require.Nil(t, asked[2].GetSince())
	require.WithinDuration(t, time.Now().Add(-30*24*time.Hour), asked[3].GetSince().AsTime(), time.Minute)
	require.Nil(t, asked[3].GetUntil())
}
