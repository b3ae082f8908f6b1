package server_test

import (
	"encoding/json"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/vault"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/registration"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/storage"
)

// The directory holds what a server of version 0.1 left in storage, with its
// configuration as config.jsonc. It is never written again: what a later version
// adds gets a directory of its own. The keys in it guard nothing.
const previous = "testdata/v0.1"

var makePrevious = flag.Bool("make-previous", false, "write "+previous+", which only its own version may")

func TestMakePrevious(t *testing.T) {
	if !*makePrevious {
		return // it stands, and must not change
	}
	store := storage.NewMemory() // whose keys are good from long before anybody runs this
	_, err := registration.Bootstrap(t.Context(), vault.New(store, nil), time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC))
	require.NoError(t, err)
	w := newWorld(t, setup{size: 2, store: store})
	api := w.admin()
	w.client(nstance.RoleOperator, "blue")
	require.Eventually(t, func() bool { return len(w.cloud.Machines()) == 3 }, eventually, time.Millisecond)
	for _, m := range w.cloud.Machines() {
		w.ready(m.ID)
	}
	size := int32(1)
	_, err = api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{
		Group: "db", Tenant: "blue", Size: &size, Vars: &apiv1.Vars{Values: map[string]string{"colour": "green"}},
	})
	require.NoError(t, err)
	_, err = api.PauseGroup(t.Context(), &apiv1.PauseGroupRequest{Group: "db", Tenant: "blue", Reason: "busy"})
	require.NoError(t, err)
	require.NoError(t, w.stop())
	for e, err := range w.store.List(t.Context(), "", "") {
		require.NoError(t, err)
		obj, err := w.store.Get(t.Context(), e.Key)
		require.NoError(t, err)
		leave(t, e.Key, obj.Data)
	}
	leave(t, "config.jsonc", []byte(ordinary(2)))
}

func leave(t *testing.T, name string, data []byte) {
	t.Helper()
	path := filepath.Join(previous, filepath.FromSlash(name))
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, data, 0o644))
}

// previously returns the store, with some objects replaced, and the
// configuration.
func previously(t *testing.T, change map[string]func([]byte) []byte) (storage.Store, string) {
	t.Helper()
	store, conf := storage.NewMemory(), ""
	require.NoError(t, filepath.WalkDir(previous, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		key := filepath.ToSlash(strings.TrimPrefix(path, previous+string(filepath.Separator)))
		if key == "config.jsonc" {
			conf = string(data)
			return nil
		}
		if f := change[key]; f != nil {
			data = f(data)
		}
		_, err = store.PutIfAbsent(t.Context(), key, data)
		return err
	}))
	return store, conf
}

// upgraded starts a server on what version 0.1 has left behind, with its
// machines in the cloud.
func upgraded(t *testing.T, change map[string]func([]byte) []byte, quiet bool) *world {
	t.Helper()
	store, conf := previously(t, change)
	w := &world{T: t, store: store, cloud: simcloud.New(&simcloud.Options{}), news: make(chan struct{})}
	t.Cleanup(w.cloud.Close)
	keys, err := registration.Bootstrap(t.Context(), vault.New(store, nil), time.Now())
	require.NoError(t, err)
	pristine, _ := previously(t, nil)
	recs, problems, err := storage.NewRecords(pristine, zone, nil).Load(t.Context())
	require.NoError(t, err)
	require.Empty(t, problems)
	for _, rec := range recs {
		_, err := w.cloud.Create(t.Context(), nstance.MachineSpec{
			ID: rec.ID, Owner: nstance.Owner{Installation: keys.Installation, Cluster: cluster, Shard: zone, Tenant: rec.Tenant}, Group: rec.Group,
			CreatedAt: rec.CreatedAt, Epoch: rec.CreatedEpoch, Arch: nstance.AMD64, InstanceType: rec.Shape.InstanceType,
			Market: rec.Shape.Market, Token: rec.Token,
		})
		require.NoError(t, err)
	}
	w.conf.set(conf, nil)
	w.keys = keys
	w.server, err = server.New(t.Context(), store, w.cloud, w.conf.read, &server.Options{Kinds: kinds, Journal: w.journal})
	require.NoError(t, err)
	w.run()
	if !quiet {
		w.leads()
	}
	return w
}

// TestUpgrade runs on what version 0.1 has written: lease, configuration,
// overlays, state, definitions, records, keys.
func TestUpgrade(t *testing.T) {
	w := upgraded(t, nil, false)
	api := w.admin()
	status, err := api.GetShardStatus(t.Context(), &apiv1.GetShardStatusRequest{})
	require.NoError(t, err)
	require.Empty(t, status.GetProblems())
	require.EqualValues(t, 3, status.GetInstances())
	require.EqualValues(t, 2, status.GetEpoch(), "the lease goes on")
	config, err := api.GetConfigStatus(t.Context(), &apiv1.GetConfigStatusRequest{})
	require.NoError(t, err)
	require.Nil(t, config.GetRejectedAt())
	require.Empty(t, config.GetHeldDigest())
	changed, err := api.RefreshConfig(t.Context(), &apiv1.RefreshConfigRequest{})
	require.NoError(t, err)
	require.False(t, changed.GetChanged(), "what was accepted is in force")

	db := w.group(api, "db")
	require.Equal(t, "green", db.GetVars()["colour"], "what the API had changed counts")
	require.True(t, db.GetPaused())
	require.NotEmpty(t, db.GetLastGoodHash())
	for _, name := range []string{"web", "db"} {
		require.Zero(t, w.group(api, name).GetStale(), name)
	}
	plan, err := api.Plan(t.Context(), &apiv1.PlanRequest{})
	require.NoError(t, err)
	require.Empty(t, plan.GetGroups())
	require.Equal(t, 3, w.cloud.Count(simcloud.OpCreate), "but by this test")
	require.Zero(t, w.cloud.Count(simcloud.OpDelete))
	require.Zero(t, w.count(nstance.EventDrainStarted))
	for _, m := range w.cloud.Machines() {
		got, err := api.GetInstance(t.Context(), &apiv1.GetInstanceRequest{Id: string(m.ID)})
		require.NoError(t, err)
		require.False(t, got.GetInstance().GetDrifted())
		for _, f := range got.GetInstance().GetDrift() { // the variables that were changed after db's was made
			require.Equal(t, "push", f.GetEffect())
		}
		require.NotNil(t, got.GetInstance().GetRegisteredAt())
	}
}

// TestDocumentsSayTheVersion and, as long as it is the first, that there was none
// before.
func TestDocumentsSayTheVersion(t *testing.T) {
	for _, path := range []string{"../README.md", "../docs/scope.md"} {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Contains(t, string(text), "Version "+server.Version+".", path)
	}
	scope, err := os.ReadFile("../docs/scope.md")
	require.NoError(t, err)
	require.Contains(t, string(scope), server.Version+" is the first", "say which upgrades were tried")
}

// TestNewerMajorIsRefused by the name of the object, wherever it stands.
func TestNewerMajorIsRefused(t *testing.T) {
	newer := func(data []byte) []byte {
		var doc map[string]any
		require.NoError(t, json.Unmarshal(data, &doc))
		doc["format"] = "2.0"
		data, err := json.Marshal(doc)
		require.NoError(t, err)
		return data
	}
	for _, key := range []string{storage.LeaseKey(zone), storage.AcceptedKey(zone), storage.GroupsKey(zone), storage.StateKey(zone)} {
		t.Run(key, func(t *testing.T) {
			w := upgraded(t, map[string]func([]byte) []byte{key: newer}, true)
			require.Eventually(t, func() bool {
				return strings.Contains(strings.Join(server.Problems(w.server), "\n"), key)
			}, eventually, 5*time.Millisecond, "it is named")
			require.Contains(t, strings.Join(server.Problems(w.server), "\n"), "upgrade this program")
			require.Equal(t, 3, w.cloud.Count(simcloud.OpCreate))
			require.Zero(t, w.cloud.Count(simcloud.OpDelete))
			obj, err := w.store.Get(t.Context(), key)
			require.NoError(t, err)
			require.Contains(t, string(obj.Data), `"format":"2.0"`, "and nothing is written over it")
		})
	}
}
