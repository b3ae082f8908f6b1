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
		f.problems = true
		require.Contains(t, f.text(noon), "NEEDS ATTENTION\na record [2J is broken")
		require.NotContains(t, f.text(noon), "web000")
		f.status.Problems = nil
		require.Contains(t, f.text(noon), "NEEDS ATTENTION\nnothing")
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
