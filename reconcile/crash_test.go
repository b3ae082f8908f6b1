package reconcile_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/storage"
)

// A story is a piece of a group's life. It begins with a group at size whose
// members are all ready, and every call of it is struck in turn.
type story struct {
	name  string
	size  int // at the beginning
	slow  bool
	tell  func(c *crash)
	end   int  // the group's size afterwards
	extra int  // instances on demand afterwards
	moody bool // a change of mind: which machines are made depends on when it is heard of

	differ    bool          // no leader can make the bytes that another one has made
	snapshots time.Duration // into a term when one is taken; 0: none is
	behind    string        // name of the load balancer that the group is behind; empty: none
}

// group is the group of the story, at a size.
func (y story) group(size int) nstance.Group {
	if y.behind == "" {
		return wanted(size)
	}
	return balanced(size, y.behind)
}

var stories = []story{
	{name: "a group grows", size: 1, end: 2, tell: func(c *crash) { c.want(wanted(2)) }},
	{name: "a group shrinks", size: 2, end: 1, tell: func(c *crash) {
		c.keep(c.w.ready()[1])
		c.want(wanted(1))
	}},
	{name: "a member is reclaimed", size: 2, end: 2, tell: func(c *crash) {
		c.keep(c.w.ready()[1])
		require.NoError(c.w.t, c.w.outside.Reclaim(c.w.ready()[0], 2*time.Minute))
	}},
	{name: "a drain lasts until its deadline", size: 2, slow: true, end: 2, tell: func(c *crash) {
		c.keep(c.w.ready()[1])
		require.NoError(c.w.t, c.w.outside.Reclaim(c.w.ready()[0], 3*time.Minute))
	}},
	{name: "a rollout", size: 1, end: 1, tell: func(c *crash) {
		next := wanted(1)
		next.Definition.UserData.Content = "v2"
		c.want(next)
	}},
	{name: "a hand-over during a drain", size: 2, slow: true, snapshots: 5 * time.Second, end: 2, tell: func(c *crash) {
		c.keep(c.w.ready()[1])
		require.NoError(c.w.t, c.w.outside.Reclaim(c.w.ready()[0], 3*time.Minute))
		c.w.passes(10 * time.Second)
		c.handOver()
	}},
	{name: "a hand-over during a launch", size: 1, end: 2, tell: func(c *crash) {
		c.want(wanted(2))
		c.w.passes(10 * time.Millisecond) // the call is on its way
		c.handOver()
	}},
	{name: "a hand-over during a deletion", size: 2, end: 1, tell: func(c *crash) {
		c.keep(c.w.ready()[1])
		c.want(wanted(1))
		for c.w.count(nstance.EventDeleteRequested, "") == 0 && c.w.count(nstance.EventDeleted, "") == 0 {
			c.w.passes(10 * time.Millisecond)
		}
		c.handOver()
	}},
	{name: "a machine vanishes", size: 2, end: 2, tell: func(c *crash) {
		lost := c.w.ready()[0]
		c.keep(c.w.ready()[1])
		require.NoError(c.w.t, c.w.outside.Kill(lost))
		r, _ := c.w.leader()
		r.Observe(nstance.Disconnected{ID: lost})
	}},
	{name: "a reclaim is withdrawn", size: 2, slow: true, end: 2, moody: true, tell: func(c *crash) {
		spared := c.w.ready()[0]
		require.NoError(c.w.t, c.w.outside.Reclaim(spared, 10*time.Minute))
		c.w.passes(10 * time.Second)
		require.NoError(c.w.t, c.w.outside.Withdraw(spared))
	}},
	{name: "a size is taken back", size: 1, end: 1, moody: true, tell: func(c *crash) {
		c.keep(c.w.ready()[0])
		c.want(wanted(2))
		c.w.passes(2 * time.Second)
		c.want(wanted(1))
	}},
	{name: "a group grows behind a load balancer", size: 1, end: 2, behind: "front", tell: func(c *crash) { c.want(balanced(2, "front")) }},
	{name: "a group shrinks behind a load balancer", size: 2, end: 1, behind: "front", tell: func(c *crash) {
		c.keep(c.w.ready()[1])
		c.want(balanced(1, "front"))
	}},
	{name: "a hand-over while a load balancer is left", size: 2, slow: true, end: 2, behind: "front", tell: func(c *crash) {
		require.NoError(c.w.t, c.w.outside.Reclaim(c.w.ready()[0], 3*time.Minute))
		c.w.passes(120 * time.Millisecond) // the call is on its way
		c.handOver()
	}},
	{name: "the cloud is sold out for a while", size: 1, end: 2, tell: func(c *crash) {
		c.w.outside.SetCapacity(1)
		c.want(wanted(2))
		c.w.passes(20 * time.Second)
		c.w.outside.SetCapacity(10)
	}},
	{name: "an instance is made on demand", size: 1, end: 1, extra: 1, tell: func(c *crash) {
		c.keep(c.w.ready()[0])
		c.order()
	}},
	{name: "the cloud is sold out for an instance on demand", size: 1, end: 1, extra: 1, tell: func(c *crash) {
		c.w.outside.SetCapacity(1)
		c.order()
		c.w.passes(20 * time.Second)
		c.w.outside.SetCapacity(10)
	}},
	{name: "a group is removed", size: 2, end: 0, tell: func(c *crash) {
		g := wanted(2)
		g.Removing = true
		c.want(g)
	}},
}

// A crash is one telling of a story, with one call struck.
type crash struct {
	w       *world
	s       *seam
	desired atomic.Pointer[nstance.Group]
	kept    []nstance.InstanceID
	ordered nstance.InstanceID // on demand; empty: nothing was
	over    chan struct{}
	ended   chan struct{}
	leaders []<-chan struct{} // closed when their Run has returned
}

// told tells a story in a bubble of its own and returns what the seam saw.
func told(t *testing.T, y story, aim label, with strike) *seam {
	return toldOn(t, y, aim, with, func(*world) {})
}

// toldOn tells a story on another cloud, which replace puts in place of that in
// memory.
func toldOn(t *testing.T, y story, aim label, with strike, replace func(*world)) (s *seam) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{Balancers: []string{"lb-1"}})
		w.differ = y.differ
		replace(w)
		c := &crash{w: w, s: newSeam(w, aim, with), over: make(chan struct{}), ended: make(chan struct{})}
		s = c.s
		if y.snapshots > 0 {
			s.snapshots = y.snapshots
		}
		if y.behind != "" {
			s.balancers = []nstance.LoadBalancer{front}
		}
		c.begin(y.group(y.size))
		defer c.end()
		w.passes(time.Minute)
		w.agrees(y.size)
		w.mu.Lock()
		w.slowDrain = y.slow
		w.mu.Unlock()
		s.arm()
		y.tell(c)
		c.settle(y, with)
		c.judge(y, with)
		if o, ok := w.outside.(interface{ leftovers() []string }); ok {
			require.Empty(t, o.leftovers(), "what belongs to a machine goes with it")
		}
	})
	return s
}

// begin puts up the first leader, and whoever sees to it that there is another
// one a moment after one has fallen.
func (c *crash) begin(g nstance.Group) {
	c.desired.Store(&g)
	c.lead()
	go func() {
		defer close(c.ended)
		for {
			select {
			case <-c.over:
				return
			case o := <-c.s.fall:
				if o != c.office() {
					continue // it was told twice
				}
			}
			<-time.After(moment)
			c.lead()
		}
	}()
}

func (c *crash) lead() {
	c.w.lead(*c.desired.Load())
	c.leaders = append(c.leaders, c.w.done)
	r, _ := c.w.leader()
	r.Observe(nstance.Desired{Groups: []nstance.Group{*c.desired.Load()}}) // it may have changed meanwhile
}

// want changes the group's desired values.
func (c *crash) want(g nstance.Group) {
	c.desired.Store(&g)
	r, _ := c.w.leader()
	r.Observe(nstance.Desired{Groups: []nstance.Group{g}})
}

// keep names a member that no leader may delete.
func (c *crash) keep(id nstance.InstanceID) { c.kept = append(c.kept, id) }

// handOver ends the present term in an orderly way.
func (c *crash) handOver() {
	o := c.office()
	o.cancel()
	select {
	case c.s.fall <- o:
	default: // it has just fallen
	}
	c.w.passes(2 * moment)
}

func (c *crash) office() *office {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	return c.w.office
}

func (c *crash) end() {
	close(c.over)
	<-c.ended
	c.w.stop()
	for _, done := range c.leaders {
		<-done
	}
	c.s.wg.Wait()
	c.w.outside.Close()
	c.w.agents.Wait()
}

// settle lets time go by until everything is as it should be, and a while
// longer, then hands over to a leader who should find nothing to do.
func (c *crash) settle(y story, with strike) {
	c.w.passes(20 * time.Second) // it has been heard of
	if with == late || with == belated {
		c.w.passes(time.Minute) // and has landed
	}
	for range 60 {
		if c.settled(y) {
			break
		}
		if c.w.abandoned(c.ordered) {
			c.order() // as its caller would, who was told that it failed
		}
		c.w.passes(10 * time.Second)
	}
	if with != none {
		c.handOver()
	}
	c.w.passes(2 * time.Minute)
}

// abandoned reports whether the caller of an instance on demand was told to ask
// for another one.
func (w *world) abandoned(id nstance.InstanceID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.events, func(e nstance.Event) bool {
		return e.Instance == id && e.Type == nstance.EventCreateFailed && strings.Contains(e.Error, "make a new ID")
	})
}

func (c *crash) settled(y story) bool {
	g := c.w.group()
	return g.Ready == y.end && g.OnDemand == y.extra && g.Leaving == 0 && g.Booting == 0 && g.Stale == 0 &&
		len(c.w.outside.Machines()) == y.end+y.extra && len(c.w.ready()) == y.end+y.extra
}

// order asks for an instance on demand, again and again until it is promised.
func (c *crash) order() {
	id, err := nstance.NewInstanceID("web", time.Now())
	require.NoError(c.w.t, err)
	c.ordered = id
	for {
		ctx, cancel := context.WithTimeout(c.w.ctx, 3*time.Second)
		r, _ := c.w.leader()
		_, err := r.CreateInstance(ctx, onDemand(id))
		cancel()
		if err == nil {
			return
		}
		require.ErrorIs(c.w.t, err, nstance.Unavailable)
		<-time.After(100 * time.Millisecond)
	}
}

// judge checks that the story ended as it should have.
func (c *crash) judge(y story, with strike) {
	t := c.w.t
	for _, id := range c.kept {
		require.False(t, c.s.deleted[id], "a member that nothing spoke against was deleted")
	}
	require.Empty(t, c.s.wrongs)
	c.w.agrees(y.end + y.extra)
	g := c.w.group()
	require.Equal(t, y.extra, g.OnDemand)
	require.Zero(t, g.Stale+g.Leaving+g.Booting)
	require.Empty(t, g.Holds, "nothing is counted against the group")
	r, drains := c.w.leader()
	require.Empty(t, r.Problems())
	require.Empty(t, drains.Active())
	if y.behind != "" {
		c.w.fronts("lb-1")
	}
}

// storiesThatDiffer are the same, told by leaders that render differently.
func storiesThatDiffer() []story {
	out := slices.Clone(stories)
	for i := range out {
		out[i].name += ", and servers render differently"
		out[i].differ = true
	}
	return out
}

func TestCrashAtEveryCall(t *testing.T) {
	var aimed, struck atomic.Int64
	t.Run("calls", func(t *testing.T) {
		for _, y := range slices.Concat(stories, storiesThatDiffer()) {
			t.Run(y.name, func(t *testing.T) {
				t.Parallel()
				plain := told(t, y, label{}, none)
				for _, aim := range plain.calls {
					for _, with := range strikes(aim) {
						t.Run(fmt.Sprintf("%s, %s", aim, with), func(t *testing.T) {
							t.Parallel()
							aimed.Add(1)
							s := told(t, y, aim, with)
							if s.struck {
								struck.Add(1)
							}
							compare(t, y, plain, s)
						})
					}
				}
			})
		}
	})
	t.Logf("%d of %d injections struck", struck.Load(), aimed.Load())
	require.GreaterOrEqual(t, float64(struck.Load()), 0.95*float64(aimed.Load()), "most injections struck")
}

// compare checks that a story with a strike took no more machines than
// without.
func compare(t *testing.T, y story, plain, s *seam) {
	most := len(plain.made)
	if s.aim.what == "create machine" && (s.with == late || s.with == belated) {
		most++ // nobody can stop what is on its way; it must be gone by now
	}
	require.LessOrEqual(t, len(s.made), most, "no more machines than without the strike")
	if !y.moody {
		require.GreaterOrEqual(t, len(s.made), len(plain.made), "nor fewer")
	}
}

// strikes are the ways to hit a call. A read has no effect that could be done,
// and comes to nothing when it is late. What is written besides records and
// machines waits for nobody and is only there to be read.
func strikes(l label) []strike {
	switch _, object, _ := strings.Cut(l.what, " "); {
	case !l.mutates():
		return []strike{before, lost}
	case object == "instance", object == "machine":
		return []strike{before, after, blinded, lost, paused, late, belated}
	}
	return []strike{before, after, lost, late}
}

// land writes to a record past every leader, as a former one's delayed call
// does.
func (w *world) land(id nstance.InstanceID, change func(*storage.Instance)) {
	w.t.Helper()
	former := storage.NewRecords(w.store, "s1", &storage.RecordsOptions{Epoch: 1})
	_, _, err := former.Load(w.ctx)
	require.NoError(w.t, err)
	_, err = former.Update(w.ctx, id, func(rec *storage.Instance) error { change(rec); return nil })
	require.NoError(w.t, err)
}

// mute silences the agent of an instance, or lets it speak again.
func (w *world) mute(id nstance.InstanceID, silent bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.broken[id] = silent
}

// TestLateWriteOfAFormerLeader has records change under a leader that has read
// them already, in the ways that only a second leader finds out in a crash.
func TestLateWriteOfAFormerLeader(t *testing.T) {
	draining := func(t *testing.T, test func(w *world, id nstance.InstanceID)) {
		within(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
			w.mu.Lock()
			w.slowDrain = true
			w.mu.Unlock()
			id := w.ready()[0]
			require.NoError(t, w.cloud.Reclaim(id, time.Hour))
			w.passes(10 * time.Second)
			w.depose()
			w.lead(wanted(2))
			w.passes(2 * time.Minute)
			require.Contains(t, w.in(nstance.Draining), id)
			test(w, id)
		})
	}
	t.Run("a mark: the instance is never wanted again", func(t *testing.T) {
		draining(t, func(w *world, id nstance.InstanceID) {
			w.land(id, func(rec *storage.Instance) { rec.Deleting = &storage.Deletion{At: time.Now()} })
			require.NoError(w.t, w.cloud.Withdraw(id))
			w.passes(2 * time.Minute)
			w.agrees(2)
			require.NotContains(w.t, w.ready(), id)
		})
	})
	t.Run("the end of a drain: nothing is deleted on the strength of it", func(t *testing.T) {
		draining(t, func(w *world, id nstance.InstanceID) {
			w.land(id, func(rec *storage.Instance) { rec.Drain, rec.Generation = nil, rec.Generation+1 })
			w.passes(5 * time.Minute) // past the first deadline
			require.Contains(w.t, w.in(nstance.Draining), id)
			w.mu.Lock()
			w.slowDrain = false
			w.mu.Unlock()
			w.passes(2 * time.Minute)
			w.agrees(2)
			require.Equal(w.t, 2, w.count(nstance.EventDrainStarted, id), "it was drained anew")
			require.Equal(w.t, 1, w.count(nstance.EventDrainAcknowledged, id))
		})
	})
	t.Run("another drain: what the first has done does not count for it", func(t *testing.T) {
		draining(t, func(w *world, id nstance.InstanceID) {
			later := time.Now().Add(30 * time.Minute).UTC()
			w.land(id, func(rec *storage.Instance) {
				rec.Generation += 2
				d := *rec.Drain
				d.Generation, d.Deadline = rec.Generation, later
				rec.Drain = &d
			})
			w.passes(5 * time.Minute) // past the first deadline
			require.Contains(w.t, w.in(nstance.Draining), id)
			require.Zero(w.t, w.count(nstance.EventDeleteRequested, id))
			w.slow(false)
			w.passes(3 * time.Minute)
			w.agrees(2)
			require.Equal(w.t, 1, w.count(nstance.EventDrainAcknowledged, id))
		})
	})
	t.Run("a registration: what registered in time is drained", func(t *testing.T) {
		within(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
			w.r.Observe(nstance.Desired{Groups: []nstance.Group{wanted(3)}})
			w.passes(time.Second)
			id := w.in(nstance.Booting)[0]
			w.mute(id, true)
			w.passes(time.Minute)
			w.land(id, func(rec *storage.Instance) { rec.RegisteredAt = time.Now().UTC() })
			w.passes(5 * time.Minute) // past the timeout of the registration
			require.Contains(t, w.in(nstance.Booting), id)
			w.passes(time.Hour) // but it says nothing
			w.agrees(3)
			require.Equal(t, 1, w.count(nstance.EventDrainStarted, id))
		})
	})
}
