package reconcile_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
)

// tight is a budget of one create every ten seconds.
func tight() *provider.Options { return &provider.Options{Rate: 0.1, Burst: 1} }

// going is group web while it is being removed.
func going(size int) nstance.Group {
	g := wanted(size)
	g.Removing = true
	return g
}

func TestRemoval(t *testing.T) {
	within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		kept := w.ordered()
		require.NoError(t, w.r.Desire([]nstance.Group{going(3)}))
		w.passes(time.Second)
		require.True(t, w.group().Removing)
		require.Equal(t, 3, w.group().Leaving)
		require.Equal(t, 3, w.count(nstance.EventDrainStarted, ""))
		_, err := w.order(onDemand(w.newID()))
		require.ErrorIs(t, err, nstance.Conflict, "it takes no new ones")

		{ // goes on under the next leader
			w.depose()
			w.lead(going(3))
			w.passes(2 * time.Minute)
			require.Empty(t, w.r.Groups(), "the group is gone")
			require.Equal(t, 1, w.count(nstance.EventGroupRemoved, ""))
			require.ErrorIs(t, w.r.Remove(web), nstance.NotFound)
		}
		{ // an instance on demand outlives it, until its age
			w.agrees(1)
			require.Equal(t, []nstance.InstanceID{kept}, w.ready())
			aged := going(3)
			aged.Expiry.OnDemandAge = time.Hour
			require.NoError(t, w.r.Desire([]nstance.Group{aged}))
			w.passes(2 * time.Hour)
			w.agrees(0)
			require.Equal(t, 1, w.count(nstance.EventDrainStarted, kept))
		}
		{ // the same name begins anew
			require.NoError(t, w.r.Desire([]nstance.Group{wanted(1)}))
			w.passes(2 * time.Minute)
			w.agrees(1)
			require.False(t, w.group().Removing)
		}
	})
}

func TestRemovalForgetsHistory(t *testing.T) {
	within(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
		w.ordered() // so that the group stays in memory
		require.NoError(t, w.r.Pause(w.ctx, web, ""))
		require.NoError(t, w.r.Desire([]nstance.Group{going(1)}))
		w.passes(3 * time.Minute)
		require.NoError(t, w.r.Desire([]nstance.Group{wanted(1)}))
		require.False(t, w.group().Paused, "what a group of this name remembered is not this one's")
	})
}

func TestRemovalTakenBack(t *testing.T) {
	within(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
		require.NoError(t, w.r.Pause(w.ctx, web, ""))
		require.NoError(t, w.r.Remove(web))
		w.passes(time.Second)
		require.NoError(t, w.r.Desire([]nstance.Group{wanted(2)}))
		w.passes(3 * time.Minute)
		w.agrees(2)
		require.True(t, w.group().Paused, "it never was gone")
		require.Zero(t, w.count(nstance.EventGroupRemoved, ""))
	})
}

func TestDesireRefuses(t *testing.T) {
	within(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
		bad := wanted(5)
		bad.Definition.Args = []byte("[")
		other := wanted(5)
		other.Key.Group = "other"
		require.ErrorIs(t, w.r.Desire([]nstance.Group{other, bad}), nstance.Invalid)
		w.passes(time.Minute)
		w.agrees(1)
		require.ErrorIs(t, w.r.Remove(nstance.GroupKey{Tenant: "default", Group: "nobody"}), nstance.NotFound)
	})
}

// A change is what somebody who watches groups was told.
type change struct {
	v    reconcile.GroupView
	gone bool
}

func TestChangesAreTold(t *testing.T) {
	var told []change
	var w0 *world
	within(t, 0, simcloud.Options{}, func(t *testing.T, w *world) {
		w0 = w
		w.depose()
		w.wrap = func(o *office) {
			o.options = func(opts *reconcile.Options) {
				opts.Changed = func(v reconcile.GroupView, gone bool) { w.heard(o, func() { told = append(told, change{v, gone}) }) }
			}
		}
		w.lead(wanted(2))
		w.passes(2 * time.Minute)
		last := func() change { w0.mu.Lock(); defer w0.mu.Unlock(); return told[len(told)-1] }
		require.Equal(t, 2, last().v.Ready)
		require.False(t, last().gone)
		for i := 1; i < len(told); i++ {
			require.NotEqual(t, told[i-1], told[i], "only changes are told")
		}
		n := len(told)
		w.passes(30 * time.Minute)
		require.Len(t, told, n, "nothing happened, nothing is told")

		id := w.ordered()
		require.Equal(t, 1, last().v.OnDemand)
		require.NoError(t, w.r.Desire([]nstance.Group{going(2)}))
		w.passes(2 * time.Minute)
		require.True(t, last().gone)
		require.Equal(t, 1, last().v.OnDemand, "of the group that is gone an instance is left")
		require.NoError(t, w.r.Delete(w.ctx, id, "", true))
		w.passes(time.Minute)
		require.True(t, last().gone)
		require.Zero(t, last().v.OnDemand)
		require.Equal(t, web, last().v.Key)
	})
}
