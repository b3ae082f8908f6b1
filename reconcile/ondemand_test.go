package reconcile_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/reconcile/plan"
	"github.com/nstance-go/nstance/storage/storagetest"
)

func (w *world) newID() nstance.InstanceID {
	w.t.Helper()
	id, err := nstance.NewInstanceID("web", time.Now())
	require.NoError(w.t, err)
	return id
}

// requestOnDemand requests an instance on demand.
func (w *world) requestOnDemand(req reconcile.OnDemandRequest) (reconcile.InstanceView, error) {
	ctx, cancel := context.WithTimeout(w.ctx, 30*time.Second)
	defer cancel()
	r, _ := w.leader()
	return r.CreateInstance(ctx, req)
}

// readyOnDemand brings an instance on demand to ready.
func (w *world) readyOnDemand() nstance.InstanceID {
	w.t.Helper()
	id := w.newID()
	_, err := w.requestOnDemand(onDemand(id))
	require.NoError(w.t, err)
	w.advance(2 * time.Minute)
	require.Contains(w.t, w.ready(), id)
	return id
}

func TestOnDemand(t *testing.T) {
	withGroup(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
		id := w.newID()
		v, err := w.requestOnDemand(onDemand(id))
		require.NoError(t, err)
		require.True(t, v.OnDemand)
		_, durable := w.r.Admin().Internals().Records().Get(id)
		require.True(t, durable)
		w.advance(2 * time.Minute)
		w.requireMembers(3)
		require.Equal(t, 2, w.group().Ready, "not a member by size")
		require.Equal(t, 1, w.group().OnDemand)
		rec, err := w.r.Admin().Internals().Records().Refresh(w.ctx, id)
		require.NoError(t, err)
		def, err := w.r.Admin().Internals().Records().Definition(w.ctx, rec.Definition)
		require.NoError(t, err)
		require.Equal(t, onDemand(id).Definition, def, "created from its own definition")

		{ // a repeated request returns the same instance
			v, err := w.requestOnDemand(onDemand(id))
			require.NoError(t, err)
			require.Equal(t, nstance.Ready, v.State)
			w.advance(time.Hour) // its ID is too old for a new instance
			_, err = w.requestOnDemand(onDemand(id))
			require.NoError(t, err)
			w.requireMembers(3)
		}
		{ // another request with its ID is refused
			other := onDemand(id)
			other.Digest = "d2"
			_, err := w.requestOnDemand(other)
			require.ErrorIs(t, err, nstance.Conflict)
			managed := onDemand(slices.DeleteFunc(w.ready(), func(m nstance.InstanceID) bool { return m == id })[0])
			_, err = w.requestOnDemand(managed)
			require.ErrorIs(t, err, nstance.Conflict, "used by a member")
			elsewhere := onDemand(id)
			elsewhere.Group.Tenant = "blue"
			_, err = w.requestOnDemand(elsewhere)
			require.ErrorIs(t, err, nstance.Conflict)
			require.NotContains(t, err.Error(), "default", "no details of another tenant's instance")
		}
		{ // unaffected by rollout and scale-down
			next := webGroup(0)
			next.Definition.UserData.Content = "v2"
			w.r.Observe(nstance.Desired{Groups: []nstance.Group{next}})
			w.advance(5 * time.Minute)
			require.Equal(t, []nstance.InstanceID{id}, w.ready())
			require.Zero(t, w.group().Stale)
		}
		{ // replaced by nothing when it is silent
			w.setAgentSilent(id, true)
			w.advance(time.Hour)
			require.Equal(t, []nstance.InstanceID{id}, w.in(nstance.Ready))
			w.setAgentSilent(id, false)
		}
		{ // kept by a new leader
			w.stopLeader()
			w.startLeader(webGroup(0))
			w.advance(10 * time.Minute)
			w.requireMembers(1)
			_, err := w.requestOnDemand(onDemand(id))
			require.NoError(t, err)
		}
		{ // on request drained, deleted, and not replaced
			_, err := w.r.Drain(w.ctx, id, "")
			require.NoError(t, err)
			w.advance(2 * time.Minute)
			w.requireMembers(0)
			require.Equal(t, 1, w.count(nstance.EventDrainAcknowledged, id))
		}
	})
}

func TestOnDemandRefused(t *testing.T) {
	withGroup(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
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
			_, err := w.requestOnDemand(req)
			require.ErrorIs(t, err, nstance.Invalid, field)
		}
		req := onDemand(id)
		req.Group.Group = "unknown"
		_, err := w.requestOnDemand(req)
		require.ErrorIs(t, err, nstance.NotFound)
		req = onDemand(id)
		req.Admit = func(n int) error { return nstance.Errorf(nstance.Quota, "has %d", n) }
		_, err = w.requestOnDemand(req)
		require.ErrorIs(t, err, nstance.Quota)
		require.NoError(t, w.r.Admin().Freeze(w.ctx, web, ""))
		_, err = w.requestOnDemand(onDemand(id))
		require.ErrorIs(t, err, nstance.Conflict)
		require.NoError(t, w.r.Admin().Thaw(w.ctx, web, requester))
		req = onDemand(id)
		req.DryRun = true
		_, err = w.requestOnDemand(req)
		require.NoError(t, err)
		w.advance(time.Minute)
		w.requireMembers(1)
		_, err = w.requestOnDemand(onDemand(id))
		require.NoError(t, err, "the ID is still free")
	})
	t.Run("recently used ID", func(t *testing.T) {
		withGroup(t, 0, simcloud.Options{}, func(t *testing.T, w *world) {
			id := w.readyOnDemand()
			require.NoError(t, w.r.Delete(w.ctx, id, "", true))
			w.advance(time.Minute)
			w.requireMembers(0)
			_, err := w.requestOnDemand(onDemand(id))
			require.ErrorIs(t, err, nstance.Conflict)
		})
	})
}

func TestOnDemandEnds(t *testing.T) {
	aged := webGroup(1)
	aged.Expiry.OnDemandAge = time.Hour
	for name, c := range map[string]struct {
		group nstance.Group
		end   func(w *world, id nstance.InstanceID)
	}{
		"of age":    {aged, func(w *world, _ nstance.InstanceID) { w.advance(time.Hour) }},
		"reclaimed": {webGroup(1), func(w *world, id nstance.InstanceID) { require.NoError(w.t, w.cloud.Reclaim(id, 2*time.Minute)) }},
		"gone": {webGroup(1), func(w *world, id nstance.InstanceID) {
			require.NoError(w.t, w.cloud.Kill(id))
			w.advance(10 * time.Minute)
		}},
		"the group's": {aged, func(w *world, _ nstance.InstanceID) { w.stopLeader(); w.startLeader(aged); w.advance(time.Hour) }},
	} {
		t.Run(name, func(t *testing.T) {
			withGroup(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
				w.r.Observe(nstance.Desired{Groups: []nstance.Group{c.group}})
				id := w.readyOnDemand()
				c.end(w, id)
				w.advance(3 * time.Minute)
				w.requireMembers(1)
				require.NotContains(t, w.ready(), id)
				require.Equal(t, name != "gone", w.count(nstance.EventDrainStarted, id) == 1)
			})
		})
	}
}

func TestOnDemandWithoutCapacity(t *testing.T) {
	small, large := simcloud.Pool{InstanceType: "small"}, simcloud.Pool{InstanceType: "large"}
	t.Run("is repeated with its ID", func(t *testing.T) {
		withGroup(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
			w.cloud.SetCapacity(small, 1)
			id := w.newID()
			_, err := w.requestOnDemand(onDemand(id))
			require.NoError(t, err)
			w.advance(5 * time.Minute)
			require.Equal(t, nstance.Provisioning, w.view(id).State)
			tries := w.count(nstance.EventCreateFailed, id)
			require.Greater(t, tries, 3)
			require.Less(t, tries, 15, "with backoff")
			require.Zero(t, w.group().Failures, "not a failure of the group")
			require.Equal(t, plan.HoldCapacity, w.group().Holds[0].Kind, "the hold names the shortage")
			w.cloud.SetCapacity(small, 2)
			w.advance(4 * time.Minute)
			w.requireMembers(2)
			require.Contains(t, w.ready(), id)
		})
	})
	t.Run("tries other shapes", func(t *testing.T) {
		withGroup(t, 0, simcloud.Options{}, func(t *testing.T, w *world) {
			w.cloud.SetCapacity(small, 0)
			req := onDemand(w.newID())
			req.Definition.InstanceTypes = []string{"small", "large"}
			_, err := w.requestOnDemand(req)
			require.NoError(t, err)
			w.advance(2 * time.Minute)
			require.Equal(t, "large", w.view(req.ID).InstanceType)
			w.requireMembers(1)
			rec, err := w.r.Admin().Internals().Records().Refresh(w.ctx, req.ID)
			require.NoError(t, err)
			require.Equal(t, "large", rec.Shape.InstanceType)
			require.Equal(t, 1, w.shapes()["large/spot"])
		})
	})
	t.Run("gives up at the launch timeout", func(t *testing.T) {
		withGroup(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
			w.cloud.SetCapacity(small, 1)
			w.cloud.SetCapacity(large, 1)
			id := w.newID()
			_, err := w.requestOnDemand(onDemand(id))
			require.NoError(t, err)
			w.advance(14 * time.Minute)
			require.Equal(t, nstance.Provisioning, w.view(id).State)
			w.advance(2 * time.Minute)
			w.requireMembers(1)
			require.Equal(t, 1, w.count(nstance.EventDeleted, id))
			refused := w.first(nstance.EventCreateFailed, func(e nstance.Event) bool { return e.Instance == id && e.Code == nstance.Capacity })
			w.requireLate(id, refused.Error)
		})
	})
	t.Run("is not tried while its shape is sold out", func(t *testing.T) {
		withGroup(t, 0, simcloud.Options{}, func(t *testing.T, w *world) {
			w.cloud.SetCapacity(small, 0)
			first := w.newID()
			_, err := w.requestOnDemand(onDemand(first))
			require.NoError(t, err)
			w.advance(time.Second)
			refused := w.first(nstance.EventCreateFailed, func(e nstance.Event) bool { return e.Instance == first })
			req := onDemand(w.newID())
			req.Definition.LaunchTimeout = 2 * time.Second
			_, err = w.requestOnDemand(req)
			require.NoError(t, err)
			w.advance(time.Minute)
			require.Equal(t, 1, w.count(nstance.EventCreateFailed, req.ID))
			w.requireLate(req.ID, refused.Error)
		})
	})
}

// requireLate: an instance ended for its launch timeout, which says what the provider had answered.
func (w *world) requireLate(id nstance.InstanceID, answer string) {
	w.t.Helper()
	require.NotEmpty(w.t, answer)
	late := "the provider made no machine in time; it answered: " + answer
	w.first(nstance.EventCreateFailed, func(e nstance.Event) bool { return e.Instance == id && e.Reason == late })
	w.first(nstance.EventDeleteRequested, func(e nstance.Event) bool { return e.Instance == id && e.Reason == "timeout: "+late })
}

// view returns the current view of an instance.
func (w *world) view(id nstance.InstanceID) reconcile.InstanceView {
	w.t.Helper()
	r, _ := w.leader()
	v, err := r.Instance(id)
	require.NoError(w.t, err)
	return v
}

func TestOnDemandRefusedAfterIntent(t *testing.T) {
	withGroup(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Code: nstance.Invalid})
		id := w.newID()
		v, err := w.requestOnDemand(onDemand(id))
		require.NoError(t, err, "the intent was durable")
		require.Equal(t, id, v.ID)
		w.advance(100 * time.Millisecond)
		failed := w.view(id)
		require.Equal(t, nstance.Failed, failed.State)
		w.advance(time.Minute)
		w.requireMembers(1)
		e := w.first(nstance.EventCreateFailed, func(e nstance.Event) bool { return e.Instance == id })
		require.Equal(t, nstance.Invalid, e.Code)
		require.Zero(t, w.group().Failures)
		require.Empty(t, w.group().Holds)
		_, err = w.requestOnDemand(onDemand(id))
		require.ErrorIs(t, err, nstance.Conflict, "an ID is used once")
	})
	t.Run("before the intent: error to the caller", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			w := newWorld(t, simcloud.Options{})
			defer w.close()
			w.wrap = func(o *leaderEnv) {
				o.options = func(opts *reconcile.Options) { opts.Bootstrap = failingBootstrap{} }
			}
			w.startLeader(webGroup(0))
			w.advance(time.Second)
			id := w.newID()
			_, err := w.requestOnDemand(onDemand(id))
			require.ErrorIs(t, err, nstance.Invalid)
			require.ErrorContains(t, err, "no such variable")
			w.advance(time.Minute)
			w.requireMembers(0)
		})
	})
}

// failingBootstrap is a Bootstrap whose Render fails.
type failingBootstrap struct{}

func (failingBootstrap) Render(context.Context, reconcile.RenderRequest) (reconcile.Rendered, error) {
	return reconcile.Rendered{}, nstance.FieldError("userdata.content", "define it", "no such variable")
}

// TestOnDemandWaitsForIntent: no success before the intent is durable.
func TestOnDemandWaitsForIntent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		faulty := storagetest.NewFaulty(w.store)
		w.store = faulty
		w.startLeader(webGroup(0))
		w.advance(time.Second)
		faulty.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Prefix: "instance/", Times: -1})
		id := w.newID()
		_, err := w.requestOnDemand(onDemand(id))
		require.ErrorIs(t, err, nstance.Unavailable)
		require.Empty(t, w.cloud.Machines())
		faulty.ClearFaults()
		_, err = w.requestOnDemand(onDemand(id))
		require.NoError(t, err)
		w.advance(2 * time.Minute)
		w.requireMembers(1)
	})
}

// TestOnDemandBudget: instances on demand share the create budget.
func TestOnDemandBudget(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		w.wrap = func(o *leaderEnv) {
			o.options = func(opts *reconcile.Options) { opts.Provider = slowBudget() }
		}
		w.startLeader(webGroup(0))
		w.advance(time.Second)
		began := time.Now()
		for range 3 {
			_, err := w.requestOnDemand(onDemand(w.newID()))
			require.NoError(t, err)
		}
		require.Less(t, time.Since(began), time.Second, "accepted once durable, before the create")
		w.advance(5 * time.Second)
		require.Len(t, w.cloud.Machines(), 1)
		require.Equal(t, plan.HoldBudget, w.group().Holds[0].Kind)
		w.advance(10 * time.Second)
		require.Len(t, w.cloud.Machines(), 2, "one every ten seconds")
		w.advance(2 * time.Minute)
		w.requireMembers(3)
	})
}

// TestOnDemandAcceptedAndSoldOut: the cloud accepts a machine and then has no capacity
// to start it. The create is repeated as after a refusal.
func TestOnDemandAcceptedAndSoldOut(t *testing.T) {
	for _, lag := range []time.Duration{0, 5 * time.Second} {
		t.Run(lag.String(), func(t *testing.T) {
			withGroup(t, 0, simcloud.Options{Boot: simcloud.Delay{Min: time.Minute}, Lag: simcloud.Delay{Min: lag}}, func(t *testing.T, w *world) {
				id := w.newID()
				_, err := w.requestOnDemand(onDemand(id))
				require.NoError(t, err)
				w.advance(10 * time.Second)
				for range 3 {
					require.NoError(t, w.cloud.Terminate(id, nstance.LossCapacity))
					for range 180 {
						if w.advance(time.Second); len(w.cloud.Machines()) == 1 {
							break
						}
					}
					require.Len(t, w.cloud.Machines(), 1)
				}
				failed := w.first(nstance.EventCreateFailed, func(e nstance.Event) bool { return e.Instance == id })
				require.Equal(t, nstance.Capacity, failed.Code)
				require.Equal(t, "it is tried again", failed.Reason)
				w.advance(3 * time.Minute)
				w.requireMembers(1)
				require.Contains(t, w.ready(), id)
				require.Equal(t, 4, w.cloud.Count(simcloud.OpCreate), "one create each time")
				require.Zero(t, w.count(nstance.EventMachineGone, ""))
			})
		})
	}
}

// TestOnDemandSoldOutUntilTimeout: after its launch timeout the instance is lost.
func TestOnDemandSoldOutUntilTimeout(t *testing.T) {
	withGroup(t, 0, simcloud.Options{Boot: simcloud.Delay{Min: time.Minute}}, func(t *testing.T, w *world) {
		id := w.newID()
		_, err := w.requestOnDemand(onDemand(id))
		require.NoError(t, err)
		for range 60 {
			w.advance(20 * time.Second)
			_ = w.cloud.Terminate(id, nstance.LossCapacity) // there may be no machine now
		}
		w.requireMembers(0)
		require.LessOrEqual(t, w.cloud.Count(simcloud.OpCreate), 30, "paced by the launch budget")
		_, err = w.requestOnDemand(onDemand(id))
		require.ErrorContains(t, err, "make a new one")
	})
}
