package reconcile_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// A callHook is a provider whose calls pass through the functions that are set.
type callHook struct {
	nstance.Provider
	create func(ctx context.Context, spec nstance.MachineSpec) (nstance.Machine, error)
	get    func(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error)
	delete func(ctx context.Context, m nstance.Machine) error
}

func (p *callHook) Create(ctx context.Context, spec nstance.MachineSpec) (nstance.Machine, error) {
	if p.create != nil {
		return p.create(ctx, spec)
	}
	return p.Provider.Create(ctx, spec)
}

func (p *callHook) Get(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
	if p.get != nil {
		return p.get(ctx, id)
	}
	return p.Provider.Get(ctx, id)
}

func (p *callHook) Delete(ctx context.Context, m nstance.Machine) error {
	if p.delete != nil {
		return p.delete(ctx, m)
	}
	return p.Provider.Delete(ctx, m)
}

// withHook runs a test in a world whose leader asks the cloud through a hook.
func withHook(t *testing.T, o simcloud.Options, test func(t *testing.T, w *world, p *callHook)) {
	bubble(t, func(t *testing.T) {
		o.ByToken = true
		w := newWorld(t, o)
		defer w.close()
		p := &callHook{Provider: w.cloud}
		w.wrap = func(e *leaderEnv) { e.provider = p }
		w.startLeader(webGroup(0))
		w.advance(time.Minute)
		test(t, w, p)
	})
}

// TestTokensAreUsedOnce: after a machine is lost, no later create has its token, also when the
// instance returns to the shape of that machine.
func TestTokensAreUsedOnce(t *testing.T) {
	withHook(t, simcloud.Options{}, func(t *testing.T, w *world, p *callHook) {
		var mu sync.Mutex
		tokens := map[string]int{}
		p.create = func(ctx context.Context, spec nstance.MachineSpec) (nstance.Machine, error) {
			mu.Lock()
			defer mu.Unlock()
			tokens[spec.Token]++
			if spec.InstanceType == "medium" {
				return nstance.Machine{}, nstance.Errorf(nstance.Capacity, "sold out")
			}
			return w.cloud.Create(ctx, spec)
		}
		w.cloud.FailStarts(simcloud.Pool{InstanceType: "small"}, nstance.LossCapacity, 1)
		w.requestTypes("small", "medium")
		w.advance(12 * time.Minute)
		w.requireMembers(1)
		require.Equal(t, map[string]int{"small": 1}, w.types())
		require.Len(t, tokens, 3)
		for _, n := range tokens {
			require.Equal(t, 1, n)
		}
	})
}

// TestFailedLaunchOfRegistered: an agent whose registration is durable, and of which the leader
// was not told, keeps its machine, whatever the cloud says of it.
func TestFailedLaunchOfRegistered(t *testing.T) {
	withHook(t, simcloud.Options{}, func(t *testing.T, w *world, p *callHook) {
		w.mu.Lock()
		w.badImage = func(nstance.MachineSpec) bool { return true }
		w.mu.Unlock()
		p.get = func(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
			m, err := w.cloud.Get(ctx, id)
			m.Status, m.Cause = nstance.StatusFailed, nstance.LossCapacity
			return m, err
		}
		id := w.requestTypes("small", "medium")
		w.advance(5 * time.Second)
		w.writeLate(id, func(rec *records.Instance) { rec.RegisteredAt = time.Now().UTC() })
		w.advance(50 * time.Second)
		require.Zero(t, w.cloud.Count(simcloud.OpDelete))
		rec, _ := w.r.Admin().Internals().Records().Get(id)
		require.Nil(t, rec.FailedLaunch)
	})
}

// TestFailedLaunchIsMarkedByEachLeader: the mark is of the present term before its first Delete,
// so that no late write of the former leader removes it.
func TestFailedLaunchIsMarkedByEachLeader(t *testing.T) {
	withHook(t, simcloud.Options{Boot: simcloud.Delay{Min: time.Minute}}, func(t *testing.T, w *world, p *callHook) {
		terms := make(chan uint64, 100)
		p.delete = func(ctx context.Context, m nstance.Machine) error {
			stored := records.New(w.store, "s1", nil)
			_, _, err := stored.Load(ctx)
			if rec, ok := stored.Get(m.ID); err == nil && ok && rec.FailedLaunch != nil {
				terms <- rec.Epoch
			}
			return nstance.Errorf(nstance.Unavailable, "not now")
		}
		p.get = func(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
			m, err := w.cloud.Get(ctx, id)
			if m.Status.Dead() {
				m.Cause = nstance.LossCapacity
			}
			return m, err
		}
		id := w.requestTypes("small", "medium")
		w.advance(time.Second)
		require.NoError(t, w.cloud.Stop(id, nstance.StatusFailed))
		require.EqualValues(t, 1, <-terms)
		w.stopLeader()
		for len(terms) > 0 {
			<-terms
		}
		w.startLeader(webGroup(0))
		require.EqualValues(t, 2, <-terms)
	})
}

// TestConflictWhileAgentShows: a repeated create that conflicts with its own machine, which the
// provider does not show yet, is no loss once the agent has been heard.
func TestConflictWhileAgentShows(t *testing.T) {
	withHook(t, simcloud.Options{Boot: simcloud.Delay{Min: 9 * time.Second}, Lag: simcloud.Delay{Min: 40 * time.Second}}, func(t *testing.T, w *world, p *callHook) {
		calls := 0 // of one member, one after the other
		p.create = func(ctx context.Context, spec nstance.MachineSpec) (nstance.Machine, error) {
			if calls++; calls == 1 {
				return w.cloud.Create(ctx, spec)
			}
			<-time.After(5 * time.Second) // the agent registers meanwhile
			return nstance.Machine{}, nstance.Errorf(nstance.Conflict, "the name is taken")
		}
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Lost: true})
		w.setGroups(webGroup(1))
		w.advance(3 * time.Minute)
		w.requireMembers(1)
		require.Equal(t, 2, calls)
		require.Zero(t, w.count(nstance.EventMachineGone, ""))
	})
}

// showsCause has the provider say why machines failed.
func (p *callHook) showsCause(w *world) {
	p.get = func(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
		m, err := w.cloud.Get(ctx, id)
		if m.Status.Dead() {
			m.Cause = nstance.LossCapacity
		}
		return m, err
	}
}

// TestFailedLaunchShownAgain: of a machine that did not start nothing is left once the provider has
// known nothing of it for the whole window: when it accepts a Delete in between, that begins anew.
func TestFailedLaunchShownAgain(t *testing.T) {
	withHook(t, simcloud.Options{Boot: simcloud.Delay{Min: time.Minute}}, func(t *testing.T, w *world, p *callHook) {
		p.showsCause(w)
		var first, gone, created time.Time // of one member, one after the other
		p.delete = func(ctx context.Context, m nstance.Machine) error {
			switch now := time.Now(); {
			case first.IsZero():
				first = now
				return errors.Join(w.cloud.Kill(m.ID), nstance.Errorf(nstance.NotFound, "not known"))
			case now.Sub(first) < 9*time.Second:
				return nil
			}
			err := w.cloud.Delete(ctx, m)
			if gone.IsZero() && nstance.CodeOf(err) == nstance.NotFound {
				gone = time.Now()
			}
			return err
		}
		p.create = func(ctx context.Context, spec nstance.MachineSpec) (nstance.Machine, error) {
			if !gone.IsZero() {
				created = time.Now()
			}
			return w.cloud.Create(ctx, spec)
		}
		id := w.requestTypes("small", "medium")
		w.advance(15 * time.Second)
		require.NoError(t, w.cloud.Stop(id, nstance.StatusFailed))
		w.advance(5 * time.Minute)
		w.requireMembers(1)
		require.GreaterOrEqual(t, created.Sub(gone), 10*time.Second)
	})
}

// TestFailedLaunchOfRemoved: an instance whose removal is requested while its machine, which did not
// start, is deleted, is not asked for again.
func TestFailedLaunchOfRemoved(t *testing.T) {
	withHook(t, simcloud.Options{Boot: simcloud.Delay{Min: time.Minute}}, func(t *testing.T, w *world, p *callHook) {
		p.showsCause(w)
		var first time.Time // of one member, one after the other
		waited := false
		reached, release := make(chan struct{}), make(chan struct{})
		p.delete = func(ctx context.Context, m nstance.Machine) error {
			switch {
			case first.IsZero():
				first = time.Now()
			case time.Since(first) >= 9*time.Second && !waited:
				waited = true
				close(reached)
				<-release
			}
			return w.cloud.Delete(ctx, m)
		}
		id := w.requestTypes("small", "medium")
		w.advance(15 * time.Second)
		require.NoError(t, w.cloud.Stop(id, nstance.StatusFailed))
		<-reached
		w.agents.Go(func() { _ = w.r.Delete(w.ctx, id, requester, true) })
		w.advance(2 * time.Second)
		close(release)
		w.advance(2 * time.Minute)
		w.requireMembers(0)
		require.Equal(t, 1, w.cloud.Count(simcloud.OpCreate))
		require.Zero(t, w.count(nstance.EventCreateFailed, id), "it is not tried again")
	})
}
