package reconcile_test

import (
	"context"
	"iter"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// copied is a provider that also shows a copy of one machine, with its marks, as of a machine
// that was made from another with its tags. Get shows it first.
type copied struct {
	nstance.Provider
	cloud *simcloud.Cloud
	of    *atomic.Value // of a nstance.InstanceID
	lists bool          // only List shows it
}

const copyHandle = "copy-1"

func (p copied) twin(m nstance.Machine) nstance.Machine {
	m.ProviderID, m.Status, m.Cause = copyHandle, nstance.StatusStopped, nstance.LossGuest
	return m
}

func (p copied) Get(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
	m, err := p.Provider.Get(ctx, id)
	if id == p.of.Load() && !p.lists {
		owner := nstance.Owner{Installation: "i1", Cluster: "c1", Shard: "s1", Tenant: web.Tenant}
		return p.twin(nstance.Machine{ID: id, Owner: owner}), nil
	}
	return m, err
}

func (p copied) List(ctx context.Context, owner nstance.Owner) iter.Seq2[nstance.Machine, error] {
	return func(yield func(nstance.Machine, error) bool) {
		for m, err := range p.Provider.List(ctx, owner) {
			if !yield(m, err) {
				return
			}
			if m.ID == p.of.Load() && !yield(p.twin(m), nil) {
				return
			}
		}
	}
}

func (p copied) Delete(ctx context.Context, m nstance.Machine) error {
	if m.ProviderID == copyHandle {
		panic("the copy is to be deleted")
	}
	return p.Provider.Delete(ctx, m)
}

// TestCopyOfMachine: a copy of a machine that carries its marks, and does not run, says nothing
// about the machine. It is left alone, with one alarm.
func TestCopyOfMachine(t *testing.T) {
	for name, lists := range map[string]bool{"in lists": true, "everywhere": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, simcloud.Options{})
				defer w.close()
				var copyOf atomic.Value
				w.wrap = func(e *leaderEnv) { e.provider = copied{w.cloud, w.cloud, &copyOf, lists} }
				w.startLeader(webGroup(3))
				w.advance(2 * time.Minute)
				w.requireMembers(3)
				before := w.ready()
				of := before[0]
				copyOf.Store(of)
				w.advance(20 * time.Minute)
				require.Equal(t, before, w.ready())
				require.Zero(t, w.cloud.Count(simcloud.OpDelete))
				require.Zero(t, w.count(nstance.EventMachineGone, of))
				require.Equal(t, 1, w.count(nstance.EventAlarm, of))
				require.NoError(t, w.cloud.Kill(of))
				w.advance(30 * time.Minute)
				w.requireMembers(3)
				require.NotContains(t, w.ready(), of, "its own machine is gone")
			})
		})
	}
}
