package reconcile_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/drain"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
)

// pooledGroup is a group of three with a warm pool.
func pooledGroup(pool int) nstance.Group {
	g := webGroup(3)
	g.WarmPool = nstance.WarmPool{Size: pool, Mode: nstance.ParkStopped}
	return g
}

// newPooledWorld has a cloud that boots machines in a minute and wakes them in a second.
func newPooledWorld(t *testing.T, g nstance.Group) *world {
	w := newWorld(t, simcloud.Options{
		Boot: simcloud.Delay{Min: time.Minute}, Park: simcloud.Delay{Min: 3 * time.Second}, Wake: simcloud.Delay{Min: time.Second},
	})
	w.startLeader(g)
	w.advance(5 * time.Minute)
	require.Len(t, w.in(nstance.Parked), g.WarmPool.Size)
	require.Equal(t, 3, w.group().Ready)
	return w
}

func (w *world) instance(id nstance.InstanceID) reconcile.InstanceView {
	r, _ := w.leader()
	v, err := r.Instance(id)
	require.NoError(w.t, err)
	return v
}

// lose reclaims a ready member and returns it.
func (w *world) lose(warning time.Duration) nstance.InstanceID {
	lost := w.ready()[0]
	require.NoError(w.t, w.cloud.Reclaim(lost, warning))
	return lost
}

// TestPoolIsFilled: stand-by machines are made on demand and prepared for their mode,
// drained and parked once they were ready, and in none of the numbers of the group.
func TestPoolIsFilled(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newPooledWorld(t, pooledGroup(2))
		defer w.close()
		for _, id := range w.in(nstance.Parked) {
			spec, _ := w.cloud.Spec(id)
			require.Equal(t, nstance.OnDemand, spec.Market, "spot machines cannot be parked")
			require.Equal(t, nstance.ParkStopped, spec.Park)
			require.Equal(t, 1, w.count(nstance.EventReady, id))
			require.Equal(t, 1, w.count(nstance.EventDrainStarted, id), "work may have come meanwhile")
			require.Equal(t, 1, w.count(nstance.EventParked, id))
			v := w.instance(id)
			require.True(t, v.Standby)
			require.NotNil(t, v.Drain, "nothing is to use it while it sleeps")
			mach, err := w.cloud.Get(t.Context(), id)
			require.NoError(t, err)
			require.Equal(t, nstance.StatusStopped, mach.Status)
		}
		g := w.group()
		require.Equal(t, []int{3, 2, 2, 0, 0}, []int{g.Ready, g.Standby, g.Parked, g.Leaving, g.OnDemandMarket})
		asked := func() int {
			return w.cloud.Count(simcloud.OpGet) + w.cloud.Count(simcloud.OpPark) + w.cloud.Count(simcloud.OpWake)
		}
		before := asked()
		w.advance(time.Hour)
		require.Equal(t, before, asked(), "sleeping costs nothing but the lists of all machines")
	})
}

// TestBridge: a lost member is replaced and a stand-by machine woken at the same instant;
// when the replacement is ready, the bridge is drained and parked again.
func TestBridge(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newPooledWorld(t, pooledGroup(1))
		defer w.close()
		bridge := w.in(nstance.Parked)[0]
		gets := w.cloud.Count(simcloud.OpGet)
		w.lose(2 * time.Minute)
		synctest.Wait()
		w.advance(100 * time.Millisecond)
		require.Equal(t, []int{1, gets}, []int{w.cloud.Count(simcloud.OpWake), w.cloud.Count(simcloud.OpGet)}, "waking waits for no other call")
		w.advance(900 * time.Millisecond)
		requested := w.first(nstance.EventReplacementRequested, anyEvent)
		woken := w.first(nstance.EventWakeRequested, func(e nstance.Event) bool { return e.Instance == bridge })
		require.Less(t, woken.Time.Sub(requested.Time).Abs(), 100*time.Millisecond)
		w.advance(10 * time.Second)
		require.Contains(t, w.ready(), bridge, "long before its replacement is ready")
		require.Equal(t, 1, w.cloud.Count(simcloud.OpWake), "until it runs, it is looked at and not woken again")
		v := w.instance(bridge)
		require.False(t, v.WokenAt.IsZero())
		require.Nil(t, v.Drain)
		require.Equal(t, 1, w.group().Standby)
		w.advance(3 * time.Minute)
		require.Equal(t, 3, w.group().Ready)
		require.Equal(t, []nstance.InstanceID{bridge}, w.in(nstance.Parked), "it goes back when its work is done")
		require.Equal(t, 2, w.count(nstance.EventDrainStarted, bridge))
		require.True(t, w.instance(bridge).WokenAt.IsZero())
		require.Len(t, w.cloud.Machines(), 4)
	})
}

func anyEvent(nstance.Event) bool { return true }

// TestBridgesWholeLoss: with fewer stand-by machines than losses each of them is woken, and
// none goes back before the group is whole.
func TestBridgesWholeLoss(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newPooledWorld(t, pooledGroup(2))
		defer w.close()
		for _, id := range w.ready() {
			require.NoError(t, w.cloud.Reclaim(id, 2*time.Minute))
		}
		w.advance(10 * time.Second)
		require.Empty(t, w.in(nstance.Parked))
		require.Equal(t, 3, w.count(nstance.EventReplacementRequested, ""), "stand-by machines replace nothing")
		w.advance(4 * time.Minute)
		require.Len(t, w.in(nstance.Parked), 2)
		require.Equal(t, 3, w.group().Ready)
		require.Len(t, w.cloud.Machines(), 5)
	})
}

// TestPoolSurvivesFailover: whatever a leader was about to do with a stand-by machine, the
// next one finishes, and wakes none for the change alone.
func TestPoolSurvivesFailover(t *testing.T) {
	for name, at := range map[string]struct {
		after time.Duration // since the loss, at least
		want  nstance.State // of the bridge as the leader stops
	}{
		"asleep":          {0, nstance.Parked},
		"waking":          {100 * time.Millisecond, nstance.Waking},
		"bridging":        {20 * time.Second, nstance.Ready},
		"after the whole": {4 * time.Minute, nstance.Parked},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newPooledWorld(t, pooledGroup(1))
				defer w.close()
				bridge := w.in(nstance.Parked)[0]
				if at.after > 0 {
					w.lose(2 * time.Minute)
					w.advance(at.after)
				}
				for end := time.Now().Add(10 * time.Second); w.instance(bridge).State != at.want && time.Now().Before(end); {
					w.advance(100 * time.Millisecond)
				}
				require.Equal(t, at.want, w.instance(bridge).State)
				wakes := w.count(nstance.EventWakeRequested, bridge)
				w.stopLeader()
				w.startLeader(pooledGroup(1))
				w.advance(15 * time.Second)
				if at.want == nstance.Waking || at.want == nstance.Ready {
					require.Contains(t, w.ready(), bridge)
				}
				w.advance(6 * time.Minute)
				require.Equal(t, []nstance.InstanceID{bridge}, w.in(nstance.Parked))
				require.Equal(t, wakes, w.count(nstance.EventWakeRequested, bridge), "a change of leader is no loss")
				require.Equal(t, 3, w.group().Ready)
				require.Len(t, w.cloud.Machines(), 4)
			})
		})
	}
}

// TestFailsToWake: while a stand-by machine does not start, the group is replaced as if
// there was none, another one is woken, and it sleeps on when it is not needed any more.
func TestFailsToWake(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newPooledWorld(t, pooledGroup(2))
		defer w.close()
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpWake, Code: nstance.Capacity, Times: 1})
		w.lose(2 * time.Minute)
		w.advance(30 * time.Second)
		require.Equal(t, 1, w.count(nstance.EventAlarm, ""))
		require.Len(t, w.in(nstance.Waking), 0)
		require.NotEmpty(t, w.in(nstance.Ready))
		w.advance(5 * time.Minute)
		require.Equal(t, 3, w.group().Ready)
		require.Len(t, w.in(nstance.Parked), 2)
		require.Zero(t, w.count(nstance.EventMachineGone, ""))
		require.Len(t, w.cloud.Machines(), 5, "nothing was deleted because of an error")
	})
}

// TestSleepsOn: one that does not wake while it is needed has a drain again, and wakes the
// next time.
func TestSleepsOn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newPooledWorld(t, pooledGroup(1))
		defer w.close()
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpWake, Code: nstance.Capacity, Times: -1})
		w.lose(2 * time.Minute)
		w.advance(10 * time.Minute)
		asleep := w.in(nstance.Parked)
		require.Len(t, asleep, 1)
		require.NotNil(t, w.instance(asleep[0]).Drain, "nothing is to use it while it sleeps")
		w.cloud.ClearFaults()
		w.lose(2 * time.Minute)
		w.advance(30 * time.Second)
		require.Contains(t, w.ready(), asleep[0])
		require.Nil(t, w.instance(asleep[0]).Drain)
		w.advance(10 * time.Minute)
		require.Equal(t, asleep, w.in(nstance.Parked))
	})
}

// TestCannotBeParked: an alarm says so, and the machine, which runs, bridges a loss.
func TestCannotBeParked(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{Boot: simcloud.Delay{Min: time.Minute}})
		defer w.close()
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpPark, Code: nstance.Invalid, Times: -1})
		w.startLeader(pooledGroup(1))
		for w.cloud.Count(simcloud.OpPark) == 0 {
			w.advance(time.Second)
		}
		w.advance(time.Minute)
		require.LessOrEqual(t, w.cloud.Count(simcloud.OpPark), 15, "with backoff")
		w.advance(10 * time.Minute)
		stuck := w.in(nstance.Parking)
		require.Len(t, stuck, 1)
		require.Equal(t, 1, w.count(nstance.EventAlarm, stuck[0]))
		w.lose(2 * time.Minute)
		w.advance(30 * time.Second)
		require.Contains(t, w.ready(), stuck[0])
		w.advance(10 * time.Minute)
		require.Equal(t, stuck, w.in(nstance.Parking), "it is tried again")
	})
}

// TestCannotBeParkedAndIsTooMany: what cannot be parked leaves with its pool, and its group.
func TestCannotBeParkedAndIsTooMany(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{Boot: simcloud.Delay{Min: time.Minute}})
		defer w.close()
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpPark, Code: nstance.Invalid, Times: -1})
		g := pooledGroup(2)
		w.startLeader(g)
		w.advance(10 * time.Minute)
		require.Len(t, w.in(nstance.Parking), 2)
		r, _ := w.leader()
		g.WarmPool.Size = 1
		require.NoError(t, r.Desire([]nstance.Group{g}))
		w.advance(5 * time.Minute)
		stuck := w.in(nstance.Parking)
		require.Len(t, stuck, 1)
		require.Len(t, w.cloud.Machines(), 4)

		g.WarmPool.Mode = nstance.ParkHibernated
		require.NoError(t, r.Desire([]nstance.Group{g}))
		w.advance(10 * time.Minute)
		require.Len(t, w.in(nstance.Parking), 1)
		require.NotEqual(t, stuck, w.in(nstance.Parking), "it is made anew in the other mode")

		require.NoError(t, r.Remove(web))
		w.advance(5 * time.Minute)
		require.Empty(t, w.cloud.Machines())
		require.Equal(t, 1, w.count(nstance.EventGroupRemoved, ""))
	})
}

// TestWakesLate: the launch timeout of a machine that is woken begins when it runs, however
// long the cloud had no room for it.
func TestWakesLate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newPooledWorld(t, pooledGroup(1))
		defer w.close()
		bridge := w.in(nstance.Parked)[0]
		shortage := simcloud.Fault{Op: simcloud.OpCreate, Code: nstance.Capacity, Times: -1}
		w.cloud.Inject(shortage)
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpWake, Code: nstance.Capacity, Times: -1})
		w.lose(2 * time.Minute)
		w.setAgentSilent(bridge, true)
		w.advance(30 * time.Minute)
		w.cloud.ClearFaults()
		w.cloud.Inject(shortage)
		for range 300 {
			if w.advance(time.Second); w.count(nstance.EventWoken, bridge) > 0 {
				break
			}
		}
		w.advance(20 * time.Second)
		r, _ := w.leader()
		require.True(t, w.register(t.Context(), r, bridge)) // the test stands in for its agent
		r.Observe(nstance.Reported{Report: nstance.Report{InstanceID: bridge, Timestamp: time.Now(), CanDrain: true}})
		w.advance(time.Minute)
		require.Contains(t, w.ready(), bridge)
		require.Zero(t, w.count(nstance.EventCreateFailed, bridge))
	})
}

// TestSilentAfterWaking: a machine that runs and does not report within its launch timeout
// is deleted, and another one made.
func TestSilentAfterWaking(t *testing.T) {
	bubble(t, func(t *testing.T) {
		g := pooledGroup(1)
		w := newPooledWorld(t, g)
		defer w.close()
		bridge := w.in(nstance.Parked)[0]
		w.mu.Lock()
		w.broken[bridge] = true
		w.mu.Unlock()
		w.lose(2 * time.Minute)
		w.advance(30 * time.Minute)
		require.Equal(t, 1, w.count(nstance.EventDeleted, bridge))
		require.Len(t, w.in(nstance.Parked), 1)
		require.Equal(t, 3, w.group().Ready)
		require.Len(t, w.cloud.Machines(), 4)
	})
}

// TestSilentAfterWakingAndFailover: the next leader does not wait for such a machine either.
func TestSilentAfterWakingAndFailover(t *testing.T) {
	bubble(t, func(t *testing.T) {
		g := pooledGroup(1)
		w := newPooledWorld(t, g)
		defer w.close()
		bridge := w.in(nstance.Parked)[0]
		w.mu.Lock()
		w.broken[bridge] = true
		w.mu.Unlock()
		w.lose(2 * time.Minute)
		w.advance(10 * time.Second)
		w.stopLeader()
		w.advance(20 * time.Minute)
		w.startLeader(g)
		w.advance(30 * time.Minute)
		require.Equal(t, 1, w.count(nstance.EventDeleted, bridge))
		require.Len(t, w.in(nstance.Parked), 1)
		require.Len(t, w.cloud.Machines(), 4)
	})
}

// TestParkedMachineIsGone: a stand-by machine that ends while it sleeps is made anew.
func TestParkedMachineIsGone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newPooledWorld(t, pooledGroup(1))
		defer w.close()
		gone := w.in(nstance.Parked)[0]
		require.NoError(t, w.cloud.Kill(gone))
		w.advance(15 * time.Minute)
		require.Equal(t, 1, w.count(nstance.EventDeleted, gone))
		require.Len(t, w.in(nstance.Parked), 1)
		require.Len(t, w.cloud.Machines(), 4)
	})
}

// TestGoneAsItIsWoken: when a stand-by machine turns out to be gone as it is woken, another
// one is woken at once.
func TestGoneAsItIsWoken(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newPooledWorld(t, pooledGroup(2))
		defer w.close()
		for len(w.in(nstance.Parked)) == 2 {
			gone := w.in(nstance.Parked)[0]
			require.NoError(t, w.cloud.Kill(gone))
			w.lose(2 * time.Minute)
			w.advance(5 * time.Second)
		}
		require.NotEmpty(t, w.in(nstance.Ready))
		require.Zero(t, w.count(nstance.EventAlarm, ""))
		w.advance(20 * time.Minute)
		require.Len(t, w.in(nstance.Parked), 2)
		require.Equal(t, 3, w.group().Ready)
		require.Len(t, w.cloud.Machines(), 5)
	})
}

// TestPoolIsRefreshed: a new definition and an old age make stand-by machines anew, one at
// a time.
func TestPoolIsRefreshed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		g := pooledGroup(2)
		g.WarmPool.MaxAge = 24 * time.Hour
		w := newPooledWorld(t, g)
		defer w.close()
		before := w.in(nstance.Parked)
		g.Definition.UserData.Content = "v2"
		g.Definition.Track = []nstance.Tracked{nstance.TrackUserData}
		r, _ := w.leader()
		require.NoError(t, r.Desire([]nstance.Group{g}))
		for range 60 {
			w.advance(30 * time.Second)
			require.GreaterOrEqual(t, w.group().Parked, 1, "never both at once")
		}
		fresh := w.in(nstance.Parked)
		require.Len(t, fresh, 2)
		require.NotContains(t, fresh, before[0])
		require.NotContains(t, fresh, before[1])
		w.advance(25 * time.Hour)
		require.Len(t, w.in(nstance.Parked), 2)
		require.NotContains(t, w.in(nstance.Parked), fresh[0], "older than max_age")
		for id, want := range map[nstance.InstanceID]string{before[0]: "rollout: the group's definition changed", fresh[0]: "rollout: older than warm_pool.max_age"} {
			require.Equal(t, want, w.first(nstance.EventDeleteRequested, func(e nstance.Event) bool { return e.Instance == id }).Reason)
		}
		require.Len(t, w.cloud.Machines(), 5)
	})
}

// TestPoolEnds: what is beyond the size of the pool is deleted, and all of it with its group.
func TestPoolEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newPooledWorld(t, pooledGroup(3))
		defer w.close()
		r, _ := w.leader()
		require.NoError(t, r.Desire([]nstance.Group{pooledGroup(1)}))
		w.advance(2 * time.Minute)
		require.Len(t, w.in(nstance.Parked), 1)
		require.Len(t, w.cloud.Machines(), 4)
		require.NoError(t, r.Remove(web))
		w.advance(2 * time.Minute)
		require.Empty(t, w.cloud.Machines())
		require.Equal(t, 1, w.count(nstance.EventGroupRemoved, ""))
	})
}

// TestPoolWithoutReturn: a stand-by machine that was used is deleted, and another one made.
func TestPoolWithoutReturn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		g := pooledGroup(1)
		g.WarmPool.NoReturn = true
		w := newPooledWorld(t, g)
		defer w.close()
		used := w.in(nstance.Parked)[0]
		w.lose(2 * time.Minute)
		w.advance(8 * time.Minute)
		require.Equal(t, 1, w.count(nstance.EventDeleted, used))
		require.Len(t, w.in(nstance.Parked), 1)
		require.Len(t, w.cloud.Machines(), 4)
	})
}

// TestClaims: a stand-by machine runs for a node of others until it is released or its time
// is over; claims are durable.
func TestClaims(t *testing.T) {
	bubble(t, func(t *testing.T) {
		g := pooledGroup(2)
		w := newPooledWorld(t, g)
		defer w.close()
		claim := func(node string, d time.Duration) (reconcile.Claim, bool) {
			r, _ := w.leader()
			c, known, err := r.Admin().ClaimStandby(t.Context(), web, reconcile.Claim{Node: node, EventID: "e1", Until: time.Now().Add(d)})
			require.NoError(t, err)
			return c, known
		}
		_, known := claim("n1", time.Hour)
		require.False(t, known)
		_, known = claim("n1", time.Minute)
		require.True(t, known, "a node has one claim")
		w.advance(20 * time.Second)
		require.Len(t, w.in(nstance.Parked), 1)
		w.stopLeader()
		w.startLeader(g)
		w.advance(2 * time.Minute)
		require.Len(t, w.in(nstance.Parked), 1, "the claim is durable")
		require.Len(t, w.group().Claims, 1)
		claim("n2", 10*time.Minute)
		w.advance(20 * time.Second)
		require.Empty(t, w.in(nstance.Parked))
		r, _ := w.leader()
		known, err := r.Admin().ReleaseStandby(t.Context(), web, "n1")
		require.NoError(t, err)
		require.True(t, known)
		w.advance(time.Minute)
		require.Len(t, w.in(nstance.Parked), 1)
		w.advance(11 * time.Minute)
		require.Len(t, w.in(nstance.Parked), 2, "its time is over")
		require.Empty(t, w.group().Claims)

		refused := func(c reconcile.Claim) error {
			_, _, err := r.Admin().ClaimStandby(t.Context(), web, c)
			return err
		}
		require.ErrorIs(t, refused(reconcile.Claim{Until: time.Now().Add(time.Hour)}), nstance.Invalid)
		require.ErrorIs(t, refused(reconcile.Claim{Node: "n3"}), nstance.Invalid)
		require.ErrorIs(t, refused(reconcile.Claim{Node: "n3", Until: time.Now().Add(25 * time.Hour)}), nstance.Invalid)
		require.NoError(t, r.Desire([]nstance.Group{webGroup(3)}))
		require.ErrorIs(t, refused(reconcile.Claim{Node: "n3", Until: time.Now().Add(time.Hour)}), nstance.Conflict)
		require.NoError(t, r.Desire([]nstance.Group{g}))
		claim("n4", 10*time.Hour)
		require.NoError(t, r.Remove(web))
		require.ErrorIs(t, refused(reconcile.Claim{Node: "n5", Until: time.Now().Add(time.Hour)}), nstance.Conflict)
		w.advance(20 * time.Minute)
		require.Empty(t, w.cloud.Machines(), "a claim keeps nothing of a group that is removed")
	})
}

// A pausedCancel calls back while a drain is cancelled.
type pausedCancel struct {
	*drain.Coordinator
	meanwhile func(id nstance.InstanceID)
}

func (c *pausedCancel) Cancel(ctx context.Context, id nstance.InstanceID, generation uint64) error {
	c.meanwhile(id)
	return c.Coordinator.Cancel(ctx, id, generation)
}

// TestRenewsAsItWakes: an agent may renew its certificate, which replaces the record, between
// two parts of the step that wakes its machine. The race detector looks at it.
func TestRenewsAsItWakes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newPooledWorld(t, pooledGroup(1))
		defer w.close()
		renewed := make(chan struct{}, 1)
		w.wrap = func(o *leaderEnv) {
			o.options = func(opts *reconcile.Options) {
				opts.Drains = &pausedCancel{opts.Drains.(*drain.Coordinator), func(id nstance.InstanceID) {
					go func() {
						r, _ := w.leader()
						r.Observe(nstance.Registered{ID: id})
						select {
						case renewed <- struct{}{}:
						default: // it is cancelled until the machine runs
						}
					}()
					<-time.After(time.Millisecond) // until it has, without waiting for it: that would be in order
				}}
			}
		}
		w.changeLeader(pooledGroup(1))
		w.lose(2 * time.Minute)
		w.advance(10 * time.Second)
		<-renewed
	})
}

// TestStartedOutside: a parked machine that runs without having been woken is parked
// again.
func TestStartedOutside(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newPooledWorld(t, pooledGroup(1))
		defer w.close()
		id := w.in(nstance.Parked)[0]
		mach, err := w.cloud.Get(context.Background(), id)
		require.NoError(t, err)
		require.NoError(t, w.cloud.Wake(context.Background(), mach))
		w.advance(time.Minute)
		require.Equal(t, []nstance.InstanceID{id}, w.in(nstance.Parked))
		mach, err = w.cloud.Get(context.Background(), id)
		require.NoError(t, err)
		require.Equal(t, nstance.StatusStopped, mach.Status)
		require.Equal(t, 3, w.group().Ready)
	})
}

// TestStandbyThatIsNeverWell: a stand-by machine that registers and never becomes ready is late like
// any other one, and made anew.
func TestStandbyThatIsNeverWell(t *testing.T) {
	bubble(t, func(t *testing.T) {
		g := pooledGroup(0)
		w := newPooledWorld(t, g)
		defer w.close()
		g.WarmPool.Size = 1
		r, _ := w.leader()
		require.NoError(t, r.Desire([]nstance.Group{g}))
		w.advance(10 * time.Second)
		var id nstance.InstanceID
		for _, v := range r.Instances() {
			if v.Standby {
				id = v.ID
			}
		}
		w.silenceAgents(id) // the test stands in for it
		w.advance(time.Minute)
		require.True(t, w.register(t.Context(), r, id))
		for range 36 {
			w.advance(30 * time.Second)
			r.Observe(nstance.Reported{Report: nstance.Report{InstanceID: id, Timestamp: time.Now(), Probes: []nstance.ProbeResult{{Name: "serves"}}}})
		}
		w.advance(10 * time.Minute)
		e := w.first(nstance.EventDeleteRequested, func(e nstance.Event) bool { return e.Instance == id })
		require.Equal(t, "timeout: not ready within its launch timeout", e.Reason)
		require.Len(t, w.in(nstance.Parked), 1)
		require.Len(t, w.cloud.Machines(), 4)
	})
}

// TestParkedIsPublishedOnce: a new leader that finds a parked machine does not publish it again.
func TestParkedIsPublishedOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		w.startLeader(pooled(1, 1))
		w.advance(10 * time.Minute)
		require.Len(t, w.in(nstance.Parked), 1)
		require.Equal(t, 1, w.count(nstance.EventParked, ""))
		w.stopLeader()
		w.startLeader(pooled(1, 1))
		w.advance(10 * time.Minute)
		require.Len(t, w.in(nstance.Parked), 1)
		require.Equal(t, 1, w.count(nstance.EventParked, ""))
	})
}
