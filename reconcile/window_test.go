package reconcile_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
)

// A slowCreate takes its time for a create, and loses the answer.
type slowCreate struct {
	nstance.Provider
	takes time.Duration
	sent  chan<- nstance.InstanceID
}

func (s slowCreate) Create(ctx context.Context, spec nstance.MachineSpec) (nstance.Machine, error) {
	s.sent <- spec.ID
	<-time.After(s.takes) // the cloud works on after its caller has given up
	_, _ = s.Provider.Create(context.WithoutCancel(ctx), spec)
	return nstance.Machine{}, nstance.Errorf(nstance.Ambiguous, "the answer is lost")
}

// TestRecordOutlivesItsCreate: a record is what finds the machine of a create
// whose answer was lost. It stays for a consistency window after the call's end.
func TestRecordOutlivesItsCreate(t *testing.T) {
	const took = 29 * time.Second
	slow := func(w *world) <-chan nstance.InstanceID {
		sent := make(chan nstance.InstanceID, 10)
		w.wrap = func(o *office) { o.provider = slowCreate{w.cloud, took, sent} }
		return sent
	}
	o := simcloud.Options{Lag: simcloud.Constant(8 * time.Second)} // within the window of 10 s
	gone := func(w *world, id nstance.InstanceID) {
		w.passes(3 * time.Minute) // less than what an orphan is spared
		require.Positive(w.t, w.cloud.Count(simcloud.OpDelete), "its machine was found")
		require.False(w.t, w.exists(id), "no machine runs on")
		w.agrees(0)
	}
	t.Run("scale-down after the answer was lost", func(t *testing.T) {
		takeover(t, false, o, func(t *testing.T, w *world) {
			sent := slow(w)
			w.lead(wanted(1))
			id := <-sent
			w.passes(10 * time.Second)
			w.want(wanted(0))
			gone(w, id)
		})
	})
	t.Run("the leader changes while the call is under way", func(t *testing.T) {
		takeover(t, true, o, func(t *testing.T, w *world) {
			sent := slow(w)
			w.lead(wanted(1))
			id := <-sent
			w.passes(time.Second)
			w.wrap = nil
			w.stop() // the call goes on
			former := w.done
			w.lead(wanted(0))
			gone(w, id)
			<-former
		})
	})
	t.Run("the cloud does not know its new machine when it is deleted", func(t *testing.T) {
		takeover(t, false, simcloud.Options{}, func(t *testing.T, w *world) {
			w.lead(wanted(1))
			w.passes(time.Second)
			id := w.ids()[0]
			w.cloud.Inject(simcloud.Fault{Op: simcloud.OpDelete, ID: id, Code: nstance.NotFound})
			w.want(wanted(0))
			gone(w, id)
		})
	})
	t.Run("a late internal error is no definite answer", func(t *testing.T) {
		takeover(t, false, o, func(t *testing.T, w *world) {
			w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, When: simcloud.After, Code: nstance.Internal})
			w.lead(wanted(1))
			w.passes(2 * time.Minute)
			w.agrees(1)
			require.Equal(t, 1, w.cloud.Count(simcloud.OpCreate), "it was found, not made again")
			w.blameless()
		})
	})
}

// TestThrottledCreates: that a create was throttled says that it made nothing.
func TestThrottledCreates(t *testing.T) {
	const size = 20
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		w.wrap = func(o *office) {
			o.options = func(opts *reconcile.Options) { opts.Provider = &provider.Options{Rate: 4, Burst: size} }
		}
		w.lead(wanted(size))
		w.passes(2 * time.Minute)
		w.agrees(size)
		gets, lost := w.cloud.Count(simcloud.OpGet), w.ready()
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Times: size, Code: nstance.Throttled})
		for _, id := range lost {
			require.NoError(t, w.cloud.Reclaim(id, 2*time.Minute))
		}
		var made []int // in each second
		for range 20 {
			before := w.cloud.Count(simcloud.OpCreate)
			w.passes(time.Second)
			made = append(made, w.cloud.Count(simcloud.OpCreate)-before)
		}
		require.GreaterOrEqual(t, made[0], size, "none of them waits for a loss of its own")
		require.LessOrEqual(t, made[0], size+4)
		for _, n := range made[1:] {
			require.LessOrEqual(t, n, 4, "repeated at the budget's pace, which has halved: %v", made)
		}
		require.Equal(t, size+size+size, w.cloud.Count(simcloud.OpCreate))
		require.Equal(t, gets, w.cloud.Count(simcloud.OpGet), "nothing is asked for that cannot exist")
		w.passes(2 * time.Minute)
		w.agrees(size)
		require.Equal(t, size, w.count(nstance.EventReplacementRequested, ""), "a repeat is no other request")
		w.blameless()
	})
}

// TestUnavailableCloudHaltsNothing: no machine was made, so nothing is known of
// the definition.
func TestUnavailableCloudHaltsNothing(t *testing.T) {
	for _, down := range [][]simcloud.Op{{simcloud.OpCreate}, {simcloud.OpCreate, simcloud.OpGet, simcloud.OpList}} {
		within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			for _, op := range down {
				w.cloud.Inject(simcloud.Fault{Op: op, Times: -1})
			}
			w.want(redefined(3, "v2"))
			w.passes(35 * time.Minute)
			require.Zero(t, w.count(nstance.EventRolloutHalted, ""))
			require.Zero(t, w.group().Failures)
			require.Zero(t, w.group().BackoffUntil)
			require.Len(t, w.ready(), 3)
			w.cloud.Heal()
			w.passes(10 * time.Minute)
			w.agrees(3)
			require.Zero(t, w.group().Stale, "the rollout went on")
		})
	}
}

// TestUnavailableCloudAndLosses: a loss waits for the cloud only.
func TestUnavailableCloudAndLosses(t *testing.T) {
	within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Times: -1})
		require.NoError(t, w.cloud.Reclaim(w.ready()[0], 2*time.Minute))
		w.passes(35 * time.Minute)
		w.cloud.Heal()
		w.passes(time.Minute)
		w.agrees(3)
		require.Zero(t, w.count(nstance.EventRolloutHalted, ""))
	})
}
