package sim

import (
	"fmt"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// A driver chooses what goes wrong next.
type driver struct {
	*World
	versions int
}

// act does one thing, drawn from the seed.
func (d *driver) act() {
	acts := []struct {
		weight int
		do     func()
	}{
		{6, d.reclaim}, {2, d.storm}, {2, d.kill}, {2, d.muteOne}, {2, d.withdraw},
		{4, d.crashOne}, {3, d.cutOne}, {3, d.freezeOne}, {3, d.loseAnswers},
		{2, d.resize}, {2, d.redefine}, {2, d.shortage}, {2, d.fault}, {2, d.hangHooks}, {4, d.calm},
	}
	total := 0
	for _, a := range acts {
		total += a.weight
	}
	n := d.rng.IntN(total)
	for _, a := range acts {
		if n -= a.weight; n < 0 {
			a.do()
			return
		}
	}
}

// victim returns a machine that runs, drawn from the seed.
func (d *driver) victim() (nstance.InstanceID, bool) {
	var running []nstance.InstanceID
	for _, m := range d.cloud.Machines() {
		if m.Status == nstance.StatusRunning {
			running = append(running, m.ID)
		}
	}
	if len(running) == 0 {
		return "", false
	}
	return running[d.rng.IntN(len(running))], true
}

func (d *driver) reclaim() {
	if id, ok := d.victim(); ok {
		d.put(d.noticed, id, true)
		_ = d.cloud.Reclaim(id, time.Duration(20+d.rng.IntN(100))*time.Second) // it may be on its way out already
	}
}

func (d *driver) storm() {
	for range 1 + d.rng.IntN(d.wanted().Size+1) {
		d.reclaim()
	}
}

func (d *driver) kill() {
	if id, ok := d.victim(); ok {
		d.put(d.down, id, true)
		_ = d.cloud.Kill(id) // as above
	}
}

func (d *driver) muteOne() {
	if id, ok := d.victim(); ok {
		d.put(d.mute, id, true)
	}
}

// withdraw announces a reclaim and takes it back.
func (d *driver) withdraw() {
	id, ok := d.victim()
	if !ok || d.isNoticed(id) {
		return
	}
	d.put(d.noticed, id, true)
	if d.cloud.Reclaim(id, 10*time.Minute) != nil {
		return
	}
	d.pass(time.Duration(d.rng.IntN(30)) * time.Second)
	d.put(d.withdrawn, id, true)
	_ = d.cloud.Withdraw(id) // as above
}

func (d *driver) one() *process {
	all := d.all()
	return all[d.rng.IntN(len(all))]
}

// crashOne kills a server; another life of it begins a little later.
func (d *driver) crashOne() {
	i := d.rng.IntN(len(d.all()))
	d.all()[i].crash()
	d.pass(time.Duration(d.rng.IntN(20)) * time.Second)
	next := d.start(string(rune('a' + i)))
	d.mu.Lock()
	d.processes[i] = next
	d.mu.Unlock()
}

func (d *driver) cutOne() {
	p := d.one()
	p.link.set(func(l *link) { l.cut = true })
	d.pass(time.Duration(1+d.rng.IntN(40)) * time.Second)
	p.link.set(func(l *link) { l.cut = false })
}

// freezeOne stops a server in the middle of whatever it does, and lets it go on
// as if no time had passed.
func (d *driver) freezeOne() {
	p := d.one()
	frozen := make(chan struct{})
	p.link.set(func(l *link) { l.frozen = frozen })
	d.pass(time.Duration(1+d.rng.IntN(30)) * time.Second)
	p.link.set(func(l *link) {
		if l.frozen != nil {
			close(l.frozen)
			l.frozen = nil
		}
	})
}

func (d *driver) loseAnswers() {
	share := d.rng.Float64() * 0.4
	for _, p := range d.all() {
		p.link.set(func(l *link) { l.lose = share })
	}
	d.pass(time.Duration(d.rng.IntN(60)) * time.Second)
	for _, p := range d.all() {
		p.link.set(func(l *link) { l.lose = 0 })
	}
}

func (d *driver) resize() {
	size := d.rng.IntN(2 * d.cfg.Size)
	d.want(func(g *nstance.Group) { g.Size = size })
}

func (d *driver) redefine() {
	d.versions++
	content := fmt.Sprintf("v%d", d.versions)
	if d.rng.IntN(4) == 0 {
		content = badImage
	}
	d.want(func(g *nstance.Group) { g.Definition.UserData.Content = content })
}

func (d *driver) shortage() {
	d.cloud.SetCapacity(simcloud.Pool{InstanceType: "small"}, d.rng.IntN(d.cfg.Size))
	d.pass(time.Duration(d.rng.IntN(120)) * time.Second)
	d.cloud.SetCapacity(simcloud.Pool{InstanceType: "small"}, -1)
}

// fault makes the cloud fail a few calls, before, after or long after the deed.
func (d *driver) fault() {
	ops := []simcloud.Op{simcloud.OpCreate, simcloud.OpDelete, simcloud.OpGet, simcloud.OpList}
	whens := []simcloud.When{simcloud.Before, simcloud.After, simcloud.Late}
	d.cloud.Inject(simcloud.Fault{
		Op: ops[d.rng.IntN(len(ops))], When: whens[d.rng.IntN(len(whens))], Times: 1 + d.rng.IntN(5),
		Delay: time.Duration(d.rng.IntN(15)) * time.Second,
	})
}

func (d *driver) hangHooks() {
	d.hang.Store(true)
	d.pass(time.Duration(d.rng.IntN(120)) * time.Second)
	d.hang.Store(false)
}

func (d *driver) calm() { d.pass(2 * time.Minute) }

// heal ends every fault and asks for something that can be had.
func (d *driver) heal() {
	d.cloud.Heal()
	d.cloud.SetCapacity(simcloud.Pool{InstanceType: "small"}, -1)
	d.hang.Store(false)
	for _, p := range d.all() {
		p.link.set(func(l *link) { l.cut, l.lose = false, 0 })
	}
	d.versions++
	d.want(func(g *nstance.Group) {
		g.Size, g.Definition.UserData.Content = d.cfg.Size, fmt.Sprintf("v%d", d.versions)
	})
}
