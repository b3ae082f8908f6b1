package reconcile_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
)

// TestIDsThatAreTaken: a caller's own ID is refused where anything of the shard
// has it, or had it a moment ago.
func TestIDsThatAreTaken(t *testing.T) {
	refused := func(w *world, id nstance.InstanceID) {
		w.t.Helper()
		_, err := w.order(onDemand(id))
		require.ErrorIs(w.t, err, nstance.Conflict)
		require.ErrorContains(w.t, err, "make a new ID")
	}
	t.Run("a machine without a record", func(t *testing.T) {
		within(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
			id := w.stray(0, nil)
			for w.count(nstance.EventOrphanSeen, id) == 0 {
				w.passes(10 * time.Second)
			}
			refused(w, id)
			require.True(t, w.exists(id))
		})
	})
	t.Run("a record that cannot be read", func(t *testing.T) {
		within(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
			id := w.newID()
			_, err := w.store.PutIfAbsent(w.ctx, keyIn("zoo", id), []byte("{torn"))
			require.NoError(t, err)
			require.NoError(t, w.r.Reread(w.ctx))
			refused(w, id)
			require.Len(t, w.ids(), 1)
		})
	})
	t.Run("instances that are gone, each of them", func(t *testing.T) {
		within(t, 0, simcloud.Options{}, func(t *testing.T, w *world) {
			var ids []nstance.InstanceID
			for range 3 {
				id := w.newID()
				_, err := w.order(onDemand(id))
				require.NoError(t, err)
				w.passes(time.Second)
				require.NoError(t, w.r.Delete(w.ctx, id, "", true))
				ids = append(ids, id)
				w.passes(15 * time.Second)
			}
			w.agrees(0)
			for _, id := range ids {
				refused(w, id)
			}
		})
	})
	t.Run("not one of which nothing was ever durable", func(t *testing.T) {
		takeover(t, false, simcloud.Options{}, func(t *testing.T, w *world) {
			settings := &changing{err: nstance.FieldError("vars", "define it", "there is none")}
			w.wrap = func(o *office) { o.options = func(opts *reconcile.Options) { opts.Bootstrap = settings } }
			w.lead(wanted(0))
			w.passes(time.Second)
			id := w.newID()
			_, err := w.order(onDemand(id))
			require.ErrorIs(t, err, nstance.Invalid)
			w.passes(time.Second)
			settings.set("now there is")
			_, err = w.order(onDemand(id))
			require.NoError(t, err)
		})
	})
}

func TestOnDemandInAGroupThatGoes(t *testing.T) {
	within(t, 1, simcloud.Options{Shutdown: simcloud.Constant(time.Hour)}, func(t *testing.T, w *world) {
		g := wanted(1)
		g.Removing = true
		w.want(g)
		w.passes(time.Second)
		_, err := w.order(onDemand(w.newID()))
		require.ErrorIs(t, err, nstance.Conflict)
		require.ErrorContains(t, err, "is being removed")
	})
}

func TestOnDemandIsCountedByTenant(t *testing.T) {
	within(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
		w.ordered()
		require.Equal(t, 1, w.r.OnDemand(web.Tenant))
		require.Zero(t, w.r.OnDemand("blue"))
	})
}
