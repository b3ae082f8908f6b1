package dev

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"sync"

	"github.com/nstance-go/nstance"
)

// A gate is at the front of the cloud as servers in other processes see it.
// While it is shut, a call for a machine gets no answer until its caller goes
// away: the first call of every two has been carried out then, the second has
// not. That is how a server's death in the middle of its calls looks from the
// cloud.
type gate struct {
	mu     sync.Mutex
	shut   bool
	turn   int                                    // of the calls that hang
	held   map[bool]int                           // calls that hang: carried out, or not
	handle map[nstance.InstanceID]map[string]bool // machines that were made, since the gate was last shut
}

func newGate() *gate {
	return &gate{held: map[bool]int{}, handle: map[nstance.InstanceID]map[string]bool{}}
}

// A gated provider has a gate in front of its creates.
type gated struct {
	parkingProvider
	*gate
}

type parkingProvider interface {
	nstance.Provider
	nstance.Parker
}

// Create implements nstance.Provider.
func (g gated) Create(ctx context.Context, spec nstance.MachineSpec) (nstance.Machine, error) {
	g.asked(spec.ID)
	hang, work := g.arrive()
	if !hang {
		m, err := g.parkingProvider.Create(ctx, spec)
		g.made(m.ID, m.ProviderID)
		return m, err
	}
	if work {
		m, err := g.parkingProvider.Create(ctx, spec)
		if err != nil {
			return m, err
		}
		g.made(m.ID, m.ProviderID)
	}
	g.hold(work, +1)
	defer g.hold(work, -1)
	<-ctx.Done()
	return nstance.Machine{}, nstance.Errorf(nstance.Ambiguous, "no answer: %w", ctx.Err())
}

// maxRequest is the longest request of a cloud's API that is looked into, in
// bytes: user data and what surrounds it.
const maxRequest = 4 << 20

// before puts the gate in front of a cloud's API. creates says which requests ask
// for a machine.
func (g *gate) before(next http.Handler, creates func(r *http.Request, body []byte) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		if !creates(r, body) {
			next.ServeHTTP(w, r)
			return
		}
		hang, work := g.arrive()
		if !hang {
			next.ServeHTTP(w, r)
			return
		}
		if work {
			next.ServeHTTP(lostAnswer{}, r)
		}
		g.hold(work, +1)
		defer g.hold(work, -1)
		<-r.Context().Done()
	})
}

// lostAnswer is an answer that arrives nowhere.
type lostAnswer http.Header

func (l lostAnswer) Header() http.Header       { return http.Header(l) }
func (lostAnswer) Write(b []byte) (int, error) { return len(b), nil }
func (lostAnswer) WriteHeader(int)             {}

func (g *gate) arrive() (hang, work bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut {
		g.turn++
	}
	return g.shut, g.turn%2 == 1
}

// asked and made record that a machine was asked for, and made.
func (g *gate) asked(id nstance.InstanceID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.handle[id] == nil {
		g.handle[id] = map[string]bool{}
	}
}

func (g *gate) made(id nstance.InstanceID, handle string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if handle != "" && g.handle[id] != nil {
		g.handle[id][handle] = true
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

// count returns, for every instance that a machine was asked for since the gate
// was shut, how many were made.
func (g *gate) count() map[nstance.InstanceID]int {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := map[nstance.InstanceID]int{}
	for id, handles := range g.handle {
		out[id] = len(handles)
	}
	return out
}
