package reconcile_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/attention"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/test/wallclock"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/reconcile/plan"
	"github.com/nstance-go/nstance/storage"
)

// clocks are the time sources of a leader.
type clocks struct {
	stepped atomic.Int64 // steps of the wall clock, forward
	slept   atomic.Int64 // sleep of the machine, by a clock that counts it
	storage atomic.Int64 // storage's clock ahead of true time
	silent  atomic.Bool  // storage no longer answers
	read    atomic.Pointer[storage.Reading]
	undated bool // storage has no clock
	blind   bool // no clock counts sleep
}

func (c *clocks) now() time.Time { return wallclock.Ahead(time.Duration(c.stepped.Load())) }

// Date implements storage.Dated with an answer that is 200 ms old.
func (c *clocks) Date() (storage.Reading, bool) {
	if !c.silent.Load() {
		local := time.Now().Add(-200 * time.Millisecond)
		remote := local.Add(time.Duration(c.storage.Load()) - 100*time.Millisecond).UTC()
		c.read.Store(&storage.Reading{Local: local, Remote: remote.Truncate(time.Second), Within: 1100 * time.Millisecond})
	}
	r := c.read.Load()
	if r == nil {
		return storage.Reading{}, false
	}
	return *r, true
}

func (c *clocks) configure(o *reconcile.Options) {
	began := time.Now()
	o.Now = c.now
	if !c.undated {
		o.Dated = c
	}
	if !c.blind {
		o.Elapsed = func() time.Duration { return time.Since(began) + time.Duration(c.slept.Load()) }
	}
}

// withClocks is withGroup under a leader that uses the clocks.
func withClocks(t *testing.T, size int, c *clocks, test func(t *testing.T, w *world)) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		w.wrap = func(o *leaderEnv) { o.options = c.configure }
		defer w.close()
		w.startLeader(webGroup(size))
		w.advance(10 * time.Minute)
		test(t, w)
	})
}

// setSlowDrain makes agents withhold or resume drain acknowledgements.
func (w *world) setSlowDrain(slow bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.slowDrain = slow
}

// hasClockHold reports whether the leader holds actions that depend on its clock.
func (w *world) hasClockHold() bool {
	r, _ := w.leader()
	_, held := clockHold(r)
	return held
}

func clockHold(r *reconcile.Reconciler) (h reconcile.HoldView, held bool) {
	for _, h := range r.Admin().Holds() {
		if h.Kind == plan.HoldClock {
			return h, true
		}
	}
	return h, false
}

func TestClockVerdict(t *testing.T) {
	type change func(c *clocks)
	step := func(d time.Duration) change { return func(c *clocks) { c.stepped.Add(int64(d)) } }
	sleep := func(d time.Duration) change { return func(c *clocks) { c.slept.Add(int64(d)) } }
	wrong := func(d time.Duration) change { return func(c *clocks) { c.storage.Add(int64(d)) } }
	undated := func(c *clocks) { c.undated = true }
	blind := func(c *clocks) { c.blind = true }
	silent := func(c *clocks) { c.silent.Store(true) }
	for name, k := range map[string]struct {
		before, after []change
		want          string // part of the reason; empty: trusted
	}{
		"right":                               {nil, nil, ""},
		"a little ahead":                      {nil, []change{step(29 * time.Second)}, ""},
		"a little behind":                     {nil, []change{step(-29 * time.Second)}, ""},
		"ahead":                               {nil, []change{step(33 * time.Second)}, "ahead of storage's"},
		"behind":                              {nil, []change{step(-33 * time.Second)}, "32s behind storage's"},
		"wrong from the beginning":            {[]change{step(time.Hour)}, nil, "1h0m0s ahead of storage's"},
		"storage's clock is wrong":            {nil, []change{wrong(time.Hour)}, "behind storage's"},
		"set right":                           {[]change{step(-time.Hour)}, []change{step(time.Hour)}, ""},
		"set, and storage silent":             {nil, []change{silent, step(time.Hour)}, "ahead of storage's"},
		"storage has not answered yet":        {[]change{silent}, nil, ""},
		"storage has not answered, clock set": {[]change{silent}, []change{step(time.Hour)}, "was set 1h0m0s forward"},
		"the machine slept":                   {nil, []change{silent, sleep(time.Hour), step(time.Hour)}, ""},
		"no clock to compare with":            {[]change{undated}, nil, ""},
		"set forward":                         {[]change{undated}, []change{step(31 * time.Second)}, "was set 31s forward"},
		"set back":                            {[]change{undated}, []change{step(-31 * time.Second)}, "was set 31s back"},
		"set a little":                        {[]change{undated}, []change{step(29 * time.Second)}, ""},
		"set, and back":                       {[]change{undated}, []change{step(time.Hour), step(-time.Hour)}, ""},
		"the machine slept, no storage clock": {[]change{undated}, []change{sleep(time.Hour), step(time.Hour)}, ""},
		"no clock that counts sleep":          {[]change{undated, blind}, []change{step(time.Hour)}, ""},
		"no clock that counts sleep, but a storage clock": {[]change{blind}, []change{step(time.Hour)}, "ahead of storage's"},
	} {
		t.Run(name, func(t *testing.T) {
			c := &clocks{}
			for _, f := range k.before {
				f(c)
			}
			withClocks(t, 0, c, func(t *testing.T, w *world) {
				for _, f := range k.after {
					f(c)
					w.advance(6 * time.Second)
				}
				w.advance(45 * time.Second)
				r, _ := w.leader()
				h, held := clockHold(r)
				require.Equal(t, k.want != "", held, h.Reason)
				require.Contains(t, h.Reason, k.want)
			})
		})
	}
	t.Run("many small steps", func(t *testing.T) {
		c := &clocks{undated: true}
		withClocks(t, 0, c, func(t *testing.T, w *world) {
			for range 10 {
				step(20 * time.Second)(c)
				w.advance(time.Minute)
				require.False(t, w.hasClockHold())
			}
		})
	})
	t.Run("answer from before the term", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			c := &clocks{}
			c.Date()
			c.silent.Store(true)
			w := newWorld(t, simcloud.Options{})
			defer w.close()
			w.wrap = func(o *leaderEnv) { o.options = c.configure }
			w.advance(10 * time.Minute)
			w.startLeader()
			w.advance(10 * time.Second)
			require.False(t, w.hasClockHold())
			step(time.Minute)(c)
			w.advance(10 * time.Second)
			require.True(t, w.hasClockHold())
		})
	})
	t.Run("recovery takes a while: storage servers may disagree", func(t *testing.T) {
		c := &clocks{}
		withClocks(t, 0, c, func(t *testing.T, w *world) {
			for range 20 {
				wrong(time.Hour)(c)
				w.advance(11 * time.Second)
				require.True(t, w.hasClockHold())
				wrong(-time.Hour)(c)
				w.advance(19 * time.Second)
				require.True(t, w.hasClockHold())
			}
			w.advance(20 * time.Second)
			require.False(t, w.hasClockHold())
			require.Equal(t, 1, w.count(eventtype.ClockWrong, ""))
			require.Equal(t, 1, w.count(eventtype.ClockRight, ""))
		})
	})
}

func TestWrongClockIsReported(t *testing.T) {
	c := &clocks{}
	withClocks(t, 1, c, func(t *testing.T, w *world) {
		r, _ := w.leader()
		require.Empty(t, w.group().Holds)
		require.Empty(t, attention.Problems(r.Admin().Attention()))
		set := time.Now()
		c.storage.Store(int64(-time.Hour))
		w.advance(time.Minute)
		h := w.hold(plan.HoldClock)
		require.Equal(t, "this server's clock is 1h0m0s ahead of storage's: set it right, by NTP", h.Reason)
		require.WithinRange(t, h.Since, set, set.Add(5*time.Second))
		require.Zero(t, h.Until)
		shard, held := clockHold(r)
		require.True(t, held)
		require.Equal(t, h, shard)
		require.Len(t, attention.Problems(r.Admin().Attention()), 1)
		require.Contains(t, attention.Problems(r.Admin().Attention())[0], h.Reason)
		event := w.first(eventtype.ClockWrong, func(nstance.Event) bool { return true })
		require.True(t, strings.HasPrefix(event.Reason, h.Reason), event.Reason)
		require.Empty(t, event.Group)
		w.advance(time.Hour)
		require.Equal(t, h.Since, w.hold(plan.HoldClock).Since, "the same hold continues")
		require.Equal(t, 1, w.count(eventtype.ClockWrong, ""), "reported once")
		c.storage.Store(0)
		w.advance(40 * time.Second)
		require.Empty(t, w.group().Holds)
		require.Empty(t, attention.Problems(r.Admin().Attention()))
		require.Equal(t, 1, w.count(eventtype.ClockRight, ""))
	})
}

func TestWrongClockHoldsActions(t *testing.T) {
	drained := func(w *world) nstance.InstanceID { // without acknowledgement
		w.setSlowDrain(true)
		id := w.ready()[0]
		r, _ := w.leader()
		_, err := r.Drain(w.ctx, id, "by hand")
		require.NoError(w.t, err)
		return id
	}
	t.Run("deadline passed by a step only", func(t *testing.T) {
		c := &clocks{}
		withClocks(t, 3, c, func(t *testing.T, w *world) {
			id := drained(w)
			began := time.Now()
			w.advance(time.Minute)
			c.stepped.Store(int64(time.Hour))
			w.advance(2 * time.Minute)
			require.True(t, w.exists(id), "its deadline has not truly passed")
			require.Zero(t, w.count(nstance.EventDrainCutShort, ""))
			require.True(t, w.hasClockHold())
			require.Len(t, w.ready(), 3, "replaced")
			c.stepped.Store(0)
			w.advance(5*time.Minute - time.Since(began) - time.Second)
			require.True(t, w.exists(id))
			w.advance(time.Minute)
			require.False(t, w.exists(id))
			require.Equal(t, 1, w.count(nstance.EventDrainCutShort, id))
		})
	})
	t.Run("deadline truly passed: held until the clock is right", func(t *testing.T) {
		c := &clocks{}
		withClocks(t, 3, c, func(t *testing.T, w *world) {
			id := drained(w)
			c.storage.Store(int64(time.Minute))
			w.advance(time.Hour)
			require.True(t, w.exists(id))
			c.storage.Store(0)
			w.advance(40 * time.Second)
			require.False(t, w.exists(id))
			w.requireMembers(3)
		})
	})
	t.Run("acknowledged drain is not held", func(t *testing.T) {
		c := &clocks{}
		withClocks(t, 3, c, func(t *testing.T, w *world) {
			c.storage.Store(int64(time.Hour))
			w.advance(time.Minute)
			id := w.ready()[0]
			r, _ := w.leader()
			_, err := r.Drain(w.ctx, id, "by hand")
			require.NoError(t, err)
			w.advance(2 * time.Minute)
			require.False(t, w.exists(id))
			require.NoError(t, r.Delete(w.ctx, w.ready()[0], "by hand", true))
			w.advance(2 * time.Minute)
			w.requireMembers(3)
		})
	})
	t.Run("vanished machine is not held", func(t *testing.T) {
		c := &clocks{}
		withClocks(t, 3, c, func(t *testing.T, w *world) {
			w.setSlowDrain(true)
			c.storage.Store(int64(-time.Hour))
			w.advance(time.Minute)
			id := w.ready()[0]
			require.NoError(t, w.cloud.Reclaim(id, 2*time.Minute))
			w.advance(90 * time.Second)
			require.Len(t, w.ready(), 3, "replaced at once")
			w.advance(5 * time.Minute)
			require.Zero(t, w.count(nstance.EventDrainCutShort, id), "the machine vanished before the deadline")
			w.requireMembers(3)
		})
	})
	t.Run("forced and eligible age", func(t *testing.T) {
		for name, expiry := range map[string]nstance.Expiry{"forced": {ForcedAge: time.Hour}, "eligible": {EligibleAge: time.Hour}} {
			t.Run(name, func(t *testing.T) {
				c := &clocks{}
				withClocks(t, 3, c, func(t *testing.T, w *world) {
					old := w.ready()
					c.storage.Store(int64(time.Hour))
					g := webGroup(3)
					g.Expiry = expiry
					w.setGroups(g)
					w.advance(2 * time.Hour)
					require.Equal(t, old, w.ready())
					c.storage.Store(0)
					w.advance(15 * time.Minute)
					for _, id := range old {
						require.False(t, w.exists(id))
					}
				})
			})
		}
	})
	t.Run("on-demand age", func(t *testing.T) {
		c := &clocks{}
		withClocks(t, 1, c, func(t *testing.T, w *world) {
			g := webGroup(1)
			g.Expiry = nstance.Expiry{OnDemandAge: time.Hour}
			w.stopLeader()
			id := w.onDemand()
			w.startLeader(g)
			c.storage.Store(int64(-time.Hour))
			w.advance(2 * time.Hour)
			require.True(t, w.exists(id))
			c.storage.Store(0)
			w.advance(10 * time.Minute)
			require.False(t, w.exists(id))
		})
	})
	t.Run("launch timeout", func(t *testing.T) {
		c := &clocks{}
		withClocks(t, 3, c, func(t *testing.T, w *world) {
			c.storage.Store(int64(-time.Hour))
			w.badImage = func(nstance.MachineSpec) bool { return true }
			w.setGroups(webGroup(4))
			w.advance(time.Hour)
			require.Len(t, w.cloud.Machines(), 4)
			require.Zero(t, w.count(nstance.EventCreateFailed, ""))
			c.storage.Store(0)
			w.advance(time.Minute)
			require.Equal(t, 1, w.count(nstance.EventCreateFailed, ""))
		})
	})
	t.Run("end of a preservation, unless requested", func(t *testing.T) {
		c := &clocks{}
		withClocks(t, 3, c, func(t *testing.T, w *world) {
			r, _ := w.leader()
			one, two := w.ready()[0], w.ready()[1]
			require.NoError(t, r.Admin().Preserve(w.ctx, one, time.Now().Add(time.Hour), requester))
			require.NoError(t, r.Admin().Preserve(w.ctx, two, time.Now().Add(time.Hour), requester))
			c.storage.Store(int64(-time.Hour))
			w.advance(2 * time.Hour)
			require.True(t, w.exists(one))
			require.True(t, w.exists(two))
			require.Equal(t, 2, w.group().Preserved)
			require.NoError(t, r.Admin().Preserve(w.ctx, two, time.Now(), requester))
			w.advance(10 * time.Minute)
			require.False(t, w.exists(two))
			require.True(t, w.exists(one))
			c.storage.Store(0)
			w.advance(10 * time.Minute)
			w.requireMembers(3)
		})
	})
	t.Run("drain after an expired preservation continues", func(t *testing.T) {
		c := &clocks{}
		withClocks(t, 3, c, func(t *testing.T, w *world) {
			w.setSlowDrain(true)
			r, _ := w.leader()
			id := w.ready()[0]
			require.NoError(t, r.Admin().Preserve(w.ctx, id, time.Now().Add(time.Hour), requester))
			w.advance(61 * time.Minute)
			require.Equal(t, 1, w.group().Leaving)
			c.storage.Store(int64(time.Hour))
			w.advance(time.Minute)
			w.setSlowDrain(false)
			w.advance(5 * time.Minute)
			require.False(t, w.exists(id), "drained and acknowledged")
		})
	})
	t.Run("machine without a record", func(t *testing.T) {
		c := &clocks{}
		withClocks(t, 5, c, func(t *testing.T, w *world) {
			c.storage.Store(int64(time.Hour))
			w.advance(time.Minute)
			id := w.createOrphan(6*time.Minute, nil)
			w.advance(time.Hour)
			require.True(t, w.exists(id))
			require.Contains(t, w.keepReason(id), "behind storage's")
			c.storage.Store(0)
			w.advance(10 * time.Minute)
			require.False(t, w.exists(id))
		})
	})
	t.Run("overdue notice is kept", func(t *testing.T) {
		c := &clocks{}
		withClocks(t, 3, c, func(t *testing.T, w *world) {
			w.setSlowDrain(true)
			id := w.ready()[0]
			r, _ := w.leader()
			r.Observe(nstance.Noticed{ID: id, Notice: nstance.Notice{
				Kind: nstance.Reclaim, Action: "terminate", Source: "aws/spot", EventID: "e", DetectedAt: time.Now(), Deadline: time.Now().Add(2 * time.Minute),
			}})
			w.advance(time.Second)
			c.stepped.Store(int64(time.Hour))
			w.advance(time.Minute)
			r.Observe(nstance.MachineSeen{Machine: w.machine(id)})
			w.advance(time.Second)
			v, err := r.Instance(id)
			require.NoError(t, err)
			require.Len(t, v.Notices, 1)
			require.Equal(t, nstance.Draining, v.State)
		})
	})
	t.Run("from the first plan of a leader", func(t *testing.T) {
		c := &clocks{}
		withClocks(t, 3, c, func(t *testing.T, w *world) {
			id := drained(w)
			w.advance(time.Second)
			w.stopLeader()
			c.stepped.Store(int64(24 * time.Hour))
			w.startLeader(webGroup(3))
			w.advance(4 * time.Minute)
			require.True(t, w.exists(id))
			require.Zero(t, w.count(nstance.EventDeleteRequested, ""))
			w.stopLeader()
			c.stepped.Store(0)
			w.startLeader(webGroup(3))
			w.advance(3 * time.Minute)
			require.False(t, w.exists(id), "the next leader trusts its clock")
		})
	})
	t.Run("plan preview shows the hold", func(t *testing.T) {
		c := &clocks{}
		withClocks(t, 3, c, func(t *testing.T, w *world) {
			c.storage.Store(int64(time.Hour))
			w.advance(time.Minute)
			p, ok := w.plan(webGroup(5))
			require.True(t, ok)
			require.Equal(t, plan.HoldClock, p.Holds[0].Kind)
		})
	})
}

// TestClockSetRight: the leader that began a drain with a wrong clock ends it at its
// true deadline.
func TestClockSetRight(t *testing.T) {
	for name, off := range map[string]time.Duration{"ahead": 3 * time.Hour, "it was behind": -3 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			c := &clocks{}
			withClocks(t, 3, c, func(t *testing.T, w *world) {
				w.setSlowDrain(true)
				r, _ := w.leader()
				c.stepped.Store(int64(off))
				w.advance(time.Minute)
				id := w.ready()[0]
				_, err := r.Drain(w.ctx, id, "by hand")
				require.NoError(t, err)
				began := time.Now()
				w.advance(time.Minute)
				c.stepped.Store(0)
				w.advance(5*time.Minute - time.Second - time.Since(began))
				require.Zero(t, w.count(nstance.EventDrainCutShort, id))
				w.advance(2 * time.Second)
				require.Equal(t, 1, w.count(nstance.EventDrainCutShort, id))
			})
		})
	}
}

// TestBackoffFromClockAhead: a backoff recorded by a clock that was ahead never exceeds
// the maximum backoff.
func TestBackoffFromClockAhead(t *testing.T) {
	c := &clocks{}
	withClocks(t, 3, c, func(t *testing.T, w *world) {
		c.stepped.Store(int64(3 * time.Hour))
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Code: nstance.Denied, Times: -1})
		w.setGroups(webGroup(4))
		w.advance(3 * time.Minute)
		for !w.hasHold(plan.HoldBackoff) {
			w.advance(time.Second)
		}
		w.stopLeader()
		w.cloud.ClearFaults()
		c.stepped.Store(0)
		w.startLeader(webGroup(4))
		w.advance(6 * time.Minute)
		require.Len(t, w.ready(), 4)
	})
}

// machine returns a machine as the cloud has it.
func (w *world) machine(id nstance.InstanceID) nstance.Machine {
	w.t.Helper()
	m, err := w.cloud.Get(w.ctx, id)
	require.NoError(w.t, err)
	return m
}

// TestNoticeFromClockBehind: a deadline recorded by a clock that is behind is in the
// past for the next leader. That the machine still runs then does not prove that the
// notice was withdrawn.
func TestNoticeFromClockBehind(t *testing.T) {
	c := &clocks{undated: true}
	c.stepped.Store(int64(-3 * time.Hour))
	withClocks(t, 2, c, func(t *testing.T, w *world) {
		id := w.ready()[0]
		r, _ := w.leader()
		require.NoError(t, r.Admin().Freeze(t.Context(), web, "the notice is only recorded"))
		n := nstance.Notice{Kind: nstance.Reclaim, Action: "terminate", Source: "aws/spot", EventID: "e", DetectedAt: c.now(), Deadline: c.now().Add(2 * time.Minute)}
		r.Observe(nstance.Noticed{ID: id, Notice: n})
		w.advance(time.Second)
		recorded := func() []nstance.Notice {
			r, _ := w.leader()
			rec, ok := r.Admin().Internals().Records().Get(id)
			require.True(t, ok)
			return rec.Notices
		}
		require.Len(t, recorded(), 1)
		w.stopLeader()
		c.stepped.Store(0)
		w.startLeader(webGroup(2))
		w.advance(time.Minute)
		require.Len(t, recorded(), 1)
		w.advance(20 * time.Minute)
		require.Empty(t, recorded(), "the machine still runs ten minutes into the term")
	})
}

// TestWrongClockEndsNothing: whatever is recorded with an end outlives a clock that is known to
// be hours ahead, and ends in its time once the clock is right.
func TestWrongClockEndsNothing(t *testing.T) {
	for name, next := range map[string]bool{"the same leader": false, "the next leader": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				c := &clocks{}
				w := newWorld(t, simcloud.Options{Boot: simcloud.Delay{Min: time.Minute}, Park: simcloud.Delay{Min: 3 * time.Second}, Wake: simcloud.Delay{Min: time.Second}})
				w.wrap = func(o *leaderEnv) { o.options = c.configure }
				defer w.close()
				w.startLeader(pooledGroup(1))
				w.advance(5 * time.Minute)
				bridge, kept := w.in(nstance.Parked)[0], w.ready()[0]
				end := time.Now().Add(2 * time.Hour)
				_, _, err := w.r.Admin().ClaimStandby(t.Context(), web, reconcile.Claim{Node: "n1", Until: end})
				require.NoError(t, err)
				_, _, err = w.r.Admin().AvoidPool(t.Context(), reconcile.AvoidedPool{Pool: reconcile.Pool{InstanceType: "small"}, Until: end}, false)
				require.NoError(t, err)
				require.NoError(t, w.r.Admin().Preserve(t.Context(), kept, end, requester))
				w.advance(30 * time.Second)
				standing := func(when string) {
					t.Helper()
					require.Len(t, w.group().Claims, 1, when)
					require.Equal(t, nstance.Ready, w.instance(bridge).State, when)
					require.Len(t, w.r.Admin().AvoidedPools(), 1, when)
					require.True(t, w.instance(kept).Preserved, when)
				}
				standing("before")
				creates := w.cloud.Count(simcloud.OpCreate)
				c.stepped.Add(int64(3 * time.Hour))
				if next {
					w.changeLeader(pooledGroup(1))
				}
				w.advance(3 * time.Minute)
				require.True(t, w.hasClockHold())
				standing("while the clock is wrong")
				require.Equal(t, creates, w.cloud.Count(simcloud.OpCreate), "the only type is avoided")
				c.stepped.Store(0)
				w.advance(5 * time.Minute)
				require.False(t, w.hasClockHold())
				standing("once it is right")
				w.advance(2 * time.Hour)
				require.Empty(t, w.group().Claims)
				require.Empty(t, w.r.Admin().AvoidedPools())
				require.False(t, w.exists(kept))
				require.Equal(t, 3, w.group().Ready)
			})
		})
	}
}
