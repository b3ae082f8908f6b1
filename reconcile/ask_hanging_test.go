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

// TestEachBreakIsLookedAt: that a stream has broken before, and that the provider
// was asked then, answers nothing about the next time.
func TestEachBreakIsLookedAt(t *testing.T) {
	withHanging(t, 3, func(w *world, _ *hanging) {
		id := w.ready()[0]
		w.r.Observe(nstance.Disconnected{ID: id})
		w.passes(30 * time.Second) // all looks are over
		w.r.Observe(nstance.Connected{ID: id})
		w.passes(time.Second)
		w.r.Observe(nstance.Disconnected{ID: id})
		w.passes(5 * time.Second)
		require.NoError(t, w.cloud.Stop(id, nstance.StatusStopped))
		w.passes(8 * time.Second)
		require.Equal(t, 1, w.count(nstance.EventMachineGone, id))
	})
}

// A delayed provider answers questions about machines late, with what was true
// when they were asked.
type delayed struct {
	nstance.Provider
	by time.Duration
}

func (d *delayed) Get(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
	m, err := d.Provider.Get(ctx, id)
	if d.by > 0 && !pause(ctx, d.by) {
		return nstance.Machine{}, ctx.Err()
	}
	return m, err
}

// TestLateAnswerUndoesNothing: what was asked before is older than what is known,
// whenever it is answered.
func TestLateAnswerUndoesNothing(t *testing.T) {
	within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		d := &delayed{Provider: w.cloud}
		w.wrap = func(o *office) { o.provider = d }
		w.succeeds(wanted(3))
		require.NoError(t, w.r.Freeze(t.Context(), web, "so that it stays"))
		id := w.ready()[0]
		w.hush(id)
		d.by = 20 * time.Second
		w.r.Observe(nstance.Disconnected{ID: id})
		w.passes(time.Second) // the question is under way
		require.NoError(t, w.cloud.Stop(id, nstance.StatusStopped))
		m, err := w.cloud.Get(w.ctx, id)
		require.NoError(t, err)
		w.r.Observe(nstance.MachineSeen{Machine: m})
		for range 10 {
			w.passes(5 * time.Second)
			v, err := w.r.Instance(id)
			require.NoError(t, err)
			require.True(t, v.Gone)
		}
		require.Equal(t, 1, w.count(nstance.EventMachineGone, id))
	})
}
