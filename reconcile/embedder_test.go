package reconcile_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/drain"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/storage"
)

// TestFactsByPointer: a pointer to a fact is that fact, and what is no fact is not
// dropped in silence.
func TestFactsByPointer(t *testing.T) {
	withGroup(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
		id := w.ready()[0]
		r, _ := w.leader()
		r.Observe(&nstance.Desired{Groups: []nstance.Group{webGroup(3)}})
		w.advance(2 * time.Minute)
		require.Len(t, w.ready(), 3)
		r.Observe(&nstance.Reported{Report: nstance.Report{InstanceID: id, ConfigHash: "by pointer"}})
		i, err := r.Instance(id)
		require.NoError(t, err)
		require.Equal(t, "by pointer", i.Report.ConfigHash)
		acked := 0
		r.Observe(&nstance.Noticed{ID: id, Ack: func() { acked++ }, Notice: nstance.Notice{EventID: "n1", Kind: nstance.Reclaim, Deadline: time.Now().Add(time.Minute)}})
		w.advance(time.Second)
		require.Equal(t, 1, acked)
		for n, none := range []nstance.Fact{nil, (*nstance.Reported)(nil), decoratedFact{nstance.Registered{ID: id}}, &decoratedFact{}} {
			r.Observe(none)
			w.advance(time.Millisecond)
			require.Equal(t, n+1, w.count(nstance.EventAlarm, ""), "%T", none)
		}
	})
}

type decoratedFact struct{ nstance.Registered }

// TestDecoratedCoordinator: an operator carries out drains though the coordinator is
// wrapped by another implementation.
func TestDecoratedCoordinator(t *testing.T) {
	withGroup(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
		inner := drain.New(nil)
		w.wrap = func(o *leaderEnv) {
			o.options = func(opts *reconcile.Options) { opts.Drains = decorated{inner} }
		}
		w.changeLeader(webGroup(2))
		w.advance(2 * time.Minute)
		ids := w.ready()
		require.Len(t, ids, 2)
		r, _ := w.leader()
		d, err := r.Drain(t.Context(), ids[0], "nobody carries it out")
		require.NoError(t, err)
		require.NotEqual(t, nstance.ExecutorOperator, d.Executor)
		remove := inner.AddExecutor("")
		defer remove()
		d, err = r.Drain(t.Context(), ids[1], "an operator does")
		require.NoError(t, err)
		require.Equal(t, nstance.ExecutorOperator, d.Executor)
	})
}

type decorated struct{ nstance.DrainCoordinator }

// TestWarmPoolWithoutParker: stand-by machines that no provider could park are refused.
func TestWarmPoolWithoutParker(t *testing.T) {
	group := webGroup(1)
	group.Definition.Market = nstance.Market{}
	open := func(p nstance.Provider, mode nstance.ParkMode) error {
		group.WarmPool = nstance.WarmPool{Size: 1, Mode: mode}
		_, err := reconcile.New(p, storage.NewMemory(), &reconcile.Options{Owner: nstance.Owner{Installation: "i1", Cluster: "c1", Shard: "s1"}, Groups: []nstance.Group{group}})
		return err
	}
	cloud := simcloud.New(nil)
	defer cloud.Close()
	for _, mode := range []nstance.ParkMode{nstance.ParkStopped, nstance.ParkHibernated} {
		require.NoError(t, open(cloud, mode))
		err := open(plain{cloud}, mode)
		require.ErrorIs(t, err, nstance.Invalid)
		require.ErrorContains(t, err, "warm_pool.mode")
		require.ErrorContains(t, err, "nstance.Parker")
	}
	require.NoError(t, open(plain{cloud}, nstance.ParkRunning), "these are not parked")
}

// plain is a provider without any ability.
type plain struct{ nstance.Provider }

// TestStatusInOtherWords: a status that is none decides nothing, and is an alarm, once for
// each word.
func TestStatusInOtherWords(t *testing.T) {
	withGroup(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
		id := w.ready()[0]
		r, _ := w.leader()
		i, err := r.Instance(id)
		require.NoError(t, err)
		for n, word := range []nstance.MachineStatus{"ACTIVE", "ACTIVE", "TERMINATED", "Running"} {
			m := i.Machine
			m.Status = word
			r.Observe(nstance.MachineSeen{Machine: m})
			now, err := r.Instance(id)
			require.NoError(t, err)
			require.Equal(t, nstance.StatusUnknown, now.Machine.Status)
			require.Equal(t, max(1, n), w.count(nstance.EventAlarm, id), word)
		}
		w.advance(time.Minute)
		require.Contains(t, w.ready(), id)
	})
}
