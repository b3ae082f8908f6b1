package dev

import (
	"context"
	"sync"

	"github.com/nstance-go/nstance"
)

// A gate is the cloud as servers in other processes see it. While it is shut,
// whoever asks for a machine gets no answer, until he goes away: the first call
// of every two has been carried out then, the second has not. That is how a
// server's death in the middle of its calls looks from the cloud.
type gate struct {
	nstance.Provider

	mu     sync.Mutex
	shut   bool
	turn   int                                    // of the calls that hang
	held   map[bool]int                           // calls that hang: carried out, or not
	handle map[nstance.InstanceID]map[string]bool // machines that were made, since the gate was last shut
}

func newGate(p nstance.Provider) *gate {
	return &gate{Provider: p, held: map[bool]int{}, handle: map[nstance.InstanceID]map[string]bool{}}
}

// Create implements nstance.Provider.
func (g *gate) Create(ctx context.Context, spec nstance.MachineSpec) (nstance.Machine, error) {
	hang, work := g.arrive(spec.ID)
	if !hang {
		m, err := g.Provider.Create(ctx, spec)
		g.made(m)
		return m, err
	}
	if work {
		m, err := g.Provider.Create(ctx, spec)
		if err != nil {
			return m, err
		}
		g.made(m)
	}
	g.hold(work, +1)
	defer g.hold(work, -1)
	<-ctx.Done()
	return nstance.Machine{}, nstance.Errorf(nstance.Ambiguous, "nobody has answered: %w", ctx.Err())
}

func (g *gate) arrive(id nstance.InstanceID) (hang, work bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.handle[id] == nil {
		g.handle[id] = map[string]bool{}
	}
	if g.shut {
		g.turn++
	}
	return g.shut, g.turn%2 == 1
}

func (g *gate) made(m nstance.Machine) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if m.ProviderID != "" && g.handle[m.ID] != nil {
		g.handle[m.ID][m.ProviderID] = true
	}
}

func (g *gate) hold(work bool, n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held[work] += n
}

// close shuts the gate and forgets what was before.
func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = true
	clear(g.handle)
}

// open lets later calls through. Those that hang, hang.
func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = false
}

// hanging returns how many calls hang that were carried out, and that were not.
func (g *gate) hanging() (done, undone int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.held[true], g.held[false]
}

// asked returns, for every instance that a machine was asked for since the gate
// was shut, how many were made.
func (g *gate) asked() map[nstance.InstanceID]int {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := map[nstance.InstanceID]int{}
	for id, handles := range g.handle {
		out[id] = len(handles)
	}
	return out
}
