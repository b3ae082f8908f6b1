package reconcile_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// TestPreservedStandby: a stand-by machine that is kept for inspection neither falls asleep nor
// wakes, although that has begun.
func TestPreservedStandby(t *testing.T) {
	preserve := func(w *world, id nstance.InstanceID) {
		r, _ := w.leader()
		require.NoError(w.t, r.Admin().Preserve(w.ctx, id, time.Now().Add(time.Hour), requester))
	}
	status := func(w *world, id nstance.InstanceID) nstance.MachineStatus {
		mach, err := w.cloud.Get(w.ctx, id)
		require.NoError(w.t, err)
		return mach.Status
	}
	t.Run("on its way to sleep", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			w := newWorld(t, simcloud.Options{Boot: simcloud.Delay{Min: time.Minute}})
			defer w.close()
			w.cloud.Inject(simcloud.Fault{Op: simcloud.OpPark, Code: nstance.Unavailable, Times: -1})
			w.startLeader(pooledGroup(1))
			w.advance(5 * time.Minute)
			kept := w.in(nstance.Parking)[0]
			preserve(w, kept)
			w.cloud.ClearFaults()
			w.advance(5 * time.Minute)
			require.Equal(t, nstance.StatusRunning, status(w, kept))
			w.changeLeader(pooledGroup(1))
			w.advance(30 * time.Minute)
			require.Equal(t, nstance.StatusRunning, status(w, kept), "under the next leader too")
			w.advance(time.Hour)
			require.Equal(t, 1, w.count(nstance.EventDeleted, kept))
			require.Len(t, w.in(nstance.Parked), 1)
		})
	})
	t.Run("as it is woken", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			w := newPooledWorld(t, pooledGroup(1))
			defer w.close()
			kept := w.in(nstance.Parked)[0]
			w.cloud.Inject(simcloud.Fault{Op: simcloud.OpWake, Code: nstance.Unavailable, Times: -1})
			require.NoError(t, w.claimed("n1"))
			w.advance(10 * time.Second)
			require.Equal(t, nstance.Waking, w.instance(kept).State)
			preserve(w, kept)
			w.cloud.ClearFaults()
			w.advance(5 * time.Minute)
			require.Equal(t, nstance.StatusStopped, status(w, kept))
			w.advance(time.Hour)
			require.Equal(t, 1, w.count(nstance.EventDeleted, kept))
		})
	})
}

func TestPreserve(t *testing.T) {
	play := func(t *testing.T, then func(t *testing.T, w *world, id nstance.InstanceID)) {
		bubble(t, func(t *testing.T) {
			w := newWorld(t, simcloud.Options{})
			defer w.close()
			w.startLeader(webGroup(3))
			w.advance(5 * time.Minute)
			id := w.ready()[0]
			r, _ := w.leader()
			require.NoError(t, r.Admin().Preserve(t.Context(), id, time.Now().Add(2*time.Hour), requester))
			w.advance(5 * time.Minute)
			then(t, w, id)
		})
	}
	runs := func(w *world, id nstance.InstanceID) bool {
		_, err := w.cloud.Get(w.ctx, id)
		return err == nil
	}
	t.Run("replaced, and kept until its end", func(t *testing.T) {
		play(t, func(t *testing.T, w *world, id nstance.InstanceID) {
			require.True(t, runs(w, id))
			require.Len(t, w.cloud.Machines(), 4)
			g := w.group()
			require.Equal(t, []int{3, 1, 0, 0}, []int{g.Ready, g.Preserved, g.Booting, g.Leaving})
			w.silenceAgents(id)
			w.advance(time.Hour)
			require.True(t, runs(w, id), "a silent member is kept")
			w.advance(2 * time.Hour)
			require.False(t, runs(w, id))
			require.Len(t, w.cloud.Machines(), 3)
			w.requireMembers(3)
		})
	})
	t.Run("a request to end it is refused with the remedy", func(t *testing.T) {
		play(t, func(t *testing.T, w *world, id nstance.InstanceID) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, drained := w.r.Drain(ctx, id, "")
			for _, err := range []error{drained, w.r.Delete(ctx, id, "", false), w.r.Delete(ctx, id, "", true), w.r.Admin().Internals().Removable(id)} {
				require.ErrorIs(t, err, nstance.Conflict)
				require.ErrorContains(t, err, "nstance-admin instance preserve --end "+string(id))
			}
			w.advance(time.Hour)
			require.True(t, runs(w, id))
			w.advance(2 * time.Hour)
			require.ErrorIs(t, w.r.Admin().Internals().Removable(id), nstance.NotFound)
			gone := w.first(nstance.EventDrainStarted, func(e nstance.Event) bool { return e.Instance == id })
			require.Len(t, gone.Drain.Causes, 1)
			require.Contains(t, gone.Drain.Causes[0].Message, "it was preserved until", "the refused requests left no cause")
		})
	})
	t.Run("an earlier request fails with the remedy", func(t *testing.T) {
		withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			faulty := storagetest.NewFaulty(w.store)
			w.store = faulty
			w.changeLeader(webGroup(3))
			id := w.ready()[0]
			faulty.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Prefix: "instance/", Times: -1}) // no drain can begin
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			asked := make(chan error, 1)
			go func() { asked <- w.r.Delete(ctx, id, "test", false) }()
			w.advance(5 * time.Second)
			faulty.ClearFaults()
			require.NoError(t, w.r.Admin().Preserve(t.Context(), id, time.Now().Add(time.Hour), requester))
			require.ErrorIs(t, <-asked, nstance.Conflict)
		})
	})
	t.Run("kept by a new leader", func(t *testing.T) {
		play(t, func(t *testing.T, w *world, id nstance.InstanceID) {
			w.stopLeader()
			w.startLeader(webGroup(3))
			w.advance(30 * time.Minute)
			require.True(t, runs(w, id))
			require.Len(t, w.cloud.Machines(), 4)
		})
	})
	t.Run("a smaller group drains others", func(t *testing.T) {
		play(t, func(t *testing.T, w *world, id nstance.InstanceID) {
			r, _ := w.leader()
			r.Observe(nstance.Desired{Groups: []nstance.Group{webGroup(0)}})
			w.advance(30 * time.Minute)
			require.True(t, runs(w, id))
			require.Len(t, w.cloud.Machines(), 1)
		})
	})
	t.Run("a reclaimed machine is gone", func(t *testing.T) {
		play(t, func(t *testing.T, w *world, id nstance.InstanceID) {
			require.NoError(t, w.cloud.Kill(id))
			w.advance(10 * time.Minute)
			r, _ := w.leader()
			_, err := r.Instance(id)
			require.ErrorIs(t, err, nstance.NotFound)
			w.requireMembers(3)
		})
	})
	t.Run("drained when ended early", func(t *testing.T) {
		play(t, func(t *testing.T, w *world, id nstance.InstanceID) {
			r, _ := w.leader()
			require.NoError(t, r.Admin().Preserve(t.Context(), id, time.Now(), requester))
			w.advance(10 * time.Minute)
			require.False(t, runs(w, id))
			require.Equal(t, 1, w.count(nstance.EventDrainAcknowledged, id))
			require.ErrorIs(t, r.Admin().Preserve(t.Context(), id, time.Now().Add(time.Hour), requester), nstance.NotFound)
		})
	})
	t.Run("kept past its launch timeout", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			w := newWorld(t, simcloud.Options{})
			defer w.close()
			w.failUserData("v1")
			w.startLeader(webGroup(1))
			w.advance(time.Minute)
			id := w.cloud.Machines()[0].ID
			require.NoError(t, w.r.Admin().Preserve(t.Context(), id, time.Now().Add(2*time.Hour), requester))
			w.failUserData("")
			w.advance(time.Hour) // both of its timeouts have passed
			require.True(t, runs(w, id))
			g := w.group()
			require.Equal(t, []int{1, 1, 0}, []int{g.Ready, g.Preserved, g.Booting})
			require.Zero(t, w.count(nstance.EventCreateFailed, id))
			w.changeLeader(webGroup(1))
			w.advance(30 * time.Minute)
			require.True(t, runs(w, id), "nor deleted by the next leader")
			w.advance(time.Hour)
			require.False(t, runs(w, id))
			w.requireMembers(1)
		})
	})
	t.Run("a draining instance can be preserved", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			w := newWorld(t, simcloud.Options{})
			defer w.close()
			w.slowDrain = true
			w.startLeader(webGroup(3))
			w.advance(5 * time.Minute)
			id := w.ready()[0]
			r, _ := w.leader()
			_, err := r.Drain(t.Context(), id, "test")
			require.NoError(t, err)
			require.NoError(t, r.Admin().Preserve(t.Context(), id, time.Now().Add(time.Hour), requester))
			w.advance(30 * time.Minute)
			require.True(t, runs(w, id), "kept past its drain deadline")
			w.advance(time.Hour)
			require.False(t, runs(w, id))
		})
	})
}

// TestServerPause: silence while this process was stopped does not count against a
// member.
func TestServerPause(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var skipped atomic.Int64
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		w.wrap = func(o *leaderEnv) {
			o.options = func(ro *reconcile.Options) {
				ro.Now = func() time.Time { return time.Now().Add(time.Duration(skipped.Load())) }
			}
		}
		w.startLeader(webGroup(1))
		w.advance(5 * time.Minute)
		id := w.ready()[0]
		w.silenceAgents(id)
		w.advance(time.Second)
		skipped.Store(int64(10 * time.Minute)) // as if the process had been stopped
		w.advance(30 * time.Second)
		require.Zero(t, w.count(nstance.EventUnhealthy, ""))
		require.Len(t, w.ready(), 1)
		w.advance(10 * time.Minute)
		require.NotContains(t, w.ready(), id, "afterwards the normal limit applies")
	})
}

// TestOverlappingPreserve: of requests that overlap each may be refused, be lost, or have an
// answer that is lost. What the record says then is in force, and a new leader agrees.
func TestOverlappingPreserve(t *testing.T) {
	modes := map[string]*storagetest.Fault{
		"accepted": nil, "refused": {Mode: storagetest.Refuse, Err: nstance.Errorf(nstance.Denied, "no")},
		"answer lost": {Mode: storagetest.LoseAnswer, Err: nstance.Errorf(nstance.Ambiguous, "no answer")},
		"call lost":   {Mode: storagetest.Refuse, Err: nstance.Errorf(nstance.Ambiguous, "no answer")},
	}
	ends := map[string][2]time.Duration{"longer": {time.Hour, 2 * time.Hour}, "shorter": {2 * time.Hour, time.Hour}, "ended": {2 * time.Hour, -time.Second}}
	for first, fault := range modes {
		for second, after := range modes {
			for name, end := range ends {
				t.Run(first+", then "+name+", "+second, func(t *testing.T) {
					withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
						faulty := storagetest.NewFaulty(w.store)
						w.store = faulty
						w.changeLeader(webGroup(3))
						id := w.ready()[0]
						gate := make(chan struct{})
						for i, f := range []*storagetest.Fault{fault, after} {
							hit := storagetest.Fault{Pass: true}
							if f != nil {
								hit = *f
							}
							hit.Op, hit.Prefix = storagetest.PutIfMatch, "instance/"
							if i == 0 {
								hit.Do = func() { <-gate }
							} else {
								hit.Do = func() {}
							}
							faulty.Inject(hit)
						}
						errs := make([]error, 2)
						var wg sync.WaitGroup
						now := time.Now()
						for i := range errs {
							wg.Go(func() { errs[i] = w.r.Admin().Preserve(t.Context(), id, now.Add(end[i]), requester) })
							w.advance(10 * time.Millisecond)
						}
						require.True(t, w.instance(id).Preserved, "the first is being written")
						close(gate)
						wg.Wait()
						w.advance(time.Second)
						rec, stands := w.r.Admin().Internals().Records().Get(id)
						if errs[1] == nil && stands {
							require.True(t, rec.Preserve.Until.Equal(now.Add(end[1])), "what was acknowledged last")
						}
						kept := stands && rec.Preserve != nil && time.Now().Before(rec.Preserve.Until)
						require.Equal(t, kept, stands && w.instance(id).Preserved)
						w.r.Observe(nstance.Desired{Groups: []nstance.Group{webGroup(0)}})
						w.advance(30 * time.Minute)
						require.Equal(t, kept, w.exists(id), "%v", errs)
					})
				})
			}
		}
	}
}

// TestPreserveOutlivesItsCaller: what a caller has asked for and not waited for is in force, or
// did not happen.
func TestPreserveOutlivesItsCaller(t *testing.T) {
	withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		faulty := storagetest.NewFaulty(w.store)
		w.store = faulty
		w.changeLeader(webGroup(3))
		id := w.ready()[0]
		faulty.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Prefix: "instance/", Pass: true, Do: func() { <-time.After(time.Second) }})
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		require.NoError(t, w.r.Admin().Preserve(ctx, id, time.Now().Add(time.Hour), requester))
		w.advance(time.Second)
		require.True(t, w.instance(id).Preserved)
	})
}

// TestEndOfPreservationRefused: a request to keep an instance until now, which storage refuses, has
// changed nothing, also while it was being written.
func TestEndOfPreservationRefused(t *testing.T) {
	withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		faulty := storagetest.NewFaulty(w.store)
		w.store = faulty
		w.changeLeader(webGroup(3))
		before := w.ready()
		faulty.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Prefix: "instance/", Err: nstance.Errorf(nstance.Denied, "no"), Do: func() {
			w.r.Observe(nstance.Desired{Groups: []nstance.Group{webGroup(3)}})
			require.NoError(t, w.r.Admin().Internals().Reread(w.ctx))
			w.reportsHook(before[1]) // has the group planned
			<-time.After(10 * time.Second)
		}})
		require.ErrorIs(t, w.r.Admin().Preserve(t.Context(), before[0], time.Now(), requester), nstance.Denied)
		w.advance(5 * time.Minute)
		require.Equal(t, before, w.ready())
		require.Zero(t, w.count(nstance.EventDrainStarted, ""))
	})
}
