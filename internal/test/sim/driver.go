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

// A driver lets things go wrong by a schedule. The schedule, with everything
// that is drawn for it, comes from the seed alone: what a fault meets in the
// world has no influence on the next one.
type driver struct {
	*World
	rng    *rand.Rand
	acts   sync.WaitGroup
	faults []string

	chosen   sync.Mutex // guards what follows
	versions int
	crashed  map[int]bool // servers that have crashed and not come back yet
	freezing map[nstance.GroupKey]bool
}

func newDriver(w *World) *driver {
	return &driver{World: w, rng: rand.New(rand.NewPCG(w.cfg.Seed, 2)), crashed: map[int]bool{}, freezing: map[nstance.GroupKey]bool{}}
}

// An act is one thing that goes wrong, with its own luck.
type act struct {
	*driver
	rng *rand.Rand
}

// kinds are the acts and how often each is chosen.
var kinds = []struct {
	name   string
	weight int
	do     func(act)
}{
	{"reclaim", 6, act.reclaim}, {"storm", 2, act.storm}, {"kill", 2, act.kill}, {"mute", 2, act.muteOne},
	{"withdraw", 2, act.withdraw}, {"wolf", 3, act.wolf}, {"crash", 4, act.crashOne}, {"crash in a drain", 3, act.crashInDrain},
	{"deaf takeover", 2, act.deafTakeover}, {"cut", 3, act.cutOne}, {"freeze", 3, act.freezeOne}, {"lose answers", 3, act.loseAnswers},
	{"lose messages", 2, act.loseMessages}, {"separate", 2, act.separateSome}, {"blackout", 2, act.blackout},
	{"resize", 2, act.resize}, {"redefine", 2, act.redefine}, {"bad image", 1, act.badImage}, {"shortage", 2, act.shortage},
	{"stillborn", 2, act.stillbornOnes}, {"fault", 2, act.fault}, {"hang hooks", 2, act.hangHooks},
	{"retire", 2, act.retireOne}, {"succession", 2, act.succession}, {"stray", 2, act.strayOne}, {"throttle", 2, act.throttle},
	{"operator", 3, act.attend}, {"reconfigure", 2, act.reconfigure}, {"step", 2, act.step}, {"pause", 1, act.pause},
	{"rollback", 2, act.rollback}, {"group", 2, act.toggle}, {"order", 5, act.orderOne}, {"unbalance", 3, act.unbalance},
	{"clock", 3, act.misset}, {"date", 2, act.misdate}, {"stop change", 2, act.stopChange}, {"preserve", 2, act.preserveOne}, {"age", 2, act.age},
	{"leave pending", 3, act.leavePending}, {"fail starts", 2, act.failStarts}, {"no spot", 2, act.noSpot},
}

// play goes through the schedule until the time for faults is over and the last
// one has ended.
func (d *driver) play() {
	total := 0
	for _, k := range kinds {
		total += k.weight
	}
	for time.Since(d.began) < d.cfg.Faults {
		gap := time.Duration(2+d.rng.IntN(50)) * time.Second
		if d.rng.IntN(8) == 0 {
			gap += 3 * time.Minute // long enough to finish something
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

// seconds draws a duration from low to high seconds.
func (a act) seconds(low, high int) time.Duration {
	return time.Duration(low+a.rng.IntN(high-low+1)) * time.Second
}

// victims returns about n machines that run.
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
		_ = a.cloud.Reclaim(id, notice) // it may be on its way out already
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

// withdraw announces a reclaim and takes it back.
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

// wolf announces a reclaim, takes it back and announces another.
func (a act) wolf() {
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

// crash kills a server; another life of it begins a little later.
func (a act) crash(i int) { a.succeed(i, (*process).crash) }

// succeed ends a server's life; the next one begins a little later.
func (a act) succeed(i int, end func(*process)) {
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
	a.dying = append(a.dying, was)
	a.processes = slices.Clone(a.processes)
	a.processes[i] = next
	a.mu.Unlock()
	a.chosen.Lock()
	a.crashed[i] = false
	a.chosen.Unlock()
}

// crashLeader kills whoever leads.
func (a act) crashLeader() { a.succeedLeader((*process).crash) }

func (a act) succeedLeader(end func(*process)) {
	for i, p := range a.all() {
		if r, _ := p.leading(); r != nil {
			a.succeed(i, end)
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

// deafTakeover lets a new leader find a drain under way for a notice of which
// the agent cannot tell it.
func (a act) deafTakeover() {
	soon, long := a.seconds(4, 10), a.seconds(40, 120)
	for _, id := range a.victims(1) {
		a.put(a.noticed, id)
		_ = a.cloud.Reclaim(id, 10*time.Minute) // as above
		a.hang.Add(1)
		a.sleep(soon)
		a.separate(1, id)
		a.crashLeader()
		a.sleep(long)
		a.separate(-1, id)
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

// freezeOne stops a server in the middle of whatever it does, and lets it go on
// as if no time had passed.
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

// separateSome cuts some agents off from every server.
func (a act) separateSome() {
	for _, id := range a.victims(1 + a.rng.IntN(a.cfg.Size)) {
		a.separate(1, id)
		defer a.separate(-1, id)
	}
	a.sleep(a.seconds(5, 180))
}

// blackout cuts every agent off while the cloud does not say what it has.
func (a act) blackout() {
	for _, m := range a.cloud.Machines() {
		a.separate(1, m.ID)
		defer a.separate(-1, m.ID)
	}
	for _, op := range []simcloud.Op{simcloud.OpGet, simcloud.OpList} {
		a.cloud.Inject(simcloud.Fault{Op: op, Times: 20 + a.rng.IntN(200)})
	}
	a.sleep(a.seconds(30, 240))
}

func (a act) resize() {
	key := a.group()
	size := a.rng.IntN(2 * a.usual(key))
	a.want(key, func(g *nstance.Group) { g.Size = size })
}

// stillbornOnes lets a few machines boot without an agent.
func (a act) stillbornOnes() {
	a.dud(1 + a.rng.IntN(3))
}

// dud lets the next n machines boot without an agent.
func (d *driver) dud(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stillborn = n
}

// fault makes the cloud fail a few calls, before, after or long after the deed.
func (a act) fault() {
	ops := []simcloud.Op{simcloud.OpCreate, simcloud.OpDelete, simcloud.OpGet, simcloud.OpList}
	whens := []simcloud.When{simcloud.Before, simcloud.After, simcloud.Late}
	a.cloud.Inject(simcloud.Fault{
		Op: ops[a.rng.IntN(len(ops))], When: whens[a.rng.IntN(len(whens))], Times: 1 + a.rng.IntN(5), Delay: a.seconds(0, 14),
	})
}

func (a act) hangHooks() {
	a.hang.Add(1)
	a.sleep(a.seconds(0, 120))
	a.hang.Add(-1)
}

// heal ends every fault and asks for something that can be had.
func (d *driver) heal() {
	d.cloud.Heal()
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
	d.mu.Lock()
	d.stillborn = 0
	d.mu.Unlock()
	for _, g := range d.standing() {
		d.calm(g.Key)
	}
	d.undate()
}

// attended lets time go by in which people do what a hold asks them for: where
// so many agents fell silent together that none is replaced, they start them
// again.
func (d *driver) attended(long time.Duration) {
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

// revive starts the agents of a group's machines again.
func (d *driver) revive(key nstance.GroupKey) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, m := range d.machines(key) {
		delete(d.mute, m.ID)
	}
}

// calm asks for something of a group that can be had.
func (d *driver) calm(key nstance.GroupKey) {
	d.thaw(key)
	d.resume(key)
	version := d.version()
	d.want(key, func(g *nstance.Group) {
		g.Size, g.DrainTimeout, g.Definition.UserData = d.usual(key), drainTimeout, content(key, version)
		g.Rollout.MaxSurge.N = max(g.Rollout.MaxSurge.N, d.usual(key)/5-4) // a large group must be done in time too
	})
}
