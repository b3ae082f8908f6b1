package reconcile_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/test/wallclock"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/reconcile/plan"
	"github.com/nstance-go/nstance/storage"
)

// clocks are those that a leader has to go by.
type clocks struct {
	stepped atomic.Int64 // how far its wall clock was set forward
	slept   atomic.Int64 // how long its machine slept, by the clock that counts that
	storage atomic.Int64 // how far storage's clock is ahead of the true time
	silent  atomic.Bool  // storage does not answer any more
	read    atomic.Pointer[storage.Reading]
	undated bool // storage has no clock
	blind   bool // no clock counts sleep
}

func (c *clocks) now() time.Time { return wallclock.Ahead(time.Duration(c.stepped.Load())) }

// Date implements storage.Dated, with what an answer of 200 ms ago has said.
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

func (c *clocks) govern(o *reconcile.Options) {
	began := time.Now()
	o.Now = c.now
	if !c.undated {
		o.Dated = c
	}
	if !c.blind {
		o.Elapsed = func() time.Duration { return time.Since(began) + time.Duration(c.slept.Load()) }
	}
}

// clocked is within, under a leader that goes by the clocks.
func clocked(t *testing.T, size int, c *clocks, test func(t *testing.T, w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		w.wrap = func(o *office) { o.options = c.govern }
		defer w.close()
		w.lead(wanted(size))
		w.passes(10 * time.Minute)
		test(t, w)
	})
}

// dawdle has agents acknowledge no drains, or do so again.
func (w *world) dawdle(slow bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.slowDrain = slow
}

// distrusts reports whether the leader holds what goes by its clock.
func (w *world) distrusts() bool {
	r, _ := w.leader()
	_, held := r.ClockHold()
	return held
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
		want          string // part of the reason; empty: it can be trusted
	}{
		"right":                               {nil, nil, ""},
		"a little ahead":                      {nil, []change{step(29 * time.Second)}, ""},
		"a little behind":                     {nil, []change{step(-29 * time.Second)}, ""},
		"ahead":                               {nil, []change{step(33 * time.Second)}, "ahead of storage's"},
		"behind":                              {nil, []change{step(-33 * time.Second)}, "32s behind storage's"},
		"wrong from the beginning":            {[]change{step(time.Hour)}, nil, "1h0m0s ahead of storage's"},
		"it is storage's that is wrong":       {nil, []change{wrong(time.Hour)}, "behind storage's"},
		"set right":                           {[]change{step(-time.Hour)}, []change{step(time.Hour)}, ""},
		"set, and storage silent":             {nil, []change{silent, step(time.Hour)}, "ahead of storage's"},
		"storage has not answered yet":        {[]change{silent}, nil, ""},
		"nor when it was set":                 {[]change{silent}, []change{step(time.Hour)}, "was set 1h0m0s forward"},
		"the machine slept":                   {nil, []change{silent, sleep(time.Hour), step(time.Hour)}, ""},
		"no clock to compare with":            {[]change{undated}, nil, ""},
		"set forward":                         {[]change{undated}, []change{step(31 * time.Second)}, "was set 31s forward"},
		"set back":                            {[]change{undated}, []change{step(-31 * time.Second)}, "was set 31s back"},
		"set a little":                        {[]change{undated}, []change{step(29 * time.Second)}, ""},
		"set, and back":                       {[]change{undated}, []change{step(time.Hour), step(-time.Hour)}, ""},
		"the machine slept, nothing to see":   {[]change{undated}, []change{sleep(time.Hour), step(time.Hour)}, ""},
		"no clock that counts sleep":          {[]change{undated, blind}, []change{step(time.Hour)}, ""},
		"none that does, but storage has one": {[]change{blind}, []change{step(time.Hour)}, "ahead of storage's"},
	} {
		t.Run(name, func(t *testing.T) {
			c := &clocks{}
			for _, f := range k.before {
				f(c)
			}
			clocked(t, 0, c, func(t *testing.T, w *world) {
				for _, f := range k.after {
					f(c)
					w.passes(6 * time.Second)
				}
				w.passes(45 * time.Second)
				r, _ := w.leader()
				h, held := r.ClockHold()
				require.Equal(t, k.want != "", held, h.Reason)
				require.Contains(t, h.Reason, k.want)
			})
		})
	}
	t.Run("many small steps are none", func(t *testing.T) {
		c := &clocks{undated: true}
		clocked(t, 0, c, func(t *testing.T, w *world) {
			for range 10 {
				step(20 * time.Second)(c)
				w.passes(time.Minute)
				require.False(t, w.distrusts())
			}
		})
	})
	t.Run("an answer from before the term", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := &clocks{}
			c.Date()
			c.silent.Store(true)
			w := newWorld(t, simcloud.Options{})
			defer w.close()
			w.wrap = func(o *office) { o.options = c.govern }
			w.passes(10 * time.Minute)
			w.lead()
			w.passes(10 * time.Second)
			require.False(t, w.distrusts())
			step(time.Minute)(c)
			w.passes(10 * time.Second)
			require.True(t, w.distrusts())
		})
	})
	t.Run("it must be right for a while, since storage's servers may disagree", func(t *testing.T) {
		c := &clocks{}
		clocked(t, 0, c, func(t *testing.T, w *world) {
			for range 20 {
				wrong(time.Hour)(c)
				w.passes(11 * time.Second)
				require.True(t, w.distrusts())
				wrong(-time.Hour)(c)
				w.passes(19 * time.Second)
				require.True(t, w.distrusts())
			}
			w.passes(20 * time.Second)
			require.False(t, w.distrusts())
			require.Equal(t, 1, w.count(nstance.EventClockWrong, ""))
			require.Equal(t, 1, w.count(nstance.EventClockRight, ""))
		})
	})
}

func TestClockIsSaid(t *testing.T) {
	c := &clocks{}
	clocked(t, 1, c, func(t *testing.T, w *world) {
		r, _ := w.leader()
		require.Empty(t, w.group().Holds)
		require.Empty(t, r.Problems())
		set := time.Now()
		c.storage.Store(int64(-time.Hour))
		w.passes(time.Minute)
		h := w.hold(plan.HoldClock)
		require.Equal(t, "this server's clock is 1h0m0s ahead of storage's: set it right, by NTP", h.Reason)
		require.WithinRange(t, h.Since, set, set.Add(5*time.Second))
		require.Zero(t, h.Until)
		shard, held := r.ClockHold()
		require.True(t, held)
		require.Equal(t, h, shard)
		require.Len(t, r.Problems(), 1)
		require.Contains(t, r.Problems()[0], h.Reason)
		said := w.first(nstance.EventClockWrong, func(nstance.Event) bool { return true })
		require.True(t, strings.HasPrefix(said.Reason, h.Reason), said.Reason)
		require.Empty(t, said.Group)
		w.passes(time.Hour)
		require.Equal(t, h.Since, w.hold(plan.HoldClock).Since, "it is still the same")
		require.Equal(t, 1, w.count(nstance.EventClockWrong, ""), "once")
		c.storage.Store(0)
		w.passes(40 * time.Second)
		require.Empty(t, w.group().Holds)
		require.Empty(t, r.Problems())
		require.Equal(t, 1, w.count(nstance.EventClockRight, ""))
	})
}

func TestClockHolds(t *testing.T) {
	drained := func(w *world) nstance.InstanceID { // but never acknowledged
		w.dawdle(true)
		id := w.ready()[0]
		r, _ := w.leader()
		_, err := r.Drain(w.ctx, id, "by hand")
		require.NoError(w.t, err)
		return id
	}
	t.Run("a deadline that a step made pass", func(t *testing.T) {
		c := &clocks{}
		clocked(t, 3, c, func(t *testing.T, w *world) {
			id := drained(w)
			began := time.Now()
			w.passes(time.Minute)
			c.stepped.Store(int64(time.Hour))
			w.passes(2 * time.Minute)
			require.True(t, w.exists(id), "its deadline has not truly come")
			require.Zero(t, w.count(nstance.EventDrainCutShort, ""))
			require.True(t, w.distrusts())
			require.Len(t, w.ready(), 3, "it was replaced")
			c.stepped.Store(0)
			w.passes(5*time.Minute - time.Since(began) - time.Second)
			require.True(t, w.exists(id))
			w.passes(time.Minute)
			require.False(t, w.exists(id))
			require.Equal(t, 1, w.count(nstance.EventDrainCutShort, id))
		})
	})
	t.Run("a deadline that has truly passed, until the clock is right", func(t *testing.T) {
		c := &clocks{}
		clocked(t, 3, c, func(t *testing.T, w *world) {
			id := drained(w)
			c.storage.Store(int64(time.Minute))
			w.passes(time.Hour)
			require.True(t, w.exists(id))
			c.storage.Store(0)
			w.passes(40 * time.Second)
			require.False(t, w.exists(id))
			w.agrees(3)
		})
	})
	t.Run("not an acknowledged drain", func(t *testing.T) {
		c := &clocks{}
		clocked(t, 3, c, func(t *testing.T, w *world) {
			c.storage.Store(int64(time.Hour))
			w.passes(time.Minute)
			id := w.ready()[0]
			r, _ := w.leader()
			_, err := r.Drain(w.ctx, id, "by hand")
			require.NoError(t, err)
			w.passes(2 * time.Minute)
			require.False(t, w.exists(id))
			require.NoError(t, r.Delete(w.ctx, w.ready()[0], "by hand", true))
			w.passes(2 * time.Minute)
			w.agrees(3)
		})
	})
	t.Run("not what the cloud does", func(t *testing.T) {
		c := &clocks{}
		clocked(t, 3, c, func(t *testing.T, w *world) {
			w.dawdle(true)
			c.storage.Store(int64(-time.Hour))
			w.passes(time.Minute)
			id := w.ready()[0]
			require.NoError(t, w.cloud.Reclaim(id, 2*time.Minute))
			w.passes(90 * time.Second)
			require.Len(t, w.ready(), 3, "it was replaced at once")
			w.passes(5 * time.Minute)
			require.Zero(t, w.count(nstance.EventDrainCutShort, id), "the cloud was the first")
			w.agrees(3)
		})
	})
	t.Run("a forced age, and an eligible one", func(t *testing.T) {
		for name, expiry := range map[string]nstance.Expiry{"forced": {ForcedAge: time.Hour}, "eligible": {EligibleAge: time.Hour}} {
			t.Run(name, func(t *testing.T) {
				c := &clocks{}
				clocked(t, 3, c, func(t *testing.T, w *world) {
					old := w.ready()
					c.storage.Store(int64(time.Hour))
					g := wanted(3)
					g.Expiry = expiry
					w.want(g)
					w.passes(2 * time.Hour)
					require.Equal(t, old, w.ready())
					c.storage.Store(0)
					w.passes(15 * time.Minute)
					for _, id := range old {
						require.False(t, w.exists(id))
					}
				})
			})
		}
	})
	t.Run("an age on demand", func(t *testing.T) {
		c := &clocks{}
		clocked(t, 1, c, func(t *testing.T, w *world) {
			g := wanted(1)
			g.Expiry = nstance.Expiry{OnDemandAge: time.Hour}
			w.depose()
			id := w.onDemand()
			w.lead(g)
			c.storage.Store(int64(-time.Hour))
			w.passes(2 * time.Hour)
			require.True(t, w.exists(id))
			c.storage.Store(0)
			w.passes(10 * time.Minute)
			require.False(t, w.exists(id))
		})
	})
	t.Run("a launch that takes too long", func(t *testing.T) {
		c := &clocks{}
		clocked(t, 3, c, func(t *testing.T, w *world) {
			c.storage.Store(int64(-time.Hour))
			w.badImage = func(nstance.MachineSpec) bool { return true }
			w.want(wanted(4))
			w.passes(time.Hour)
			require.Len(t, w.cloud.Machines(), 4)
			require.Zero(t, w.count(nstance.EventCreateFailed, ""))
			c.storage.Store(0)
			w.passes(time.Minute)
			require.Equal(t, 1, w.count(nstance.EventCreateFailed, ""))
		})
	})
	t.Run("the end of a preservation, unless somebody asks for it", func(t *testing.T) {
		c := &clocks{}
		clocked(t, 3, c, func(t *testing.T, w *world) {
			r, _ := w.leader()
			one, two := w.ready()[0], w.ready()[1]
			require.NoError(t, r.Preserve(w.ctx, one, time.Now().Add(time.Hour), eve))
			require.NoError(t, r.Preserve(w.ctx, two, time.Now().Add(time.Hour), eve))
			c.storage.Store(int64(-time.Hour))
			w.passes(2 * time.Hour)
			require.True(t, w.exists(one))
			require.True(t, w.exists(two))
			require.Equal(t, 2, w.group().Preserved)
			require.NoError(t, r.Preserve(w.ctx, two, time.Now(), eve))
			w.passes(10 * time.Minute)
			require.False(t, w.exists(two))
			require.True(t, w.exists(one))
			c.storage.Store(0)
			w.passes(10 * time.Minute)
			w.agrees(3)
		})
	})
	t.Run("what has outlived its preservation goes on", func(t *testing.T) {
		c := &clocks{}
		clocked(t, 3, c, func(t *testing.T, w *world) {
			w.dawdle(true)
			r, _ := w.leader()
			id := w.ready()[0]
			require.NoError(t, r.Preserve(w.ctx, id, time.Now().Add(time.Hour), eve))
			w.passes(61 * time.Minute)
			require.Equal(t, 1, w.group().Leaving)
			c.storage.Store(int64(time.Hour))
			w.passes(time.Minute)
			w.dawdle(false)
			w.passes(5 * time.Minute)
			require.False(t, w.exists(id), "it was drained, and that was acknowledged")
		})
	})
	t.Run("a machine without a record", func(t *testing.T) {
		c := &clocks{}
		clocked(t, 5, c, func(t *testing.T, w *world) {
			c.storage.Store(int64(time.Hour))
			w.passes(time.Minute)
			id := w.stray(6*time.Minute, nil)
			w.passes(time.Hour)
			require.True(t, w.exists(id))
			require.Contains(t, w.spared(id), "behind storage's")
			c.storage.Store(0)
			w.passes(10 * time.Minute)
			require.False(t, w.exists(id))
		})
	})
	t.Run("a notice that the cloud did not follow up is not forgotten", func(t *testing.T) {
		c := &clocks{}
		clocked(t, 3, c, func(t *testing.T, w *world) {
			w.dawdle(true)
			id := w.ready()[0]
			r, _ := w.leader()
			r.Observe(nstance.Noticed{ID: id, Notice: nstance.Notice{
				Kind: nstance.Reclaim, Action: "terminate", Source: "aws/spot", EventID: "e", DetectedAt: time.Now(), Deadline: time.Now().Add(2 * time.Minute),
			}})
			w.passes(time.Second)
			c.stepped.Store(int64(time.Hour))
			w.passes(time.Minute)
			r.Observe(nstance.MachineSeen{Machine: w.machine(id)})
			w.passes(time.Second)
			v, err := r.Instance(id)
			require.NoError(t, err)
			require.Len(t, v.Notices, 1)
			require.Equal(t, nstance.Draining, v.State)
		})
	})
	t.Run("from a leader's first plan", func(t *testing.T) {
		c := &clocks{}
		clocked(t, 3, c, func(t *testing.T, w *world) {
			id := drained(w)
			w.passes(time.Second)
			w.depose()
			c.stepped.Store(int64(24 * time.Hour))
			w.lead(wanted(3))
			w.passes(4 * time.Minute)
			require.True(t, w.exists(id))
			require.Zero(t, w.count(nstance.EventDeleteRequested, ""))
			w.depose()
			c.stepped.Store(0)
			w.lead(wanted(3))
			w.passes(3 * time.Minute)
			require.False(t, w.exists(id), "the next one has no doubts")
		})
	})
	t.Run("and a plan of what would be says so", func(t *testing.T) {
		c := &clocks{}
		clocked(t, 3, c, func(t *testing.T, w *world) {
			c.storage.Store(int64(time.Hour))
			w.passes(time.Minute)
			p, ok := w.plan(wanted(5))
			require.True(t, ok)
			require.Equal(t, plan.HoldClock, p.Holds[0].Kind)
		})
	})
}

// TestClockSetRight promises that the leader that began a drain by a wrong clock
// ends it when its time is truly over.
func TestClockSetRight(t *testing.T) {
	for name, off := range map[string]time.Duration{"it was ahead": 3 * time.Hour, "it was behind": -3 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			c := &clocks{}
			clocked(t, 3, c, func(t *testing.T, w *world) {
				w.dawdle(true)
				r, _ := w.leader()
				c.stepped.Store(int64(off))
				w.passes(time.Minute)
				id := w.ready()[0]
				_, err := r.Drain(w.ctx, id, "by hand")
				require.NoError(t, err)
				began := time.Now()
				w.passes(time.Minute)
				c.stepped.Store(0)
				w.passes(5*time.Minute - time.Second - time.Since(began))
				require.Zero(t, w.count(nstance.EventDrainCutShort, id))
				w.passes(2 * time.Second)
				require.Equal(t, 1, w.count(nstance.EventDrainCutShort, id))
			})
		})
	}
}

// TestClockOfAnotherLeader promises that creations wait no longer for earlier ones
// that failed than they ever do, although the clock was ahead by which that was
// written.
func TestClockOfAnotherLeader(t *testing.T) {
	c := &clocks{}
	clocked(t, 3, c, func(t *testing.T, w *world) {
		c.stepped.Store(int64(3 * time.Hour))
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Code: nstance.Denied, Times: -1})
		w.want(wanted(4))
		w.passes(20 * time.Minute)
		require.True(t, w.holds(plan.HoldBackoff))
		w.depose()
		w.cloud.Heal()
		c.stepped.Store(0)
		w.lead(wanted(4))
		w.passes(6 * time.Minute)
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

// TestNoticeOfALeaderWithAWrongClock: a deadline that was recorded by a clock that
// is behind is in the past for the next leader. That the machine runs then does not
// show that the cloud has not followed its notice up.
func TestNoticeOfALeaderWithAWrongClock(t *testing.T) {
	c := &clocks{undated: true}
	c.stepped.Store(int64(-3 * time.Hour))
	clocked(t, 2, c, func(t *testing.T, w *world) {
		id := w.ready()[0]
		r, _ := w.leader()
		require.NoError(t, r.Freeze(t.Context(), web, "the notice is only recorded"))
		n := nstance.Notice{Kind: nstance.Reclaim, Action: "terminate", Source: "aws/spot", EventID: "e", DetectedAt: c.now(), Deadline: c.now().Add(2 * time.Minute)}
		r.Observe(nstance.Noticed{ID: id, Notice: n})
		w.passes(time.Second)
		recorded := func() []nstance.Notice {
			r, _ := w.leader()
			v, err := r.Instance(id)
			require.NoError(t, err)
			return v.Record.Notices
		}
		require.Len(t, recorded(), 1)
		w.depose()
		c.stepped.Store(0)
		w.lead(wanted(2))
		w.passes(time.Minute)
		require.Len(t, recorded(), 1)
		w.passes(20 * time.Minute)
		require.Empty(t, recorded(), "the machine still runs ten minutes into the term")
	})
}
