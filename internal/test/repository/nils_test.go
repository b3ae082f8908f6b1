package repository_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/agent"
	"github.com/nstance-go/nstance/drain"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/registration"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/spot"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/lease"
)

// TestNilArguments: an embedder who passes nothing, or a nil pointer as an interface, is told
// so at once, and not by a panic later.
func TestNilArguments(t *testing.T) {
	cloud, store := newCloud(t), storage.NewMemory()
	keys, err := registration.NewKeys(time.Now())
	require.NoError(t, err)
	reconciler := func(p nstance.Provider, s storage.Store, o reconcile.Options) error {
		o.Owner = nstance.Owner{Installation: "i", Cluster: "c", Shard: "s"}
		_, err := reconcile.New(p, s, &o)
		return err
	}
	serve := func(s storage.Store, p nstance.Provider, source server.Source) error {
		_, err := server.New(t.Context(), s, p, source, nil)
		return err
	}
	source := server.FileSource(filepath.Join(t.TempDir(), "none"))
	for name, err := range map[string]error{
		"provider.New, nil":             second(provider.New(nil, nil)),
		"provider.New, nil pointer":     second(provider.New((*simcloud.Cloud)(nil), nil)),
		"lease.New, nil":                second(lease.New(nil, "s", nil)),
		"lease.New, nil pointer":        second(lease.New((*storage.Dir)(nil), "s", nil)),
		"reconcile.New, no provider":    reconciler(nil, store, reconcile.Options{}),
		"reconcile.New, nil provider":   reconciler((*simcloud.Cloud)(nil), store, reconcile.Options{}),
		"reconcile.New, no store":       reconciler(cloud, nil, reconcile.Options{}),
		"reconcile.New, nil store":      reconciler(cloud, (*storage.Memory)(nil), reconcile.Options{}),
		"reconcile.New, nil drains":     reconciler(cloud, store, reconcile.Options{Drains: (*drain.Coordinator)(nil)}),
		"registration.New, no keys":     second(registration.New(nil, registration.NewMemory(), nil)),
		"registration.New, no records":  second(registration.New(keys, nil, nil)),
		"registration.New, nil records": second(registration.New(keys, (*registration.Memory)(nil), nil)),
		"server.New, nil store":         serve((*storage.Memory)(nil), cloud, source),
		"server.New, nil provider":      serve(store, (*simcloud.Cloud)(nil), source),
		"server.New, no source":         serve(store, cloud, nil),
		"agent.New, a nil detector":     second(agent.New(&agent.Options{Detector: (*spot.AWS)(nil), InstanceID: "web06h1hqt7bdsmdb7jn6pmk73v5r", RegistrationAddrs: []string{"a:1"}, AgentAddrs: []string{"a:1"}})),
	} {
		require.ErrorIs(t, err, nstance.Invalid, name)
		require.ErrorContains(t, err, "nil", name)
	}
}

func second[T any](_ T, err error) error { return err }
