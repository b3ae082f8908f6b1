package reconcile_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
)

// slowCreate is a provider whose Create is slow and loses its answer.
type slowCreate struct {
	nstance.Provider
	takes time.Duration
	sent  chan<- nstance.InstanceID
}

func (s slowCreate) Create(ctx context.Context, spec nstance.MachineSpec) (nstance.Machine, error) {
	s.sent <- spec.ID
	<-time.After(s.takes) // the cloud continues after the caller has given up
	_, _ = s.Provider.Create(context.WithoutCancel(ctx), spec)
	return nstance.Machine{}, nstance.Errorf(nstance.Ambiguous, "the answer is lost")
}

// TestRecordOutlivesItsCreate: the record finds the machine of a create whose answer was
// lost. It stays for a consistency window after the call's end.
func TestRecordOutlivesItsCreate(t *testing.T) {
	const took = 29 * time.Second
	slow := func(w *world) <-chan nstance.InstanceID {
		sent := make(chan nstance.InstanceID, 10)
		w.wrap = func(o *leaderEnv) { o.provider = slowCreate{w.cloud, took, sent} }
		return sent
	}
	o := simcloud.Options{Lag: simcloud.Delay{Min: 8 * time.Second}} // within the window of 10 s
	gone := func(w *world, id nstance.InstanceID) {
		w.advance(3 * time.Minute) // less than the orphan delay
		require.Positive(w.t, w.cloud.Count(simcloud.OpDelete), "its machine was found")
		require.False(w.t, w.exists(id), "no machine left")
		w.requireMembers(0)
	}
	t.Run("scale-down after the answer was lost", func(t *testing.T) {
		takeover(t, false, o, func(t *testing.T, w *world) {
			sent := slow(w)
			w.startLeader(webGroup(1))
			id := <-sent
			w.advance(10 * time.Second)
			w.setGroups(webGroup(0))
			gone(w, id)
		})
	})
	t.Run("handover during the call", func(t *testing.T) {
		takeover(t, true, o, func(t *testing.T, w *world) {
			sent := slow(w)
			w.startLeader(webGroup(1))
			id := <-sent
			w.advance(time.Second)
			w.wrap = nil
			w.stop() // the call continues
			former := w.done
			w.startLeader(webGroup(0))
			gone(w, id)
			<-former
		})
	})
	t.Run("the cloud does not show its new machine at the delete", func(t *testing.T) {
		takeover(t, false, simcloud.Options{}, func(t *testing.T, w *world) {
			w.startLeader(webGroup(1))
			w.advance(time.Second)
			id := w.ids()[0]
			w.cloud.Inject(simcloud.Fault{Op: simcloud.OpDelete, ID: id, Code: nstance.NotFound})
			w.setGroups(webGroup(0))
			gone(w, id)
		})
	})
	t.Run("late internal error is not definite", func(t *testing.T) {
		takeover(t, false, o, func(t *testing.T, w *world) {
			w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Lost: true, Code: nstance.Internal})
			w.startLeader(webGroup(1))
			w.advance(2 * time.Minute)
			w.requireMembers(1)
			require.Equal(t, 1, w.cloud.Count(simcloud.OpCreate), "found, not created again")
			w.requireNoFailures()
		})
	})
}

// TestThrottledCreates: a throttled create made nothing.
func TestThrottledCreates(t *testing.T) {
	const size = 20
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		w.wrap = func(o *leaderEnv) {
			o.options = func(opts *reconcile.Options) { opts.Provider = &provider.Options{Rate: 4, Burst: size} }
		}
		w.startLeader(webGroup(size))
		w.advance(2 * time.Minute)
		w.requireMembers(size)
		gets, lost := w.cloud.Count(simcloud.OpGet), w.ready()
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Times: size, Code: nstance.Throttled})
		for _, id := range lost {
			require.NoError(t, w.cloud.Reclaim(id, 2*time.Minute))
		}
		var made []int // in each second
		for range 20 {
			before := w.cloud.Count(simcloud.OpCreate)
			w.advance(time.Second)
			made = append(made, w.cloud.Count(simcloud.OpCreate)-before)
		}
		require.GreaterOrEqual(t, made[0], size, "none waits for another loss")
		require.LessOrEqual(t, made[0], size+4)
		for _, n := range made[1:] {
			require.LessOrEqual(t, n, 4, "repeated at the budget's pace, which has halved: %v", made)
		}
		require.Equal(t, size+size+size, w.cloud.Count(simcloud.OpCreate))
		require.Equal(t, gets, w.cloud.Count(simcloud.OpGet), "no Get for a machine that cannot exist")
		w.advance(2 * time.Minute)
		w.requireMembers(size)
		require.Equal(t, size, w.count(nstance.EventReplacementRequested, ""), "a repeat is no new replacement")
		w.requireNoFailures()
	})
}

// TestThrottledLater: machines that end since the cloud is throttled, after it had accepted
// them, slow the budget down as refused creates do. So many at once are looked for with one
// list, which does not say why.
func TestThrottledLater(t *testing.T) {
	const size = 30
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		w.wrap = func(o *leaderEnv) {
			o.options = func(opts *reconcile.Options) { opts.Provider = &provider.Options{Rate: 1, Burst: 3 * size} }
		}
		w.cloud.FailStarts(simcloud.Pool{}, nstance.LossThrottled, size)
		w.startLeader(webGroup(size))
		var made []int // in each second
		for range 180 {
			before := w.cloud.Count(simcloud.OpCreate)
			w.advance(time.Second)
			made = append(made, w.cloud.Count(simcloud.OpCreate)-before)
		}
		require.Equal(t, size, made[0])
		for seconds := range slices.Chunk(made[1:], 10) {
			sum := 0
			for _, n := range seconds {
				sum += n
			}
			require.LessOrEqual(t, sum, len(seconds)+1, "at the budget's pace, which has none saved: %v", made) // a call may come after the next second has begun
		}
		w.requireMembers(size)
		w.requireNoFailures()
	})
}

// TestUnavailableCloudHaltsNothing: an unavailable cloud is not a failure of the
// definition.
func TestUnavailableCloudHaltsNothing(t *testing.T) {
	for _, down := range [][]simcloud.Op{{simcloud.OpCreate}, {simcloud.OpCreate, simcloud.OpGet, simcloud.OpList}} {
		t.Run(fmt.Sprint(down), func(t *testing.T) {
			withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
				for _, op := range down {
					w.cloud.Inject(simcloud.Fault{Op: op, Times: -1})
				}
				w.setGroups(groupWithUserData(3, "v2"))
				w.advance(35 * time.Minute)
				require.Zero(t, w.count(nstance.EventRolloutHalted, ""))
				require.Zero(t, w.group().Failures)
				require.Zero(t, w.group().BackoffUntil)
				require.Len(t, w.ready(), 3)
				w.cloud.ClearFaults()
				w.advance(10 * time.Minute)
				w.requireMembers(3)
				require.Zero(t, w.group().Stale, "the rollout continued")
			})
		})
	}
}

// TestUnavailableCloudAndLosses: a loss waits only for the cloud.
func TestUnavailableCloudAndLosses(t *testing.T) {
	withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Times: -1})
		require.NoError(t, w.cloud.Reclaim(w.ready()[0], 2*time.Minute))
		w.advance(35 * time.Minute)
		w.cloud.ClearFaults()
		w.advance(time.Minute)
		w.requireMembers(3)
		require.Zero(t, w.count(nstance.EventRolloutHalted, ""))
	})
}
