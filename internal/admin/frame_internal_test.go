package admin

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wave"
	"github.com/nstance-go/nstance/internal/wire"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// sample is a frame of three groups, of which one has many members.
func sample(members int) frame {
	f := frame{snapshot: snapshot{
		at:     noon,
		server: "10.0.0.1:8993",
		status: &apiv1.GetShardStatusResponse{Cluster: "prod", Shard: "eu1a", Epoch: 7, AgentsConnected: int32(members), Problems: []string{"a record\x1b[2J is broken"}},
		groups: []*apiv1.Group{
			{Tenant: "blue", Group: "db", Size: 1, Booting: 1, Holds: []*apiv1.Hold{{Kind: "backoff", Reason: "2 creations failed", Until: wire.Time(noon.Add(12 * time.Second))}}},
			{Tenant: "default", Group: "api", Size: 2, Ready: 2},
			{Tenant: "default", Group: "web", Size: int32(members), Ready: int32(members)},
		},
	}}
	for i := range members {
		f.instances = append(f.instances, &apiv1.Instance{Id: fmt.Sprintf("web%03d", i), Tenant: "default", Group: "web", State: string(nstance.Ready), CreatedAt: wire.Time(noon.Add(-time.Hour))})
	}
	f.instances = append([]*apiv1.Instance{{
		Id: "dbx000", Tenant: "blue", Group: "db", State: string(nstance.Draining), CreatedAt: wire.Time(noon.Add(-time.Hour)), Conditions: []string{"notice:reclaim"},
		Drain: &apiv1.Drain{Deadline: wire.Time(noon.Add(90 * time.Second)), Executor: string(nstance.ExecutorAgent)},
	}}, f.instances...)
	return f
}

// reclaims are interruptions that began 50 s before noon, one every tenth of a second: a
// third is drained, the last one was cut short, most are replaced.
func reclaims(count int) (list []*apiv1.Interruption) {
	for n := range count {
		at := noon.Add(-50*time.Second + time.Duration(n)*100*time.Millisecond)
		i := &apiv1.Interruption{
			EventId: fmt.Sprint(n), Tenant: "default", Group: "web", Instance: fmt.Sprintf("i%03d", n), InstanceType: "m7g.large", Zone: "zone-a", Market: "spot",
			DetectedAt: wire.Time(at), Notice: &apiv1.Notice{Kind: "reclaim", Deadline: wire.Time(at.Add(2 * time.Minute))},
		}
		if n >= 90 {
			i.Zone = "zone-b"
		}
		if n < 111 {
			i.Replacement, i.ReplacementReadyAt = "r", wire.Time(at.Add(9*time.Second))
		}
		if n < 40 {
			i.DrainOutcome, i.DrainedAt, i.DeletedAt = "drained", wire.Time(at.Add(30*time.Second)), wire.Time(at.Add(31*time.Second))
		}
		if n == 119 {
			i.DrainOutcome, i.DrainedAt = "cut short", wire.Time(at.Add(100*time.Second+100*time.Millisecond))
		}
		list = append(list, i)
	}
	return list
}

func TestFrame(t *testing.T) {
	t.Parallel()
	lines := func(f *frame) []string { return strings.Split(strings.TrimSuffix(f.text(noon), "\n"), "\n") }
	t.Run("everything, without limits", func(t *testing.T) {
		f := sample(2)
		require.Equal(t, []string{
			"prod/eu1a   epoch 7   10.0.0.1:8993   2 agents   12:00:00Z",
			"1 in need of attention (p shows all): a record [2J is broken",
			"",
			"  GROUP         SIZE   READY   BOOTING   LEAVING   STALE   HOLDS",
			"  blue/db       1      0       1         0         0       backoff: 2 creations failed (12s more)",
			"  default/api   2      2       0         0         0       -",
			"  default/web   2      2       0         0         0       -",
			"",
			"ID       GROUP         STATE      AGE   TYPE   MARKET   CPU   MEM   REPORT   DRAIN            CONDITIONS",
			"dbx000   blue/db       draining   60m   -      -        -     -     -        90s left agent   notice:reclaim",
			"web000   default/web   ready      60m   -      -        -     -     -        -                -",
			"web001   default/web   ready      60m   -      -        -     -     -        -                -",
		}, lines(&f))
	})
	t.Run("what is acknowledged is counted apart", func(t *testing.T) {
		f := sample(2)
		f.status.Attention = []*apiv1.Attention{{Kind: "clock", Subject: "shard", Why: "it is wrong", Acknowledged: &apiv1.AttentionAcknowledgement{By: "eve", Until: wire.Time(noon.Add(time.Hour))}}}
		f.status.AttentionAcknowledged = 1
		require.Contains(t, f.text(noon), "nothing in need of attention but 1 acknowledged (p shows all)\n")
		f.detail = showProblems
		require.Contains(t, f.text(noon), "acknowledged by eve until 2026-01-02T13:00:00.000Z: clock: shard: it is wrong\n")
	})
	t.Run("a chosen group shows its members only", func(t *testing.T) {
		f := sample(2)
		f.move(0)
		require.Contains(t, f.text(noon), "> blue/db")
		require.Contains(t, f.text(noon), "dbx000")
		require.NotContains(t, f.text(noon), "web000")
		f.move(1)
		f.move(7)
		require.Contains(t, f.text(noon), "> default/web", "there is nothing further down")
		require.NotContains(t, f.text(noon), "dbx000")
		f.move(-9)
		require.Contains(t, f.text(noon), "> blue/db")
	})
	t.Run("it always fits the screen", func(t *testing.T) {
		f := sample(120)
		f.move(2)
		for f.height = 1; f.height < 60; f.height += 4 {
			for _, f.width = range []int{1, 20, 80} {
				got := lines(&f)
				require.LessOrEqual(t, len(got), f.height)
				for _, line := range got {
					require.LessOrEqual(t, len(line), f.width)
				}
			}
		}
		f.height, f.width = 24, 120
		require.Contains(t, f.text(noon), "> default/web")
		require.Regexp(t, `\.\.\. 1\d\d more`, f.text(noon))
	})
	t.Run("the chosen group stays on the screen", func(t *testing.T) {
		f := sample(50)
		for i := range 100 {
			f.groups = append(f.groups, &apiv1.Group{Tenant: "t", Group: fmt.Sprintf("g%02d", i)})
		}
		f.height, f.width = 24, 120
		for range 120 {
			f.move(1)
			require.Contains(t, f.text(noon), "> "+f.chosen.String())
		}
	})
	t.Run("problems take the place of members", func(t *testing.T) {
		f := sample(2)
		f.toggle(showProblems)
		require.Contains(t, f.text(noon), "NEEDS ATTENTION\na record [2J is broken")
		require.NotContains(t, f.text(noon), "web000")
		f.status.Problems = nil
		require.Contains(t, f.text(noon), "NEEDS ATTENTION\nnothing")
	})
	t.Run("waves come first", func(t *testing.T) {
		f := sample(2)
		f.waves = wave.Of(reclaims(120))
		f.width, f.height = 140, 40
		got := lines(&f)
		require.Equal(t, []string{
			"WAVE                      RECLAIMED   REPLACED   DRAINED   INCOMPLETE   TIGHTEST   DEADLINE",
			"default/web, 50s ago      120         111        40        1            0:19       in 1:14",
			"· m7g.large zone-a spot   90          90         40        0            -          -",
			"· m7g.large zone-b spot   30          21         0         1            -          -",
			"",
		}, got[3:8])
		f.toggle(showInterruptions)
		require.Regexp(t, `INSTANCE +GROUP +KIND +DEADLINE +DRAIN +REPLACEMENT\ni040 +default/web +reclaim +in 1:14`, f.text(noon))
		require.Regexp(t, `\.\.\. \d+ more`, f.text(noon), "the latest deadlines are cut")
		f.toggle(showInterruptions)
		require.Contains(t, f.text(noon), "web000", "the same key leads back")
	})
	t.Run("a wave that is over", func(t *testing.T) {
		f, list := sample(1), reclaims(1)
		list[0].DeletedAt = wire.Time(noon)
		f.waves = wave.Of(list)
		require.Regexp(t, `default/web, 50s ago +1 +1 +1 +0 +\d:\d\d +over`, f.text(noon))
	})
	t.Run("more waves and pools than there is room for", func(t *testing.T) {
		f := sample(1)
		var list []*apiv1.Interruption
		for n := range 14 * 7 {
			at := noon.Add(time.Duration(n/14)*2*time.Minute - 20*time.Minute)
			list = append(list, &apiv1.Interruption{
				EventId: fmt.Sprint(n), Tenant: "default", Group: fmt.Sprintf("g%d", n/14), Instance: fmt.Sprintf("i%03d", n), Zone: fmt.Sprintf("z%02d", n%14),
				DetectedAt: wire.Time(at), Notice: &apiv1.Notice{Kind: "reclaim", Deadline: wire.Time(at.Add(2 * time.Minute))},
			})
		}
		f.waves = wave.Of(list)
		require.Contains(t, f.text(noon), "· ... 11 more pools")
		require.Contains(t, f.text(noon), "... 2 more waves, with later deadlines")
		f.waves = f.waves[:6]
		require.Contains(t, f.text(noon), "... 1 more waves, with later deadlines")
	})
	t.Run("a drain that ended too late", func(t *testing.T) {
		f, list := sample(1), reclaims(1)
		list[0].DeletedAt, list[0].DrainedAt = nil, wire.Time(noon.Add(80*time.Second))
		f.waves = wave.Of(list)
		require.Contains(t, f.text(noon), "missed by 0:10")
		f.instances[0].Id = list[0].GetInstance() // whose own drain is still in its record
		f.toggle(showInterruptions)
		require.Regexp(t, `i000 +default/web +reclaim +in 1:10 +late +`, f.text(noon))
	})
	t.Run("pools", func(t *testing.T) {
		f := sample(2)
		for n, i := range f.instances {
			i.InstanceType, i.Zone, i.Market, i.PricePerHour = "m7g.large", []string{"zone-a", "zone-b", "zone-b"}[n], "spot", .0421
		}
		f.toggle(showPools)
		require.Contains(t, f.text(noon), "POOL                    MEMBERS   READY   LEAVING   PRICE/H\nm7g.large zone-b spot   2         2       0         0.0421\nm7g.large zone-a spot   1         0       1         0.0421\n")
	})
	t.Run("what cannot be seen any more keeps its last look, and says so", func(t *testing.T) {
		v := &view{frame: sample(1)}
		v.handleRefresh(refreshed{err: errors.New("unavailable: no leader")})
		require.Contains(t, v.text(noon.Add(30*time.Second)), "seen 30s ago: unavailable: no leader")
		require.Contains(t, v.text(noon), "dbx000")
		v = &view{}
		require.Contains(t, v.text(noon), "looking ...")
		v.handleRefresh(refreshed{err: errors.New("denied")})
		require.Contains(t, v.text(noon), "nothing seen yet: denied")
	})
}

func TestUrgency(t *testing.T) {
	t.Parallel()
	leaving, booting, ready := &apiv1.Instance{Id: "c", State: string(nstance.Draining)}, &apiv1.Instance{Id: "b", State: string(nstance.Booting)}, &apiv1.Instance{Id: "a", State: string(nstance.Ready)}
	require.Negative(t, compareUrgency(leaving, booting))
	require.Negative(t, compareUrgency(booting, ready))
	require.Negative(t, compareUrgency(&apiv1.Instance{Id: "z", State: string(nstance.Ready), Conditions: []string{"drifted"}}, ready))
}
