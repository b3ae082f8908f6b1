package reconcile_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/storage"
)

// TestNewRefuses: nonsense is an error of New that names the field.
func TestNewRefuses(t *testing.T) {
	cloud := simcloud.New(nil)
	defer cloud.Close()
	sound := func() *reconcile.Options {
		return &reconcile.Options{Owner: nstance.Owner{Installation: "i1", Cluster: "c1", Shard: "s1"}}
	}
	_, err := reconcile.New(cloud, storage.NewMemory(), sound())
	require.NoError(t, err)
	_, err = reconcile.New(nil, storage.NewMemory(), sound())
	require.ErrorContains(t, err, "provider: is nil")
	_, err = reconcile.New(cloud, nil, sound())
	require.ErrorContains(t, err, "store: is nil")
	_, err = reconcile.New(cloud, storage.NewMemory(), nil)
	require.ErrorContains(t, err, "owner.installation: is empty")
	for field, change := range map[string]func(o *reconcile.Options){
		"owner.installation":      func(o *reconcile.Options) { o.Owner.Installation = "" },
		"owner.cluster_id":        func(o *reconcile.Options) { o.Owner.Cluster = "C 1" },
		"owner.shard":             func(o *reconcile.Options) { o.Owner.Shard = "" },
		"health_interval":         func(o *reconcile.Options) { o.HealthInterval = -1 },
		"drain_timeout":           func(o *reconcile.Options) { o.DrainTimeout = -1 },
		"full_pass":               func(o *reconcile.Options) { o.FullPass = -1 },
		"snapshots":               func(o *reconcile.Options) { o.Snapshots = -1 },
		"consistency_window":      func(o *reconcile.Options) { o.ConsistencyWindow = -1 },
		"gc.interval":             func(o *reconcile.Options) { o.GC.Interval = -1 },
		"gc.registration_timeout": func(o *reconcile.Options) { o.GC.RegistrationTimeout = -1 },
		"width":                   func(o *reconcile.Options) { o.Width = -1 },
		"max_unhealthy":           func(o *reconcile.Options) { o.MaxUnhealthy.N = -1 },
		"balancers":               func(o *reconcile.Options) { o.Balancers = make([]nstance.LoadBalancer, 1) },
		"group default/web: size": func(o *reconcile.Options) { o.Groups = []nstance.Group{{Key: web, Size: -1}} },
		"group":                   func(o *reconcile.Options) { o.Groups = []nstance.Group{webGroup(1), webGroup(2)} },
	} {
		t.Run(field, func(t *testing.T) {
			o := sound()
			change(o)
			_, err := reconcile.New(cloud, storage.NewMemory(), o)
			require.ErrorIs(t, err, nstance.Invalid)
			require.ErrorContains(t, err, field+": ")
		})
	}
}

// TestNegativeSizeDeletesNothing: Desire returns the error; Observe raises an alarm and
// needs attention until other groups are accepted.
func TestNegativeSizeDeletesNothing(t *testing.T) {
	withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		bad := webGroup(-1)
		require.ErrorContains(t, w.r.Desire([]nstance.Group{bad}), "group default/web: size: -1 is out of range (")
		w.setGroups(bad)
		w.advance(10 * time.Minute)
		w.requireMembers(3)
		require.Equal(t, 1, w.count(nstance.EventAlarm, ""))
		refused := w.attentionFor("refused")
		require.Len(t, refused, 1)
		require.Contains(t, refused[0].Why, "size: -1 is out of range")
		w.setGroups(webGroup(2))
		w.advance(10 * time.Minute)
		w.requireMembers(2)
		require.Empty(t, w.attentionFor("refused"))
	})
}

// TestRegistrationWithoutRecord: a registration that is not on record changes nothing,
// and says so.
func TestRegistrationWithoutRecord(t *testing.T) {
	withGroup(t, 0, simcloud.Options{Boot: simcloud.Delay{Min: time.Hour}}, func(t *testing.T, w *world) {
		w.setGroups(webGroup(1))
		w.advance(10 * time.Second)
		id := w.cloud.Machines()[0].ID
		w.r.Observe(nstance.Registered{ID: id})
		require.Equal(t, 1, w.count(nstance.EventAlarm, id))
		needs := w.attentionFor("unrecorded")
		require.Len(t, needs, 1)
		require.Equal(t, id, needs[0].ID)
		require.Contains(t, needs[0].Remedy, "RegisteredAt")
		require.NoError(t, w.r.Joined(t.Context(), id))
		require.NoError(t, w.r.Joined(t.Context(), id), "once more")
		require.Empty(t, w.attentionFor("unrecorded"))
		require.Equal(t, 1, w.count(nstance.EventRegistered, id))
	})
}

// TestStuckWithoutTimeout: members that boot for long need attention where no timeout
// would end that.
func TestStuckWithoutTimeout(t *testing.T) {
	unbounded := webGroup(2)
	unbounded.Definition.LaunchTimeout, unbounded.Definition.RegistrationTimeout = 0, 0
	withGroup(t, 0, simcloud.Options{Boot: simcloud.Delay{Min: time.Hour}}, func(t *testing.T, w *world) {
		w.setGroups(unbounded)
		w.advance(14 * time.Minute)
		require.Empty(t, w.attentionFor("stuck"))
		w.advance(2 * time.Minute)
		needs := w.attentionFor("stuck")
		require.Len(t, needs, 1)
		require.Contains(t, needs[0].Why, "2 members have not become ready in 15m0s")
		w.advance(time.Hour)
		require.Empty(t, w.attentionFor("stuck"), "they are ready")
	})
}
