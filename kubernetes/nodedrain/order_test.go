package nodedrain_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/drain"
	"github.com/nstance-go/nstance/kubernetes/nodedrain"
)

// TestSlots: the earliest deadline goes first, and no more requests than slots are in
// flight.
func TestSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, now := nodedrain.NewSlots(1), time.Now()
		var order []int
		free := make(chan struct{})
		go func() { _ = s.Do(t.Context(), now, func(context.Context) error { <-free; return nil }) }()
		synctest.Wait()
		impatient, cancel := context.WithCancelCause(t.Context())
		for _, minutes := range []int{3, 1, 4, 2} {
			ctx := t.Context()
			if minutes == 2 {
				ctx = impatient
			}
			go func() {
				_ = s.Do(ctx, now.Add(time.Duration(minutes)*time.Minute), func(context.Context) error {
					order = append(order, minutes)
					return nil
				})
			}()
		}
		synctest.Wait()
		require.Empty(t, order)
		cancel(errors.New("no more wanted"))
		synctest.Wait()
		close(free)
		synctest.Wait()
		require.Equal(t, []int{1, 3, 4}, order)
		require.NoError(t, s.Do(t.Context(), now, func(context.Context) error { return nil }), "the slot is free")
	})
}

// TestSlotTime: the time of a request begins when it is sent.
func TestSlotTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := nodedrain.NewSlots(1)
		for range 3 {
			go func() {
				_ = s.Do(t.Context(), time.Time{}, func(ctx context.Context) error {
					deadline, ok := ctx.Deadline()
					if !ok || time.Until(deadline) != 5*time.Second {
						t.Errorf("%s left", time.Until(deadline))
					}
					<-ctx.Done()
					return ctx.Err()
				})
			}()
		}
		began := time.Now()
		synctest.Wait()
		require.NoError(t, s.Do(t.Context(), time.Now().Add(time.Hour), func(context.Context) error { return nil }))
		require.Equal(t, 15*time.Second, time.Since(began))
	})
}

// TestGate: evictions wait for cordons, and no longer than 5 s.
func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, s, began := nodedrain.NewGate(), nodedrain.NewSlots(1), time.Now()
		pass := func() time.Duration {
			require.NoError(t, g.Pass(t.Context(), s, func(context.Context) error { return nil }))
			return time.Since(began)
		}
		require.Zero(t, pass())
		first, second := g.Hold(), g.Hold()
		time.AfterFunc(time.Second, first)
		time.AfterFunc(2*time.Second, second)
		require.Equal(t, 2*time.Second, pass())
		first()
		require.Equal(t, 2*time.Second, pass(), "released twice")
		defer g.Hold()()
		require.Equal(t, 7*time.Second, pass(), "a node that cannot be cordoned")
	})
}

// TestGateCloses: one that waits for a slot behind others is held by a late cordon.
func TestGateCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, s := nodedrain.NewGate(), nodedrain.NewSlots(1)
		busy := make(chan struct{})
		go func() { _ = s.Do(t.Context(), time.Time{}, func(context.Context) error { <-busy; return nil }) }()
		synctest.Wait()
		sent := false
		go func() { _ = g.Pass(t.Context(), s, func(context.Context) error { sent = true; return nil }) }()
		synctest.Wait()
		release := g.Hold()
		close(busy)
		synctest.Wait()
		require.False(t, sent)
		release()
		synctest.Wait()
		require.True(t, sent)
	})
}

// A brokenWatch breaks off each watch after one event.
type brokenWatch struct {
	*drain.Coordinator
	mu     sync.Mutex
	resume []nstance.Seq
}

func (b *brokenWatch) Watch(ctx context.Context, tenant nstance.TenantID, after nstance.Seq) iter.Seq2[nstance.DrainEvent, error] {
	b.mu.Lock()
	b.resume = append(b.resume, after)
	b.mu.Unlock()
	return func(yield func(nstance.DrainEvent, error) bool) {
		for e, err := range b.Coordinator.Watch(ctx, tenant, after) {
			if !yield(e, err) {
				return
			}
			if e.Type != nstance.DrainSnapshot {
				yield(nstance.DrainEvent{}, nstance.Unavailable)
				return
			}
		}
	}
}

// TestWatchResumes: a watch that breaks off resumes where it was, without a node or
// an API server at all: the drain ends at its deadline and is not drained.
func TestWatchResumes(t *testing.T) {
	b := &brokenWatch{Coordinator: drain.New(nil)}
	d, err := nodedrain.New(&rest.Config{Host: "https://127.0.0.1:1"}, b, nil)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	watches := func() int {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.resume)
	}
	for i := range 3 {
		require.Eventually(t, func() bool { return watches() > i }, time.Minute, time.Millisecond)
		require.NoError(t, b.Start(ctx, nstance.Drain{Instance: nstance.InstanceID(fmt.Sprint("web-", i)), Generation: 1, Deadline: time.Now().Add(time.Second), Executor: nstance.ExecutorOperator}))
	}
	failed := map[nstance.InstanceID]nstance.Outcome{}
	for e, err := range b.Coordinator.Watch(ctx, "", 0) {
		require.NoError(t, err)
		if e.Ack != nil {
			failed[e.Drain.Instance] = e.Ack.Outcome
		}
		if len(failed) == 3 {
			break
		}
	}
	require.Equal(t, map[nstance.InstanceID]nstance.Outcome{"web-0": "failed", "web-1": "failed", "web-2": "failed"}, failed)
	stop()
	require.NoError(t, <-ended)
	require.Zero(t, b.resume[0])
	require.GreaterOrEqual(t, len(b.resume), 3)
	require.IsIncreasing(t, b.resume)
}

// TestTightensOnly: a deadline never moves away, whatever a coordinator says, and only
// the tenant's drains are asked for.
func TestTightensOnly(t *testing.T) {
	now := time.Now()
	s := &script{acks: make(chan nstance.Ack, 1), tenants: make(chan nstance.TenantID, 1)}
	for i, left := range []time.Duration{time.Second, time.Hour} {
		s.events = append(s.events, nstance.DrainEvent{Seq: nstance.Seq(i + 1), Type: nstance.DrainRequested, Drain: nstance.Drain{
			Instance: "web-1", Generation: 1, Deadline: now.Add(left), Executor: nstance.ExecutorOperator}})
	}
	d, err := nodedrain.New(&rest.Config{Host: "https://127.0.0.1:1"}, s, &nodedrain.Options{Tenant: "blue"})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	require.Equal(t, nstance.TenantID("blue"), <-s.tenants)
	select {
	case ack := <-s.acks:
		require.Equal(t, nstance.OutcomeFailed, ack.Outcome)
	case <-time.After(time.Minute):
		t.Error("the deadline has moved away")
	}
	stop()
	require.NoError(t, <-ended)
}

// A script is a coordinator whose watches yield events that were written before.
type script struct {
	nstance.DrainCoordinator
	events  []nstance.DrainEvent
	acks    chan nstance.Ack
	tenants chan nstance.TenantID
}

func (s *script) Watch(ctx context.Context, tenant nstance.TenantID, _ nstance.Seq) iter.Seq2[nstance.DrainEvent, error] {
	s.tenants <- tenant
	return func(yield func(nstance.DrainEvent, error) bool) {
		for _, e := range s.events {
			if !yield(e, nil) {
				return
			}
		}
		<-ctx.Done()
		yield(nstance.DrainEvent{}, ctx.Err())
	}
}

func (s *script) Acknowledge(_ context.Context, a nstance.Ack) error {
	s.acks <- a
	return nil
}
