package reconcile_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// hanging is a provider that does not answer Get for some machines.
type hanging struct {
	nstance.Provider
	mu    sync.Mutex
	about map[nstance.InstanceID]bool
	fails bool // Get fails at once instead
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

// withHanging is withGroup with a hanging provider.
func withHanging(t *testing.T, size int, test func(w *world, h *hanging)) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		h := &hanging{Provider: w.cloud}
		w.wrap = func(o *leaderEnv) { o.provider = h }
		w.startLeader(webGroup(size))
		w.advance(2 * time.Minute)
		w.requireMembers(size)
		test(w, h)
	})
}

// TestHangingGetsDelayNoOthers: answers about other machines are handled while some Get
// calls hang.
func TestHangingGetsDelayNoOthers(t *testing.T) {
	withHanging(t, 20, func(w *world, h *hanging) {
		ids := w.ready()
		h.silence(ids[:4]...)
		for _, id := range ids[:4] {
			w.r.Observe(nstance.Disconnected{ID: id})
		}
		for _, dead := range ids[4:9] {
			require.NoError(t, w.cloud.Stop(dead, nstance.StatusStopped))
			w.r.Observe(nstance.Disconnected{ID: dead})
			w.advance(3 * time.Second)
			require.Equal(t, 1, w.count(nstance.EventMachineGone, dead))
		}
		h.silence()
		w.advance(5 * time.Minute)
		w.requireMembers(20)
		require.Subset(t, w.ready(), ids[:4], "a missing answer is not absence")
	})
}

// TestHangingGetsAreBounded: when many Get calls hang, a list covers the others.
func TestHangingGetsAreBounded(t *testing.T) {
	withHanging(t, 40, func(w *world, h *hanging) {
		ids := w.ready()
		h.silence(ids...)
		for i := range 4 {
			for _, id := range ids[8*i : 8*i+8] {
				w.r.Observe(nstance.Disconnected{ID: id})
			}
			w.advance(3 * time.Second)
		}
		require.NoError(t, w.cloud.Stop(ids[39], nstance.StatusStopped))
		w.r.Observe(nstance.Disconnected{ID: ids[39]})
		w.advance(3 * time.Second)
		require.Equal(t, 1, w.count(nstance.EventMachineGone, ids[39]))
		h.silence()
		w.advance(5 * time.Minute)
		w.requireMembers(40)
	})
}

// TestFailedGetsAreRepeated: a machine whose stream broke is checked until the provider
// has answered.
func TestFailedGetsAreRepeated(t *testing.T) {
	withHanging(t, 3, func(w *world, h *hanging) {
		id := w.ready()[0]
		w.r.Observe(nstance.Disconnected{ID: id})
		w.advance(500 * time.Millisecond) // answered: it runs
		h.fails = true
		h.silence(id)
		w.advance(15 * time.Second) // all other checks are due
		require.NoError(t, w.cloud.Stop(id, nstance.StatusStopped))
		h.silence()
		w.advance(3 * time.Second)
		require.Equal(t, 1, w.count(nstance.EventMachineGone, id))
	})
}

// TestEachBrokenStreamIsChecked: an earlier answer about the machine does not count for
// a stream that breaks later.
func TestEachBrokenStreamIsChecked(t *testing.T) {
	withHanging(t, 3, func(w *world, _ *hanging) {
		id := w.ready()[0]
		w.r.Observe(nstance.Disconnected{ID: id})
		w.advance(30 * time.Second) // all checks are done
		w.r.Observe(nstance.Connected{ID: id})
		w.advance(time.Second)
		w.r.Observe(nstance.Disconnected{ID: id})
		w.advance(5 * time.Second)
		require.NoError(t, w.cloud.Stop(id, nstance.StatusStopped))
		w.advance(8 * time.Second)
		require.Equal(t, 1, w.count(nstance.EventMachineGone, id))
	})
}

// delayed is a provider whose Get answers late, with the state at the time of the call.
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

// TestLateAnswerIsIgnored: an answer to an earlier Get does not replace newer knowledge.
func TestLateAnswerIsIgnored(t *testing.T) {
	withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		d := &delayed{Provider: w.cloud}
		w.wrap = func(o *leaderEnv) { o.provider = d }
		w.changeLeader(webGroup(3))
		require.NoError(t, w.r.Admin().Freeze(t.Context(), web, "keep the member"))
		id := w.ready()[0]
		w.silenceAgents(id)
		d.by = 20 * time.Second
		w.r.Observe(nstance.Disconnected{ID: id})
		w.advance(time.Second) // the Get call is in flight
		require.NoError(t, w.cloud.Stop(id, nstance.StatusStopped))
		m, err := w.cloud.Get(w.ctx, id)
		require.NoError(t, err)
		w.r.Observe(nstance.MachineSeen{Machine: m})
		for range 10 {
			w.advance(5 * time.Second)
			v, err := w.r.Instance(id)
			require.NoError(t, err)
			require.True(t, v.Gone)
		}
		require.Equal(t, 1, w.count(nstance.EventMachineGone, id))
	})
}
