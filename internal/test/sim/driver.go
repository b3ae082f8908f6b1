package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// driver injects faults by a schedule. The schedule and all its parameters come from the
// seed alone; the state of the world does not influence later faults.
type driver struct {
	*World
	rng    *rand.Rand
	acts   sync.WaitGroup
	faults []string

	chosen   sync.Mutex // guards the fields below
	versions int
	crashed  map[int]bool // servers that have crashed and not restarted yet
	freezing map[nstance.GroupKey]bool
	avoiding map[reconcile.Pool]bool
}

func newDriver(w *World) *driver {
	return &driver{World: w, rng: rand.New(rand.NewPCG(w.cfg.Seed, 2)), crashed: map[int]bool{}, freezing: map[nstance.GroupKey]bool{}, avoiding: map[reconcile.Pool]bool{}}
}

// act is one fault or change, with its own random source.
type act struct {
	*driver
	rng *rand.Rand
}

// kinds are the acts and their weights.
var kinds = []struct {
	name   string
	weight int
	do     func(act)
}{
	{"reclaim", 6, act.reclaim}, {"storm", 2, act.storm}, {"kill", 2, act.kill}, {"mute", 2, act.muteOne},
	{"withdraw", 2, act.withdraw}, {"withdraw and repeat", 3, act.withdrawAndRepeat}, {"crash", 4, act.crashOne}, {"crash in a drain", 3, act.crashInDrain},
	{"takeover without notice", 2, act.takeoverWithoutNotice}, {"cut", 3, act.cutOne}, {"freeze server", 3, act.freezeOne}, {"lose answers", 3, act.loseAnswers},
	{"lose messages", 2, act.loseMessages}, {"partition", 2, act.partitionSome}, {"blackout", 2, act.blackout},
	{"resize", 2, act.resize}, {"redefine", 2, act.redefine}, {"bad image", 1, act.badImage}, {"shortage", 2, act.shortage},
	{"boot without agent", 2, act.bootWithoutAgent}, {"fault", 2, act.fault}, {"hang hooks", 2, act.hangHooks},
	{"retire", 2, act.retireOne}, {"succession", 2, act.succession}, {"stray", 2, act.strayOne}, {"throttle", 2, act.throttle},
	{"operator", 3, act.changeOperatorMode}, {"reconfigure", 2, act.reconfigure}, {"step", 2, act.step}, {"pause", 1, act.pause},
	{"rollback", 2, act.rollback}, {"group", 2, act.toggle}, {"order", 5, act.orderOne}, {"disturb balancer", 3, act.disturbBalancer},
	{"clock", 3, act.setClockWrong}, {"date", 2, act.setStorageClockWrong}, {"freeze group", 2, act.freezeGroup}, {"preserve", 2, act.preserveOne}, {"age", 2, act.age},
	{"leave pending", 3, act.leavePending}, {"fail starts", 2, act.failStarts}, {"sell out spot", 2, act.sellOutSpot},
	{"avoid pool", 2, act.avoidPool}, {"disturb stand-by", 4, act.disturbStandby}, {"claim", 2, act.claim},
}

// play runs the schedule until the time for faults is over and the last act has ended.
func (d *driver) play() {
	total := 0
	for _, k := range kinds {
		total += k.weight
	}
	for time.Since(d.began) < d.cfg.Faults {
		gap := time.Duration(2+d.rng.IntN(50)) * time.Second
		if d.rng.IntN(8) == 0 {
			gap += 3 * time.Minute // long enough to converge
		}
		d.pass(gap)
		n, seed := d.rng.IntN(total), d.rng.Uint64()
		for _, k := range kinds {
			if n -= k.weight; n < 0 {
				d.faults = append(d.faults, fmt.Sprintf("%v %s %x", time.Since(d.began), k.name, seed))
				d.acts.Go(func() { k.do(act{d, rand.New(rand.NewPCG(seed, 4))}) })
				break
			}
		}
	}
	d.acts.Wait()
}

// seconds returns a random duration from low to high seconds.
func (a act) seconds(low, high int) time.Duration {
	return time.Duration(low+a.rng.IntN(high-low+1)) * time.Second
}

// victims returns about n running machines.
func (a act) victims(n int) []nstance.InstanceID {
	var running, out []nstance.InstanceID
	for _, m := range a.cloud.Machines() {
		if m.Status == nstance.StatusRunning {
			running = append(running, m.ID)
		}
	}
	for range n {
		if at := int(a.rng.Float64() * float64(len(running))); len(running) > 0 {
			out = append(out, running[at])
		}
	}
	return out
}

func (a act) reclaim() {
	notice := a.seconds(20, 120)
	for _, id := range a.victims(1) {
		a.put(a.noticed, id)
		_ = a.cloud.Reclaim(id, notice) // it may be stopping already
	}
}

func (a act) storm() {
	for range 1 + a.rng.IntN(a.cfg.Size+1) {
		a.reclaim()
	}
}

func (a act) kill() {
	for _, id := range a.victims(1) {
		_ = a.cloud.Kill(id) // as above
	}
}

func (a act) muteOne() {
	for _, id := range a.victims(1) {
		a.put(a.mute, id)
	}
}

// withdraw announces a reclaim and withdraws it.
func (a act) withdraw() {
	wait := a.seconds(0, 30)
	for _, id := range a.victims(1) {
		a.put(a.noticed, id)
		if a.cloud.Reclaim(id, 10*time.Minute) == nil {
			a.sleep(wait)
			_ = a.cloud.Withdraw(id) // as above
		}
	}
}

// withdrawAndRepeat announces a reclaim, withdraws it and announces another.
func (a act) withdrawAndRepeat() {
	first, second := a.seconds(3, 20), a.seconds(3, 15)
	for _, id := range a.victims(1) {
		a.put(a.noticed, id)
		if a.cloud.Reclaim(id, 10*time.Minute) != nil {
			continue
		}
		a.sleep(first)
		_ = a.cloud.Withdraw(id) // as above
		a.sleep(second)
		_ = a.cloud.Reclaim(id, 10*time.Minute)
	}
}

func (a act) crashOne() { a.crash(a.rng.IntN(a.cfg.Servers)) }

// crash kills a server and restarts it a little later.
func (a act) crash(i int) { a.replaceServer(i, (*process).crash) }

// replaceServer stops a server with end and restarts it a little later.
func (a act) replaceServer(i int, end func(*process)) {
	away := a.seconds(0, 20)
	a.chosen.Lock()
	if a.crashed[i] {
		a.chosen.Unlock()
		return
	}
	a.crashed[i] = true
	a.chosen.Unlock()
	was := a.all()[i]
	end(was)
	a.sleep(away)
	next := a.start(string(rune('a' + i)))
	a.mu.Lock()
	a.crashedProcesses = append(a.crashedProcesses, was)
	a.processes = slices.Clone(a.processes)
	a.processes[i] = next
	a.mu.Unlock()
	a.chosen.Lock()
	a.crashed[i] = false
	a.chosen.Unlock()
}

// crashLeader kills the leader.
func (a act) crashLeader() { a.replaceLeader((*process).crash) }

func (a act) replaceLeader(end func(*process)) {
	for i, p := range a.all() {
		if r, _ := p.leading(); r != nil {
			a.replaceServer(i, end)
			return
		}
	}
}

// crashInDrain reclaims a machine and kills the leader soon afterwards.
func (a act) crashInDrain() {
	a.reclaim()
	a.sleep(a.seconds(0, 15))
	a.crashLeader()
}

// takeoverWithoutNotice gives a new leader a drain in progress for a notice that the agent cannot
// report.
func (a act) takeoverWithoutNotice() {
	soon, long := a.seconds(4, 10), a.seconds(40, 120)
	for _, id := range a.victims(1) {
		a.put(a.noticed, id)
		_ = a.cloud.Reclaim(id, 10*time.Minute) // as above
		a.hang.Add(1)
		a.sleep(soon)
		a.partition(1, id)
		a.crashLeader()
		a.sleep(long)
		a.partition(-1, id)
		a.hang.Add(-1)
	}
}

func (a act) one() *process { return a.all()[a.rng.IntN(a.cfg.Servers)] }

func (a act) cutOne() {
	p := a.one()
	p.link.set(func(l *link) { l.cut = true })
	a.sleep(a.seconds(1, 40))
	p.link.set(func(l *link) { l.cut = false })
}

// freezeOne stops a server at an arbitrary point and resumes it as if no time had
// passed.
func (a act) freezeOne() {
	thaw := a.one().link.freeze()
	a.sleep(a.seconds(1, 30))
	thaw()
}

func (a act) loseAnswers() {
	share := a.rng.Float64() * 0.4
	for _, p := range a.all() {
		p.link.set(func(l *link) { l.lose = share })
	}
	a.sleep(a.seconds(0, 60))
	for _, p := range a.all() {
		p.link.set(func(l *link) { l.lose = 0 })
	}
}

// loseMessages drops messages between agents and servers, both ways.
func (a act) loseMessages() {
	a.loss.Store(uint64(100 + a.rng.IntN(600)))
	a.sleep(a.seconds(10, 120))
	a.loss.Store(0)
}

// partitionSome partitions some agents from every server.
func (a act) partitionSome() {
	for _, id := range a.victims(1 + a.rng.IntN(a.cfg.Size)) {
		a.partition(1, id)
		defer a.partition(-1, id)
	}
	a.sleep(a.seconds(5, 180))
}

// blackout partitions every agent while the cloud's listings fail.
func (a act) blackout() {
	for _, m := range a.cloud.Machines() {
		a.partition(1, m.ID)
		defer a.partition(-1, m.ID)
	}
	for _, op := range []simcloud.Op{simcloud.OpGet, simcloud.OpList} {
		a.cloud.Inject(simcloud.Fault{Op: op, Times: 20 + a.rng.IntN(200)})
	}
	a.sleep(a.seconds(30, 240))
}

func (a act) resize() {
	key := a.group()
	size := a.rng.IntN(2 * a.usualSize(key))
	a.setGroup(key, func(g *nstance.Group) { g.Size = size })
}

// bootWithoutAgent makes a few machines boot without an agent.
func (a act) bootWithoutAgent() {
	a.withoutAgent(1 + a.rng.IntN(3))
}

// withoutAgent makes the next n machines boot without an agent.
func (d *driver) withoutAgent(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.nextWithoutAgent = n
}

// fault makes the cloud fail a few calls, before, after or long after their effect.
func (a act) fault() {
	ops := []simcloud.Op{simcloud.OpCreate, simcloud.OpDelete, simcloud.OpGet, simcloud.OpList}
	f := simcloud.Fault{Op: ops[a.rng.IntN(len(ops))]}
	when := a.rng.IntN(3)
	f.Times, f.Lost = 1+a.rng.IntN(5), when == 1
	if delay := a.seconds(0, 14); when == 2 {
		f.Delay = max(delay, 1)
	}
	a.cloud.Inject(f)
}

func (a act) hangHooks() {
	a.hang.Add(1)
	a.sleep(a.seconds(0, 120))
	a.hang.Add(-1)
}

// heal ends every fault and resets all groups.
func (d *driver) heal() {
	d.cloud.ClearFaults()
	d.cloud.SetCapacity(simcloud.Pool{InstanceType: small}, -1)
	d.cloud.SetCapacity(simcloud.Pool{}, -1)
	d.cloud.SetCapacity(spotPool, -1)
	d.cloud.FailStarts(simcloud.Pool{}, "", 0)
	for _, lb := range balancers {
		d.cloud.SetBalancer(lb.ID, true)
	}
	for _, p := range d.all() {
		p.link.set(func(l *link) { l.cut, l.lose, l.refuse = false, 0, 0 })
		p.wall.step(0)
	}
	d.storage.step(0)
	d.thaw(wholeShard)
	for _, pool := range avoidablePools {
		d.release(pool)
	}
	for i := range claimants {
		d.releaseClaim(claimant(i))
	}
	d.mu.Lock()
	d.nextWithoutAgent = 0
	d.mu.Unlock()
	for _, g := range d.desiredGroups() {
		d.resetGroup(g.Key)
	}
	d.deleteDelayed()
}

// advanceAttended advances the clock with an operator who follows the remedies of holds: where
// the breaker holds, the agents are restarted.
func (d *driver) advanceAttended(long time.Duration) {
	const look = 5 * time.Minute
	for ; long > 0; long -= look {
		d.pass(min(look, long))
		r, _ := d.leader()
		if r == nil {
			continue
		}
		for _, g := range r.Groups() {
			if slices.ContainsFunc(g.Holds, func(h reconcile.HoldView) bool { return h.Kind == plan.HoldBreaker }) {
				d.revive(g.Key)
			}
		}
	}
}

// revive restarts the agents of a group's machines.
func (d *driver) revive(key nstance.GroupKey) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, m := range d.machines(key) {
		delete(d.mute, m.ID)
	}
}

// resetGroup sets a group to a state that can be reached.
func (d *driver) resetGroup(key nstance.GroupKey) {
	d.thaw(key)
	d.resume(key)
	version := d.version()
	d.setGroup(key, func(g *nstance.Group) {
		g.Size, g.DrainTimeout, g.Definition.UserData = d.usualSize(key), drainTimeout, content(key, version)
		g.Rollout.MaxSurge.N = max(g.Rollout.MaxSurge.N, d.usualSize(key)/5-4) // a large group must converge in time too
	})
}
