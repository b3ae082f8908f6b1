package reconcile_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
)

// TestUsedIDsAreRefused: a caller's ID is refused where an object of the shard has it,
// or had it recently.
func TestUsedIDsAreRefused(t *testing.T) {
	refused := func(w *world, id nstance.InstanceID) {
		w.t.Helper()
		_, err := w.requestOnDemand(onDemand(id))
		require.ErrorIs(w.t, err, nstance.Conflict)
		require.ErrorContains(w.t, err, "make a new ID")
	}
	t.Run("a machine without a record", func(t *testing.T) {
		withGroup(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
			id := w.createOrphan(0, nil)
			for w.count(nstance.EventOrphanSeen, id) == 0 {
				w.advance(10 * time.Second)
			}
			refused(w, id)
			require.True(t, w.exists(id))
		})
	})
	t.Run("unreadable record", func(t *testing.T) {
		withGroup(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
			id := w.newID()
			_, err := w.store.PutIfAbsent(w.ctx, keyIn("zoo", id), []byte("{torn"))
			require.NoError(t, err)
			require.NoError(t, w.r.Admin().Internals().Reread(w.ctx))
			refused(w, id)
			require.Len(t, w.ids(), 1)
		})
	})
	t.Run("deleted instances", func(t *testing.T) {
		withGroup(t, 0, simcloud.Options{}, func(t *testing.T, w *world) {
			var ids []nstance.InstanceID
			for range 3 {
				id := w.newID()
				_, err := w.requestOnDemand(onDemand(id))
				require.NoError(t, err)
				w.advance(time.Second)
				require.NoError(t, w.r.Delete(w.ctx, id, "", true))
				ids = append(ids, id)
				w.advance(15 * time.Second)
			}
			w.requireMembers(0)
			for _, id := range ids {
				refused(w, id)
			}
		})
	})
	t.Run("ID of a request that was never durable is free", func(t *testing.T) {
		takeover(t, false, simcloud.Options{}, func(t *testing.T, w *world) {
			settings := &settableBootstrap{err: nstance.FieldError("vars", "define it", "there is none")}
			w.wrap = func(o *leaderEnv) { o.options = func(opts *reconcile.Options) { opts.Bootstrap = settings } }
			w.startLeader(webGroup(0))
			w.advance(time.Second)
			id := w.newID()
			_, err := w.requestOnDemand(onDemand(id))
			require.ErrorIs(t, err, nstance.Invalid)
			w.advance(time.Second)
			settings.set("now there is")
			_, err = w.requestOnDemand(onDemand(id))
			require.NoError(t, err)
		})
	})
}

func TestOnDemandInRemovedGroup(t *testing.T) {
	withGroup(t, 1, simcloud.Options{Shutdown: simcloud.Delay{Min: time.Hour}}, func(t *testing.T, w *world) {
		g := webGroup(1)
		g.Removing = true
		w.setGroups(g)
		w.advance(time.Second)
		_, err := w.requestOnDemand(onDemand(w.newID()))
		require.ErrorIs(t, err, nstance.Conflict)
		require.ErrorContains(t, err, "is being removed")
	})
}

func TestOnDemandIsCountedByTenant(t *testing.T) {
	withGroup(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
		w.readyOnDemand()
		require.Equal(t, 1, w.r.Admin().Internals().OnDemand(web.Tenant))
		require.Zero(t, w.r.Admin().Internals().OnDemand("blue"))
	})
}

// TestOtherShapeOnlyAfterProof: a create of a former leader may still be under way when the new
// one learns that its shape has sold out. A cloud that knows machines by their token would make
// two for one ID.
func TestOtherShapeOnlyAfterProof(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{ByToken: true})
		defer w.close()
		g := webGroup(0)
		w.startLeader(g)
		w.advance(time.Second)
		id, err := nstance.NewInstanceID("web", time.Now())
		require.NoError(t, err)
		req := onDemand(id)
		req.Definition.InstanceTypes = []string{"small", "medium"}
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, ID: id, Delay: 25 * time.Second})
		_, err = w.r.CreateInstance(w.ctx, req)
		require.NoError(t, err)
		w.advance(time.Second)
		w.stopLeader()
		small := simcloud.Pool{InstanceType: "small"}
		w.cloud.SetCapacity(small, 0)
		w.startLeader(g)
		made := func() (n int) {
			for _, m := range w.cloud.Machines() {
				n += map[bool]int{true: 1}[m.ID == id]
			}
			return n
		}
		for range 120 {
			w.advance(time.Second)
			if w.cloud.Count(simcloud.OpCreate) > 1 {
				w.cloud.SetCapacity(small, -1) // it comes back for the call that is under way
			}
			require.LessOrEqual(t, made(), 1, "machines with one ID")
		}
		require.Equal(t, 1, made())
	})
}
