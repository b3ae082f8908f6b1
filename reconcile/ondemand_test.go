package reconcile_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/reconcile/plan"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// onDemand asks for an instance like those of group web, with variables of its
// own.
func onDemand(id nstance.InstanceID) reconcile.OnDemandRequest {
	def := wanted(0).Definition
	def.Vars = map[string]string{"own": "1"}
	return reconcile.OnDemandRequest{ID: id, Group: web, Definition: def, Digest: "d1"}
}

func (w *world) newID() nstance.InstanceID {
	w.t.Helper()
	id, err := nstance.NewInstanceID("web", time.Now())
	require.NoError(w.t, err)
	return id
}

// order asks for an instance on demand.
func (w *world) order(req reconcile.OnDemandRequest) (reconcile.InstanceView, error) {
	ctx, cancel := context.WithTimeout(w.ctx, 30*time.Second)
	defer cancel()
	r, _ := w.leader()
	return r.CreateInstance(ctx, req)
}

// ordered brings an instance on demand to ready.
func (w *world) ordered() nstance.InstanceID {
	w.t.Helper()
	id := w.newID()
	_, err := w.order(onDemand(id))
	require.NoError(w.t, err)
	w.passes(2 * time.Minute)
	require.Contains(w.t, w.ready(), id)
	return id
}

func TestOnDemand(t *testing.T) {
	within(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
		id := w.newID()
		v, err := w.order(onDemand(id))
		require.NoError(t, err)
		require.True(t, v.Record.OnDemand)
		require.NotEmpty(t, v.Record.WriteID, "its intent is durable")
		w.passes(2 * time.Minute)
		w.agrees(3)
		require.Equal(t, 2, w.group().Ready, "it is not counted")
		require.Equal(t, 1, w.group().OnDemand)
		rec, err := w.r.Records().Refresh(w.ctx, id)
		require.NoError(t, err)
		def, err := w.r.Records().Definition(w.ctx, rec.Definition)
		require.NoError(t, err)
		require.Equal(t, onDemand(id).Definition, def, "made from its own definition")

		{ // the same request again is the same instance
			v, err := w.order(onDemand(id))
			require.NoError(t, err)
			require.Equal(t, nstance.Ready, v.State)
			w.passes(time.Hour) // its ID is too old for a new one by now
			_, err = w.order(onDemand(id))
			require.NoError(t, err)
			w.agrees(3)
		}
		{ // another request with its ID is refused
			other := onDemand(id)
			other.Digest = "d2"
			_, err := w.order(other)
			require.ErrorIs(t, err, nstance.Conflict)
			managed := onDemand(slices.DeleteFunc(w.ready(), func(m nstance.InstanceID) bool { return m == id })[0])
			_, err = w.order(managed)
			require.ErrorIs(t, err, nstance.Conflict, "a managed member has it")
			elsewhere := onDemand(id)
			elsewhere.Group.Tenant = "blue"
			_, err = w.order(elsewhere)
			require.ErrorIs(t, err, nstance.Conflict)
			require.NotContains(t, err.Error(), "default", "of another tenant's instance nothing is said")
		}
		{ // neither a rollout nor a smaller size concerns it
			next := wanted(0)
			next.Definition.UserData.Content = "v2"
			w.r.Observe(nstance.Desired{Groups: []nstance.Group{next}})
			w.passes(5 * time.Minute)
			require.Equal(t, []nstance.InstanceID{id}, w.ready())
			require.Zero(t, w.group().Stale)
		}
		{ // nor does silence
			w.mute(id, true)
			w.passes(time.Hour)
			require.Equal(t, []nstance.InstanceID{id}, w.in(nstance.Ready))
			w.mute(id, false)
		}
		{ // a new leader keeps it
			w.depose()
			w.lead(wanted(0))
			w.passes(10 * time.Minute)
			w.agrees(1)
			_, err := w.order(onDemand(id))
			require.NoError(t, err)
		}
		{ // on request it is drained, deleted, and replaced by nothing
			_, err := w.r.Drain(w.ctx, id, "")
			require.NoError(t, err)
			w.passes(2 * time.Minute)
			w.agrees(0)
			require.Equal(t, 1, w.count(nstance.EventDrainAcknowledged, id))
		}
	})
}

func TestOnDemandRefused(t *testing.T) {
	within(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
		id := w.newID()
		for field, change := range map[string]func(*reconcile.OnDemandRequest){
			"kind": func(r *reconcile.OnDemandRequest) { r.Definition.Kind = "dbs" },
			"too old": func(r *reconcile.OnDemandRequest) {
				r.ID, _ = nstance.NewInstanceID("web", time.Now().Add(-6*time.Minute))
			},
			"too new": func(r *reconcile.OnDemandRequest) {
				r.ID, _ = nstance.NewInstanceID("web", time.Now().Add(6*time.Minute))
			},
			"no ID": func(r *reconcile.OnDemandRequest) { r.ID = "web" },
			"args":  func(r *reconcile.OnDemandRequest) { r.Definition.Args = []byte(`[`) },
		} {
			req := onDemand(id)
			change(&req)
			_, err := w.order(req)
			require.ErrorIs(t, err, nstance.Invalid, field)
		}
		req := onDemand(id)
		req.Group.Group = "nobody"
		_, err := w.order(req)
		require.ErrorIs(t, err, nstance.NotFound)
		req = onDemand(id)
		req.Admit = func(n int) error { return nstance.Errorf(nstance.Quota, "has %d", n) }
		_, err = w.order(req)
		require.ErrorIs(t, err, nstance.Quota)
		require.NoError(t, w.r.Freeze(w.ctx, web, ""))
		_, err = w.order(onDemand(id))
		require.ErrorIs(t, err, nstance.Conflict)
		require.NoError(t, w.r.Thaw(w.ctx, web, eve))
		req = onDemand(id)
		req.DryRun = true
		_, err = w.order(req)
		require.NoError(t, err)
		w.passes(time.Minute)
		w.agrees(1)
		_, err = w.order(onDemand(id))
		require.NoError(t, err, "after all of this it is still free")
	})
	t.Run("an ID that was used a moment ago", func(t *testing.T) {
		within(t, 0, simcloud.Options{}, func(t *testing.T, w *world) {
			id := w.ordered()
			require.NoError(t, w.r.Delete(w.ctx, id, "", true))
			w.passes(time.Minute)
			w.agrees(0)
			_, err := w.order(onDemand(id))
			require.ErrorIs(t, err, nstance.Conflict)
		})
	})
}

func TestOnDemandEnds(t *testing.T) {
	aged := wanted(1)
	aged.Expiry.OnDemandAge = time.Hour
	for name, c := range map[string]struct {
		group nstance.Group
		end   func(w *world, id nstance.InstanceID)
	}{
		"of age":    {aged, func(w *world, _ nstance.InstanceID) { w.passes(time.Hour) }},
		"reclaimed": {wanted(1), func(w *world, id nstance.InstanceID) { require.NoError(w.t, w.cloud.Reclaim(id, 2*time.Minute)) }},
		"gone": {wanted(1), func(w *world, id nstance.InstanceID) {
			require.NoError(w.t, w.cloud.Kill(id))
			w.passes(10 * time.Minute)
		}},
		"the group's": {aged, func(w *world, _ nstance.InstanceID) { w.depose(); w.lead(aged); w.passes(time.Hour) }},
	} {
		t.Run(name, func(t *testing.T) {
			within(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
				w.r.Observe(nstance.Desired{Groups: []nstance.Group{c.group}})
				id := w.ordered()
				c.end(w, id)
				w.passes(3 * time.Minute)
				w.agrees(1)
				require.NotContains(t, w.ready(), id)
				require.Equal(t, name != "gone", w.count(nstance.EventDrainStarted, id) == 1)
			})
		})
	}
}

func TestOnDemandWithoutCapacity(t *testing.T) {
	small, large := simcloud.Pool{InstanceType: "small"}, simcloud.Pool{InstanceType: "large"}
	t.Run("is tried again under its ID", func(t *testing.T) {
		within(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
			w.cloud.SetCapacity(small, 1)
			id := w.newID()
			_, err := w.order(onDemand(id))
			require.NoError(t, err)
			w.passes(5 * time.Minute)
			require.Equal(t, nstance.Provisioning, w.view(id).State)
			tries := w.count(nstance.EventCreateFailed, id)
			require.Greater(t, tries, 3)
			require.Less(t, tries, 15, "with patience")
			require.Zero(t, w.group().Failures, "it is no failure of the group")
			require.Equal(t, plan.HoldCapacity, w.group().Holds[0].Kind, "and says what it waits for")
			w.cloud.SetCapacity(small, 2)
			w.passes(4 * time.Minute)
			w.agrees(2)
			require.Contains(t, w.ready(), id)
		})
	})
	t.Run("tries other shapes, durably", func(t *testing.T) {
		within(t, 0, simcloud.Options{}, func(t *testing.T, w *world) {
			w.cloud.SetCapacity(small, 0)
			req := onDemand(w.newID())
			req.Definition.InstanceTypes = []string{"small", "large"}
			_, err := w.order(req)
			require.NoError(t, err)
			w.passes(2 * time.Minute)
			require.Equal(t, "large", w.view(req.ID).Record.Shape.InstanceType)
			w.agrees(1)
			rec, err := w.r.Records().Refresh(w.ctx, req.ID)
			require.NoError(t, err)
			require.Equal(t, "large", rec.Shape.InstanceType)
			require.Equal(t, 1, w.shapes()["large/spot"])
		})
	})
	t.Run("gives up at the launch timeout", func(t *testing.T) {
		within(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
			w.cloud.SetCapacity(small, 1)
			w.cloud.SetCapacity(large, 1)
			id := w.newID()
			_, err := w.order(onDemand(id))
			require.NoError(t, err)
			w.passes(14 * time.Minute)
			require.Equal(t, nstance.Provisioning, w.view(id).State)
			w.passes(2 * time.Minute)
			w.agrees(1)
			require.Equal(t, 1, w.count(nstance.EventDeleted, id))
			w.first(nstance.EventCreateFailed, func(e nstance.Event) bool { return e.Instance == id && e.Code == nstance.Capacity })
		})
	})
}

// view returns an instance as it stands.
func (w *world) view(id nstance.InstanceID) reconcile.InstanceView {
	w.t.Helper()
	r, _ := w.leader()
	v, err := r.Instance(id)
	require.NoError(w.t, err)
	return v
}

func TestOnDemandRefusedForGood(t *testing.T) {
	within(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Code: nstance.Invalid})
		id := w.newID()
		v, err := w.order(onDemand(id))
		require.NoError(t, err, "the intent was durable by then")
		require.Equal(t, id, v.Record.ID)
		w.passes(100 * time.Millisecond)
		failed := w.view(id)
		require.Equal(t, nstance.Failed, failed.State)
		w.passes(time.Minute)
		w.agrees(1)
		e := w.first(nstance.EventCreateFailed, func(e nstance.Event) bool { return e.Instance == id })
		require.Equal(t, nstance.Invalid, e.Code)
		require.Zero(t, w.group().Failures)
		require.Empty(t, w.group().Holds)
		_, err = w.order(onDemand(id))
		require.ErrorIs(t, err, nstance.Conflict, "an ID is good for one instance")
	})
	t.Run("before its intent was written, the caller is told", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, simcloud.Options{})
			defer w.close()
			w.wrap = func(o *office) {
				o.options = func(opts *reconcile.Options) { opts.Bootstrap = refusing{} }
			}
			w.lead(wanted(0))
			w.passes(time.Second)
			id := w.newID()
			_, err := w.order(onDemand(id))
			require.ErrorIs(t, err, nstance.Invalid)
			require.ErrorContains(t, err, "no such variable")
			w.passes(time.Minute)
			w.agrees(0)
		})
	})
}

// refusing is a Bootstrap that can render nothing.
type refusing struct{}

func (refusing) Render(context.Context, *storage.Instance, nstance.Definition) (reconcile.Rendered, error) {
	return reconcile.Rendered{}, nstance.FieldError("userdata.content", "define it", "no such variable")
}

// TestOnDemandWaits: nothing is promised before it is durable.
func TestOnDemandWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		faulty := storagetest.NewFaulty(w.store)
		w.store = faulty
		w.lead(wanted(0))
		w.passes(time.Second)
		faulty.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Prefix: "instance/", Times: -1})
		id := w.newID()
		_, err := w.order(onDemand(id))
		require.ErrorIs(t, err, nstance.Unavailable)
		require.Empty(t, w.cloud.Machines())
		faulty.Heal()
		_, err = w.order(onDemand(id))
		require.NoError(t, err)
		w.passes(2 * time.Minute)
		w.agrees(1)
	})
}

// TestOnDemandBudget: requests wait for the create budget like everything else.
func TestOnDemandBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		w.wrap = func(o *office) {
			o.options = func(opts *reconcile.Options) { opts.Provider = tight() }
		}
		w.lead(wanted(0))
		w.passes(time.Second)
		began := time.Now()
		for range 3 {
			_, err := w.order(onDemand(w.newID()))
			require.NoError(t, err)
		}
		require.Less(t, time.Since(began), time.Second, "what is promised is durable, and need not be begun")
		w.passes(5 * time.Second)
		require.Len(t, w.cloud.Machines(), 1)
		require.Equal(t, "budget", w.group().Holds[0].Kind)
		w.passes(10 * time.Second)
		require.Len(t, w.cloud.Machines(), 2, "one every ten seconds")
		w.passes(2 * time.Minute)
		w.agrees(3)
	})
}

// TestOnDemandAcceptedAndSoldOut: a cloud may accept a machine and then have no
// capacity to start it. The instance is tried again like one that was refused.
func TestOnDemandAcceptedAndSoldOut(t *testing.T) {
	for _, lag := range []time.Duration{0, 5 * time.Second} {
		within(t, 0, simcloud.Options{Boot: simcloud.Constant(time.Minute), Lag: simcloud.Constant(lag)}, func(t *testing.T, w *world) {
			id := w.newID()
			_, err := w.order(onDemand(id))
			require.NoError(t, err)
			w.passes(10 * time.Second)
			for range 3 {
				require.NoError(t, w.cloud.Lose(id, nstance.LossCapacity))
				for range 180 {
					if w.passes(time.Second); len(w.cloud.Machines()) == 1 {
						break
					}
				}
				require.Len(t, w.cloud.Machines(), 1)
			}
			failed := w.first(nstance.EventCreateFailed, func(e nstance.Event) bool { return e.Instance == id })
			require.Equal(t, nstance.Capacity, failed.Code)
			require.Equal(t, "it is tried again", failed.Reason)
			w.passes(3 * time.Minute)
			w.agrees(1)
			require.Contains(t, w.ready(), id)
			require.Equal(t, 4, w.cloud.Count(simcloud.OpCreate), "one create each time")
			require.Zero(t, w.count(nstance.EventMachineGone, ""))
		})
	}
}

// TestOnDemandSoldOutForGood: after its launch timeout the instance is lost.
func TestOnDemandSoldOutForGood(t *testing.T) {
	within(t, 0, simcloud.Options{Boot: simcloud.Constant(time.Minute)}, func(t *testing.T, w *world) {
		id := w.newID()
		_, err := w.order(onDemand(id))
		require.NoError(t, err)
		for range 60 {
			w.passes(20 * time.Second)
			_ = w.cloud.Lose(id, nstance.LossCapacity) // there may be none now
		}
		w.agrees(0)
		require.LessOrEqual(t, w.cloud.Count(simcloud.OpCreate), 30, "paced by the launch budget")
		_, err = w.order(onDemand(id))
		require.ErrorContains(t, err, "make a new one")
	})
}
