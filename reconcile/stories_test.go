package reconcile_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/attention"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// A story is a scenario. It begins with a group at size whose members are all ready, and
// every call in it is struck in turn.
type story struct {
	name            string
	size            int // initial
	slow            bool
	run             func(c *crash)
	end             int  // final size of the group
	extra           int  // final instances on demand
	timingDependent bool // the machines that are created depend on when the change arrives

	ownUserData bool          // no two leaders render the same user data
	snapshots   time.Duration // start of the first snapshot into a term; 0: none
	balancer    string        // load balancer of the group; empty: none
	pool        int           // stand-by machines in the end
	poolBefore  int           // initial
	failedFirst bool          // the first machine on demand is shown as failed until it is deleted
}

// group is the group of the story, at a size.
func (y story) group(size int) nstance.Group {
	if y.poolBefore > 0 {
		return pooled(size, y.poolBefore)
	}
	if y.balancer == "" {
		return webGroup(size)
	}
	return balancedGroup(size, y.balancer)
}

// pooled is a group with a warm pool.
func pooled(size, pool int) nstance.Group {
	g := webGroup(size)
	g.WarmPool = nstance.WarmPool{Size: pool, Mode: nstance.ParkStopped}
	return g
}

// pooledStories are those of stand-by machines.
var pooledStories = []story{
	{name: "pool is filled", size: 1, end: 1, pool: 1, run: func(c *crash) { c.setDesired(pooled(1, 1)) }},
	{name: "member is bridged", size: 2, end: 2, pool: 1, poolBefore: 1, run: func(c *crash) {
		c.protect(c.w.ready()[1])
		c.protect(c.w.in(nstance.Parked)[0])
		require.NoError(c.w.t, c.w.outside.Reclaim(c.w.ready()[0], 2*time.Minute))
	}},
	{name: "handover while a machine wakes", size: 2, end: 2, pool: 1, poolBefore: 1, run: func(c *crash) {
		c.protect(c.w.in(nstance.Parked)[0])
		require.NoError(c.w.t, c.w.outside.Reclaim(c.w.ready()[0], 2*time.Minute))
		c.w.advance(300 * time.Millisecond) // it has been asked for
		c.handOver()
	}},
	{name: "pool ends", size: 1, end: 1, poolBefore: 1, run: func(c *crash) { c.setDesired(webGroup(1)) }},
}

var stories = []story{
	{name: "group grows", size: 1, end: 2, run: func(c *crash) { c.setDesired(webGroup(2)) }},
	{name: "group shrinks", size: 2, end: 1, run: func(c *crash) {
		c.protect(c.w.ready()[1])
		c.setDesired(webGroup(1))
	}},
	{name: "member is reclaimed", size: 2, end: 2, run: func(c *crash) {
		c.protect(c.w.ready()[1])
		require.NoError(c.w.t, c.w.outside.Reclaim(c.w.ready()[0], 2*time.Minute))
	}},
	{name: "drain lasts until its deadline", size: 2, slow: true, end: 2, run: func(c *crash) {
		c.protect(c.w.ready()[1])
		require.NoError(c.w.t, c.w.outside.Reclaim(c.w.ready()[0], 3*time.Minute))
	}},
	{name: "rollout", size: 1, end: 1, run: func(c *crash) {
		next := webGroup(1)
		next.Definition.UserData.Content = "v2"
		c.setDesired(next)
	}},
	{name: "handover during a drain", size: 2, slow: true, snapshots: 5 * time.Second, end: 2, run: func(c *crash) {
		c.protect(c.w.ready()[1])
		require.NoError(c.w.t, c.w.outside.Reclaim(c.w.ready()[0], 3*time.Minute))
		c.w.advance(10 * time.Second)
		c.handOver()
	}},
	{name: "handover during a launch", size: 1, end: 2, run: func(c *crash) {
		c.setDesired(webGroup(2))
		c.w.advance(10 * time.Millisecond) // the call is in flight
		c.handOver()
	}},
	{name: "handover during a delete", size: 2, end: 1, run: func(c *crash) {
		c.protect(c.w.ready()[1])
		c.setDesired(webGroup(1))
		for c.w.count(nstance.EventDeleteRequested, "") == 0 && c.w.count(nstance.EventDeleted, "") == 0 {
			c.w.advance(10 * time.Millisecond)
		}
		c.handOver()
	}},
	{name: "machine vanishes", size: 2, end: 2, run: func(c *crash) {
		lost := c.w.ready()[0]
		c.protect(c.w.ready()[1])
		require.NoError(c.w.t, c.w.outside.Kill(lost))
		r, _ := c.w.leader()
		r.Observe(nstance.Disconnected{ID: lost})
	}},
	{name: "reclaim is withdrawn", size: 2, slow: true, end: 2, timingDependent: true, run: func(c *crash) {
		spared := c.w.ready()[0]
		require.NoError(c.w.t, c.w.outside.Reclaim(spared, 10*time.Minute))
		c.w.advance(10 * time.Second)
		require.NoError(c.w.t, c.w.outside.Withdraw(spared))
	}},
	{name: "size change is reverted", size: 1, end: 1, timingDependent: true, run: func(c *crash) {
		c.protect(c.w.ready()[0])
		c.setDesired(webGroup(2))
		c.w.advance(2 * time.Second)
		c.setDesired(webGroup(1))
	}},
	{name: "group grows behind a load balancer", size: 1, end: 2, balancer: "front", run: func(c *crash) { c.setDesired(balancedGroup(2, "front")) }},
	{name: "group shrinks behind a load balancer", size: 2, end: 1, balancer: "front", run: func(c *crash) {
		c.protect(c.w.ready()[1])
		c.setDesired(balancedGroup(1, "front"))
	}},
	{name: "handover while leaving a load balancer", size: 2, slow: true, end: 2, balancer: "front", run: func(c *crash) {
		require.NoError(c.w.t, c.w.outside.Reclaim(c.w.ready()[0], 3*time.Minute))
		c.w.advance(120 * time.Millisecond) // the call is in flight
		c.handOver()
	}},
	{name: "sold out for a while", size: 1, end: 2, run: func(c *crash) {
		c.w.outside.SetCapacity(1)
		c.setDesired(webGroup(2))
		c.w.advance(20 * time.Second)
		c.w.outside.SetCapacity(10)
	}},
	{name: "instance on demand", size: 1, end: 1, extra: 1, run: func(c *crash) {
		c.protect(c.w.ready()[0])
		c.requestOnDemand()
	}},
	{name: "instance on demand, sold out for a while", size: 1, end: 1, extra: 1, run: func(c *crash) {
		c.w.outside.SetCapacity(1)
		c.requestOnDemand()
		c.w.advance(20 * time.Second)
		c.w.outside.SetCapacity(10)
	}},
	{name: "group is removed", size: 2, end: 0, run: func(c *crash) {
		g := webGroup(2)
		g.Removing = true
		c.setDesired(g)
	}},
}

// failingFirst is a cloud that cannot start the first machine of each instance.
type failingFirst struct {
	outside
	cloud *simcloud.Cloud

	mu     sync.Mutex
	failed map[nstance.InstanceID]string // the token
}

func (f *failingFirst) Create(ctx context.Context, spec nstance.MachineSpec) (nstance.Machine, error) {
	m, err := f.outside.Create(ctx, spec)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil && f.failed[spec.ID] == "" {
		f.failed[spec.ID] = spec.Token
		err = f.cloud.Stop(m.ID, nstance.StatusFailed)
	}
	return m, err
}

func (f *failingFirst) Get(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
	m, err := f.outside.Get(ctx, id)
	if m.Status == nstance.StatusFailed {
		m.Cause, m.CauseText = nstance.LossCapacity, "no room for this size"
	}
	return m, err
}

// Delete deletes whatever machine has the ID: as on Azure, the handle is a name.
func (f *failingFirst) Delete(ctx context.Context, m nstance.Machine) error {
	m.ProviderID = ""
	return f.outside.Delete(ctx, m)
}

// crash is one run of a story, with one call struck.
type crash struct {
	w          *world
	s          *seam
	desired    atomic.Pointer[nstance.Group]
	protected  []nstance.InstanceID
	onDemandID nstance.InstanceID // empty: no instance on demand
	over       chan struct{}
	ended      chan struct{}
	leaders    []<-chan struct{} // closed when their Run has returned
}

// runStory runs a story in a bubble of its own and returns its seam.
func runStory(t *testing.T, y story, aim label, with strike) *seam {
	return runStoryOn(t, y, aim, with, func(*world) {})
}

// runStoryOn runs a story on the cloud that replace installs.
func runStoryOn(t *testing.T, y story, aim label, with strike, replace func(*world)) (s *seam) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{Balancers: []string{"lb-1"}, ByToken: y.failedFirst})
		w.ownUserData, w.keepLives = y.ownUserData, true
		replace(w)
		if y.failedFirst {
			w.outside = &failingFirst{outside: w.outside, cloud: w.cloud, failed: map[nstance.InstanceID]string{}}
		}
		c := &crash{w: w, s: newSeam(w, aim, with), over: make(chan struct{}), ended: make(chan struct{})}
		s = c.s
		if y.snapshots > 0 {
			s.snapshots = y.snapshots
		}
		if y.balancer != "" {
			s.balancers = []nstance.LoadBalancer{front}
		}
		c.begin(y.group(y.size))
		defer c.end()
		w.advance(time.Minute)
		if y.poolBefore > 0 {
			w.advance(2 * time.Minute)
			require.Len(t, w.in(nstance.Parked), y.poolBefore)
		} else {
			w.requireMembers(y.size)
		}
		w.mu.Lock()
		w.slowDrain = y.slow
		w.mu.Unlock()
		s.startNumbering()
		y.run(c)
		c.settle(y, with)
		c.requireOutcome(y, with)
		if o, ok := w.outside.(interface{ leftovers() []string }); ok {
			require.Empty(t, o.leftovers(), "interfaces and disks are deleted with their machine")
		}
	})
	return s
}

// begin starts the first leader, and a goroutine that starts the next one a moment after
// a leader ends.
func (c *crash) begin(g nstance.Group) {
	c.desired.Store(&g)
	c.lead()
	go func() {
		defer close(c.ended)
		for {
			select {
			case <-c.over:
				return
			case o := <-c.s.ended:
				if o != c.office() {
					continue // reported twice
				}
			}
			<-time.After(electionDelay)
			c.lead()
		}
	}()
}

func (c *crash) lead() {
	c.w.startLeader(*c.desired.Load())
	c.leaders = append(c.leaders, c.w.done)
	r, _ := c.w.leader()
	r.Observe(nstance.Desired{Groups: []nstance.Group{*c.desired.Load()}}) // changed meanwhile
}

// setDesired changes the group's desired values.
func (c *crash) setDesired(g nstance.Group) {
	c.desired.Store(&g)
	r, _ := c.w.leader()
	r.Observe(nstance.Desired{Groups: []nstance.Group{g}})
}

// protect names a member that must not be deleted.
func (c *crash) protect(id nstance.InstanceID) { c.protected = append(c.protected, id) }

// handOver ends the present term in an orderly way.
func (c *crash) handOver() {
	o := c.office()
	o.cancel()
	select {
	case c.s.ended <- o:
	default: // it has just ended
	}
	c.w.advance(2 * electionDelay)
}

func (c *crash) office() *leaderEnv {
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

// settle advances the clock until the outcome is reached and a while longer, then hands
// over to a leader that should have nothing to do.
func (c *crash) settle(y story, with strike) {
	c.w.advance(20 * time.Second) // the change has arrived
	if with == late || with == belated {
		c.w.advance(time.Minute) // a late call has landed
	}
	for range 60 {
		if c.outcomeReached(y) {
			break
		}
		if c.w.abandoned(c.onDemandID) {
			c.requestOnDemand() // the caller repeats a failed request
		}
		c.w.advance(10 * time.Second)
	}
	if with != none {
		c.handOver()
	}
	c.w.advance(2 * time.Minute)
}

// abandoned reports whether the caller was told to make a new ID for an instance on
// demand.
func (w *world) abandoned(id nstance.InstanceID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.events, func(e nstance.Event) bool {
		return e.Instance == id && e.Type == nstance.EventCreateFailed && strings.Contains(e.Error, "make a new ID")
	})
}

func (c *crash) outcomeReached(y story) bool {
	g := c.w.group()
	return g.Ready == y.end && g.OnDemand == y.extra && g.Leaving == 0 && g.Booting == 0 && g.Stale == 0 &&
		len(c.w.outside.Machines()) == y.end+y.extra+y.pool && len(c.w.ready()) == y.end+y.extra && len(c.w.in(nstance.Parked)) == y.pool
}

// requestOnDemand requests an instance on demand until it is accepted.
func (c *crash) requestOnDemand() {
	id, err := nstance.NewInstanceID("web", time.Now())
	require.NoError(c.w.t, err)
	c.onDemandID = id
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

// requireOutcome checks the outcome of the story.
func (c *crash) requireOutcome(y story, with strike) {
	t := c.w.t
	for _, id := range c.protected {
		require.False(t, c.s.deleted[id], "deleted a healthy member")
	}
	require.Empty(t, c.s.violations)
	require.Len(t, c.w.in(nstance.Parked), y.pool)
	c.w.requireMachines(y.end+y.extra, y.end+y.extra+y.pool)
	g := c.w.group()
	require.Equal(t, y.extra, g.OnDemand)
	require.Zero(t, g.Stale+g.Leaving+g.Booting)
	require.Empty(t, g.Holds, "the group has no holds")
	r, drains := c.w.leader()
	require.Empty(t, attention.Problems(r.Admin().Attention()))
	require.Len(t, drains.Active(), y.pool, "those of parked machines stand")
	if y.balancer != "" {
		c.w.requireBalanced("lb-1")
	}
	c.requireLives()
}

// requireLives checks that the ledger has the life of every machine that is gone, and
// of no other one.
func (c *crash) requireLives() {
	t, lives := c.w.t, c.w.lives()
	for id := range lives {
		require.False(t, slices.ContainsFunc(c.w.outside.Machines(), func(m nstance.Machine) bool { return m.ID == id }), "the life of %s was recorded before its end", id)
	}
	delete(c.s.made, "") // a clone on Proxmox VE before it has its name
	for id := range c.s.made {
		if !slices.ContainsFunc(c.w.outside.Machines(), func(m nstance.Machine) bool { return m.ID == id }) {
			require.Contains(t, lives, id, "the life of every machine that is gone is on record")
		}
	}
}

// storiesWithOwnUserData are the same stories with leaders that render different user data.
func storiesWithOwnUserData() []story {
	out := slices.Clone(stories)
	for i := range out {
		out[i].name += ", different user data per leader"
		out[i].ownUserData = true
	}
	return out
}

// compare checks that a story with a strike created no more machines than without.
func compare(t *testing.T, y story, plain, s *seam) {
	most := len(plain.made)
	if s.aim.what == "create machine" && (s.with == late || s.with == belated) {
		most++ // a call in flight cannot be stopped; its machine must be gone by now
	}
	require.LessOrEqual(t, len(s.made), most, "no more machines than without the strike")
	if !y.timingDependent {
		require.GreaterOrEqual(t, len(s.made), len(plain.made), "no fewer either")
	}
}

// strikes are the ways to hit a call. A read has no effect, so a late read does nothing.
// Writes of other objects than records and machines are awaited by no call and are only
// read back.
func strikes(l label) []strike {
	switch _, object, _ := strings.Cut(l.what, " "); {
	case !l.mutates():
		return []strike{before, lost}
	case object == "instance", object == "machine":
		return []strike{before, after, blinded, lost, paused, late, belated}
	}
	return []strike{before, after, lost, late}
}

// writeLate writes to a record behind the leader, as a delayed call of a former leader does.
func (w *world) writeLate(id nstance.InstanceID, change func(*records.Instance)) {
	w.t.Helper()
	former := records.New(w.store, "s1", &records.Options{Epoch: 1})
	_, _, err := former.Load(w.ctx)
	require.NoError(w.t, err)
	_, err = former.Update(w.ctx, id, func(rec *records.Instance) error { change(rec); return nil })
	require.NoError(w.t, err)
}

// setAgentSilent stops or resumes the reports of an agent.
func (w *world) setAgentSilent(id nstance.InstanceID, silent bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.broken[id] = silent
}
