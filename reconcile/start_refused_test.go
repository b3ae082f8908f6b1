package reconcile_test

import (
	"context"
	"iter"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
)

// neverStarting is a provider that makes machines and cannot start them.
type neverStarting struct {
	nstance.Provider
	starts atomic.Bool
}

func (p *neverStarting) pending(m nstance.Machine) nstance.Machine {
	if m.Status == nstance.StatusRunning && !p.starts.Load() {
		m.Status, m.CauseText = nstance.StatusPending, words
	}
	return m
}

func (p *neverStarting) Get(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
	m, err := p.Provider.Get(ctx, id)
	return p.pending(m), err
}

func (p *neverStarting) List(ctx context.Context, owner nstance.Owner) iter.Seq2[nstance.Machine, error] {
	return func(yield func(nstance.Machine, error) bool) {
		for m, err := range p.Provider.List(ctx, owner) {
			if !yield(p.pending(m), err) {
				return
			}
		}
	}
}

// TestStartRefused: why a machine does not start, which its provider tries by itself, is shown
// with the provider's words, and is why its create has failed in the end.
func TestStartRefused(t *testing.T) {
	start := func(t *testing.T, registration time.Duration) (*world, *neverStarting) {
		w := newWorld(t, simcloud.Options{})
		p := &neverStarting{Provider: w.cloud}
		w.wrap = func(e *leaderEnv) { e.provider = p }
		w.badImage = func(nstance.MachineSpec) bool { return !p.starts.Load() }
		g := webGroup(1)
		g.Definition.RegistrationTimeout, g.Definition.LaunchTimeout = registration, 3*time.Hour
		w.startLeader(g)
		return w, p
	}
	t.Run("while it lasts", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			w, p := start(t, 2*time.Hour)
			defer w.close()
			w.advance(20 * time.Minute)
			needs := w.attentionFor("obstacle")
			require.Len(t, needs, 1)
			require.Contains(t, needs[0].Why, "step create")
			require.Contains(t, needs[0].Why, words)
			p.starts.Store(true)
			w.advance(11 * time.Minute)
			require.Empty(t, w.attentionFor("obstacle"))
		})
	})
	t.Run("in the end", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			w, _ := start(t, 15*time.Minute)
			defer w.close()
			w.advance(17 * time.Minute)
			failed := w.first(nstance.EventDeleteRequested, func(nstance.Event) bool { return true })
			require.Contains(t, failed.Reason, words)
			w.advance(time.Hour)
			require.True(t, slices.ContainsFunc(w.r.Admin().Attention(), func(a reconcile.Attention) bool { return strings.Contains(a.Why, words) }))
		})
	})
}
