package server

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/loop"
	"github.com/nstance-go/nstance/internal/web"
	"github.com/nstance-go/nstance/reconcile"
)

// TestPageCountsAll: the page counts what it does not list, and cuts what is least urgent.
func TestPageCountsAll(t *testing.T) {
	now := time.Date(2026, 11, 27, 12, 7, 0, 0, time.UTC)
	var list []*apiv1.Interruption // the latest first, as the service returns them
	for n := range 1000 {
		at := now.Add(-time.Duration(n) * 20 * time.Millisecond)
		i := &apiv1.Interruption{EventId: fmt.Sprint(n), Instance: fmt.Sprintf("i%04d", n), Tenant: "t", Group: "g", DetectedAt: timestamppb.New(at), Notice: &apiv1.Notice{Deadline: timestamppb.New(at.Add(2 * time.Minute))}}
		list = append(list, i)
	}
	for n := range 80 {
		at := timestamppb.New(now.Add(-time.Hour))
		list = append(list, &apiv1.Interruption{EventId: fmt.Sprint("old", n), Instance: fmt.Sprintf("o%04d", n), DetectedAt: at, DrainedAt: at, DrainOutcome: "drained", DeletedAt: at})
	}
	drained := now.Add(100 * time.Second)
	views := []reconcile.InstanceView{{ID: "i0999", Drain: &nstance.Drain{Deadline: drained}}}
	s := web.Status{Time: now}
	addInterruptions(&s, list, views)
	require.Equal(t, 1000, s.InterruptionsRunning)
	require.Equal(t, 1080, s.InterruptionsTotal)
	require.Len(t, s.Interruptions, shownRunning+shownEnded)
	require.Equal(t, "i0999", s.Interruptions[0].Instance, "the earliest deadline comes first, though its notice is the oldest")
	require.Equal(t, drained, s.Interruptions[0].DrainDeadline)
	require.Equal(t, s.Waves[0].ID, s.Interruptions[0].Wave)
	require.Equal(t, 1000, s.Waves[0].Machines)
	require.Equal(t, web.Slot{Running: 1000, Drained: 80}, s.Day.Total)
	require.Equal(t, []web.Slot{{At: time.Date(2026, 11, 27, 11, 0, 0, 0, time.UTC), Drained: 80}, {At: time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC), Running: 1000}}, s.Day.Slots)
	require.Zero(t, s.Day.Known)
}

// TestPageInstances: what is not ready is listed first where there are too many, and a drain
// without limit has no deadline.
func TestPageInstances(t *testing.T) {
	now := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	views := make([]reconcile.InstanceView, shownInstances, shownInstances+2)
	for i := range views {
		views[i] = reconcile.InstanceView{ID: nstance.InstanceID(fmt.Sprintf("i%04d", i)), State: nstance.Ready}
	}
	views = append(views,
		reconcile.InstanceView{ID: "limited", State: nstance.Draining, Drain: &nstance.Drain{StartedAt: now, Deadline: now.Add(time.Hour)}},
		reconcile.InstanceView{ID: "unlimited", State: nstance.Draining, Drain: &nstance.Drain{StartedAt: now, Deadline: now.Add(nstance.UnlimitedDrain)}},
	)
	var s web.Status
	addInstances(&s, views)
	require.Equal(t, shownInstances+2, s.InstancesTotal)
	require.Len(t, s.Instances, shownInstances)
	require.Equal(t, []any{"limited", now.Add(time.Hour)}, []any{s.Instances[0].ID, s.Instances[0].Deadline})
	require.Equal(t, []any{"unlimited", time.Time{}}, []any{s.Instances[1].ID, s.Instances[1].Deadline})
	require.Equal(t, "i0000", s.Instances[2].ID)
}

// TestPageOfALostMachine: the machine's end is the one that the cloud shows, not the later
// deletion of its record.
func TestPageOfALostMachine(t *testing.T) {
	gone, deleted := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC), time.Date(2026, 11, 27, 12, 1, 0, 0, time.UTC)
	row := interruptionRow(&apiv1.Interruption{GoneAt: timestamppb.New(gone), DeletedAt: timestamppb.New(deleted)})
	require.Equal(t, gone, row.DeletedAt)
	row = interruptionRow(&apiv1.Interruption{DeletedAt: timestamppb.New(deleted)})
	require.Equal(t, deleted, row.DeletedAt)
}

func TestPageCosts(t *testing.T) {
	web1, db := nstance.GroupKey{Tenant: "t", Group: "web"}, nstance.GroupKey{Tenant: "t", Group: "db"}
	machine := nstance.Machine{ProviderID: "m", InstanceType: "small"}
	views := []reconcile.InstanceView{
		{ID: "a", Group: web1, State: nstance.Ready, Machine: machine, Zone: "z", Market: nstance.Spot, PricePerHour: .25},
		{ID: "b", Group: web1, State: nstance.Draining, Machine: machine, Zone: "z", Market: nstance.Spot, PricePerHour: .5, CreatedAt: time.Unix(1, 0)},
		{ID: "c", Group: db, State: nstance.Ready, Machine: machine, Zone: "z", Market: nstance.OnDemand},
		{ID: "d", Group: db, State: nstance.Pending, PricePerHour: 9},
	}
	groups := []reconcile.GroupView{{Group: nstance.Group{Key: db, Size: 2}, Ready: 1, OnDemandMarket: 1}, {Group: nstance.Group{Key: web1, Size: 2}, Ready: 1, Leaving: 1, SpotMarket: 2}}
	var s web.Status
	addGroups(&s, groups, views)
	require.Equal(t, web.Totals{Size: 4, Ready: 2, Leaving: 1, Spot: 2, OnDemand: 1, CostPerHour: .75, Unpriced: 1}, s.Totals)
	require.Equal(t, map[string]int{"ready": 1, "draining": 1}, s.Groups[1].States)
	require.InDelta(t, .75, s.Groups[1].CostPerHour, 1e-9)

	rates := []loop.PoolRate{
		{InstanceType: "small", Zone: "z", Market: nstance.Spot, MachineTime: 50 * time.Hour, Reclaims: 2, LastReclaim: time.Unix(2, 0)},
		{InstanceType: "large", Zone: "z", Market: nstance.Spot, MachineTime: 10 * time.Hour, Reclaims: 1},
		{InstanceType: "huge", Zone: "z", Market: nstance.Spot, MachineTime: 10 * time.Hour},
	}
	addPools(&s, views, &rates)
	require.Equal(t, []web.Pool{
		{InstanceType: "small", Zone: "z", Market: "spot", Members: 2, PricePerHour: .5, MachineHours: 50, Reclaims: 2, ReclaimsPer100H: 4, LastReclaim: time.Unix(2, 0)},
		{InstanceType: "small", Zone: "z", Market: "on-demand", Members: 1},
		{InstanceType: "large", Zone: "z", Market: "spot", MachineHours: 10, Reclaims: 1, ReclaimsPer100H: 10},
	}, s.Pools)
}
