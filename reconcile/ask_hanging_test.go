package reconcile_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// A hanging provider answers no question about some machines.
type hanging struct {
	nstance.Provider
	mu    sync.Mutex
	about map[nstance.InstanceID]bool
	fails bool // it fails at once instead
}

func (h *hanging) Get(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
	h.mu.Lock()
	silent, fails := h.about[id], h.fails
	h.mu.Unlock()
	switch {
	case silent && fails:
		return nstance.Machine{}, nstance.Errorf(nstance.Unavailable, "no answer")
	case silent:
		<-ctx.Done()
		return nstance.Machine{}, ctx.Err()
	}
	return h.Provider.Get(ctx, id)
}

func (h *hanging) silence(ids ...nstance.InstanceID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.about = map[nstance.InstanceID]bool{}
	for _, id := range ids {
		h.about[id] = true
	}
}

// withHanging is within, at such a provider.
func withHanging(t *testing.T, size int, test func(w *world, h *hanging)) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		h := &hanging{Provider: w.cloud}
		w.wrap = func(o *office) { o.provider = h }
		w.lead(wanted(size))
		w.passes(2 * time.Minute)
		w.agrees(size)
		test(w, h)
	})
}

// TestHangingQuestionsDelayNoVerdict: what the provider says of one machine is
// heard while it says nothing of others.
func TestHangingQuestionsDelayNoVerdict(t *testing.T) {
	withHanging(t, 20, func(w *world, h *hanging) {
		ids := w.ready()
		h.silence(ids[:4]...)
		for _, id := range ids[:4] {
			w.r.Observe(nstance.Disconnected{ID: id})
		}
		for _, dead := range ids[4:9] { // one after the other
			require.NoError(t, w.cloud.Stop(dead, nstance.StatusStopped))
			w.r.Observe(nstance.Disconnected{ID: dead})
			w.passes(3 * time.Second)
			require.Equal(t, 1, w.count(nstance.EventMachineGone, dead))
		}
		h.silence()
		w.passes(5 * time.Minute)
		w.agrees(20)
		require.Subset(t, w.ready(), ids[:4], "nothing was concluded from silence")
	})
}

// TestHangingQuestionsAreBounded: when many are not answered, a list answers
// for the others.
func TestHangingQuestionsAreBounded(t *testing.T) {
	withHanging(t, 40, func(w *world, h *hanging) {
		ids := w.ready()
		h.silence(ids...)
		for i := range 4 {
			for _, id := range ids[8*i : 8*i+8] {
				w.r.Observe(nstance.Disconnected{ID: id})
			}
			w.passes(3 * time.Second)
		}
		require.NoError(t, w.cloud.Stop(ids[39], nstance.StatusStopped))
		w.r.Observe(nstance.Disconnected{ID: ids[39]})
		w.passes(3 * time.Second)
		require.Equal(t, 1, w.count(nstance.EventMachineGone, ids[39]))
		h.silence()
		w.passes(5 * time.Minute)
		w.agrees(40)
	})
}

// TestFailedAnswersUseUpNoLooks: a machine whose stream broke is looked at until
// the provider has answered.
func TestFailedAnswersUseUpNoLooks(t *testing.T) {
	withHanging(t, 3, func(w *world, h *hanging) {
		id := w.ready()[0]
		w.r.Observe(nstance.Disconnected{ID: id})
		w.passes(500 * time.Millisecond) // that it runs, has been answered
		h.fails = true
		h.silence(id)
		w.passes(15 * time.Second) // and all other looks are due
		require.NoError(t, w.cloud.Stop(id, nstance.StatusStopped))
		h.silence()
		w.passes(3 * time.Second)
		require.Equal(t, 1, w.count(nstance.EventMachineGone, id))
	})
}
