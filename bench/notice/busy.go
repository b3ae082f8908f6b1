package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/bench/internal/rig"
	"github.com/nstance-go/nstance/internal/wire"
)

// Beside a tenant at its full budget, calls of others take at most busyRatio times their
// p99 alone, and notices at most busyMore longer.
const (
	busyRatio = 3
	busyMore  = 50 * time.Millisecond

	quietCalls = 1000
	loudGroups = 20
	loudCalls  = 64  // at once
	loudRate   = 100 // a second: the budget by default; the server drops connections that go on far beyond
)

// runBusy measures calls of one tenant and notices, alone and beside a tenant that sends
// every kind of call at its full budget.
func runBusy(ctx context.Context, agents, notices int, out string) error {
	w := newWatcher()
	return withFleet(ctx, agents, w, func(r *rig.Rig, fleet []*agent) error {
		half := fleet[:notices/2]
		alone, err := measureQuiet(ctx, r, half, w)
		if err != nil {
			return err
		}
		stop, err := startLoud(ctx, r)
		if err != nil {
			return err
		}
		beside, err := measureQuiet(ctx, r, fleet[notices/2:notices], w)
		ended := stop()
		if err != nil {
			return err
		}
		calls, reaction := rig.Sum("a call, alone", alone.calls, 0), rig.Sum("a notice, alone", alone.notices, 0)
		return rig.Report{
			Bench: "notice -busy", Target: "a tenant at its full budget", With: map[string]any{"agents": len(fleet), "loud calls": ended},
			Results: []rig.Result{
				calls, rig.Sum("a call, beside the tenant", beside.calls, busyRatio*millis(calls.P99MS)),
				reaction, rig.Sum("a notice, beside the tenant", beside.notices, busyMore+millis(reaction.P99MS)),
			},
		}.Show(os.Stdout, out)
	})
}

func millis(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }

// A quiet is what calls of the other tenant and notices took.
type quiet struct{ calls, notices []time.Duration }

// measureQuiet makes calls one after another, then has agents send their notices likewise.
func measureQuiet(ctx context.Context, r *rig.Rig, fleet []*agent, w *watcher) (q quiet, err error) {
	conn, err := r.Operator(ctx, len(r.Specs)+1, nstance.DefaultTenant)
	if err != nil {
		return q, err
	}
	defer conn.Close()
	api := apiv1.NewOperatorServiceClient(conn)
	for i := range quietCalls {
		began := time.Now()
		if err := quietCall(ctx, api, r, i); err != nil {
			return q, fmt.Errorf("call of the quiet tenant: %w", wire.ErrorOf(err))
		}
		q.calls = append(q.calls, time.Since(began))
		if err := pace(ctx, 30*time.Millisecond); err != nil { // within its own budget
			return q, err
		}
	}
	if err := tell(ctx, fleet, w); err != nil {
		return q, err
	}
	w.Do(func() {
		for _, a := range fleet {
			q.notices = append(q.notices, w.created[a.id].Sub(w.received[a.id]))
		}
	})
	return q, nil
}

func quietCall(ctx context.Context, api apiv1.OperatorServiceClient, r *rig.Rig, i int) (err error) {
	switch i % 3 {
	case 0:
		_, err = api.GetInstance(ctx, &apiv1.GetInstanceRequest{Id: string(r.Specs[i%len(r.Specs)].ID)})
	case 1:
		_, err = api.ListGroups(ctx, &apiv1.ListGroupsRequest{})
	default:
		_, err = api.ListInstances(ctx, &apiv1.ListInstancesRequest{Limit: 100})
	}
	return err
}

func pace(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// startLoud has a tenant send calls until stop is called, which returns how many ended how.
func startLoud(ctx context.Context, r *rig.Rig) (stop func() map[string]int, err error) {
	conn, err := r.Operator(ctx, len(r.Specs)+2, "loud")
	if err != nil {
		return nil, err
	}
	api := apiv1.NewOperatorServiceClient(conn)
	for i := range loudGroups {
		if _, err := api.CreateGroup(ctx, &apiv1.CreateGroupRequest{Group: loudGroup(i), Template: "vm", Size: proto.Int32(0)}); err != nil {
			return nil, errors.Join(fmt.Errorf("group of the loud tenant: %w", wire.ErrorOf(err)), conn.Close())
		}
	}
	loud, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	var mu sync.Mutex
	ended := map[string]int{}
	for n := range loudCalls {
		wg.Go(func() {
			for i := n; loud.Err() == nil; i++ {
				err := loudCall(loud, api, r, i)
				mu.Lock()
				ended[cmp.Or(string(nstance.CodeOf(wire.ErrorOf(err))), "ok")]++
				mu.Unlock()
				_ = pace(loud, loudCalls*time.Second/loudRate)
			}
		})
	}
	return func() map[string]int {
		cancel()
		wg.Wait()
		_ = conn.Close() // its calls have ended
		return ended
	}, nil
}

func loudGroup(i int) string { return fmt.Sprintf("g%d", i%loudGroups) }

func loudCall(ctx context.Context, api apiv1.OperatorServiceClient, r *rig.Rig, i int) (err error) {
	switch i % 7 {
	case 0:
		_, err = api.ListGroups(ctx, &apiv1.ListGroupsRequest{})
	case 1:
		_, err = api.ListInstances(ctx, &apiv1.ListInstancesRequest{})
	case 2:
		_, err = api.ListEvents(ctx, &apiv1.ListEventsRequest{})
	case 3:
		_, err = api.Plan(ctx, &apiv1.PlanRequest{Group: &apiv1.UpdateGroupRequest{Group: loudGroup(i), Size: proto.Int32(100)}})
	case 4:
		_, err = api.UpdateGroup(ctx, &apiv1.UpdateGroupRequest{Group: loudGroup(i), Vars: &apiv1.Vars{Values: map[string]string{"n": fmt.Sprint(i)}}})
	case 5:
		_, err = api.ListInterruptions(ctx, &apiv1.ListInterruptionsRequest{})
	default:
		_, err = api.GetInstance(ctx, &apiv1.GetInstanceRequest{Id: string(r.Specs[i%len(r.Specs)].ID)})
	}
	return err
}
