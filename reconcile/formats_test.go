package reconcile_test

import (
	"encoding/json"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/attention"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/storage"
)

// recorded holds documents in the forms that are frozen. It is never written again: every
// later version reads them. What a later version adds gets a directory of its own.
const recorded = "testdata/recorded"

var record = flag.Bool("record", false, "write "+recorded+", which no later version may")

// recordedGroup is a group as it was when the documents were recorded. It does not depend on
// what other tests change.
func recordedGroup(name nstance.GroupID, size int, content string) nstance.Group {
	return nstance.Group{
		Key: nstance.GroupKey{Tenant: "default", Group: name}, Template: "vm", Size: size, DrainTimeout: 5 * time.Minute, Static: true,
		Rollout: nstance.Rollout{MaxSurge: nstance.Count{N: 1}, HaltAfter: 2},
		Definition: nstance.Definition{
			Kind: "web", Arch: nstance.ARM64, Role: "worker", InstanceTypes: []string{"small", "large"},
			SubnetPool: "main", Subnets: []string{"subnet-1", "subnet-2"}, Args: []byte(`{"boot_delay":"20s"}`),
			UserData: nstance.UserData{Content: content}, Vars: map[string]string{"colour": "red"},
			Market:        nstance.Market{Type: nstance.Spot, MaxPrice: "0.05", Fallback: nstance.OnDemand, FallbackAfter: 10 * time.Minute},
			LaunchTimeout: 15 * time.Minute, RegistrationTimeout: 5 * time.Minute,
		},
	}
}

// recordedGroups are desired at the end: a group that is held has another definition
// than its members.
func recordedGroups() []nstance.Group {
	return []nstance.Group{
		recordedGroup("plain", 3, "v1"), recordedGroup("paused", 2, "v2"), recordedGroup("halted", 2, "bad"),
		recordedGroup("back", 2, "bad"), recordedGroup("frozen", 2, "v2"), recordedGroup("idle", 0, "v1"),
	}
}

func recordedKey(name nstance.GroupID) nstance.GroupKey {
	return nstance.GroupKey{Tenant: "default", Group: name}
}

// TestRecordFormats writes the directory.
func TestRecordFormats(t *testing.T) {
	if !*record {
		return // it exists, and must not change
	}
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		w.failUserData("bad")
		var first []nstance.Group
		for _, g := range recordedGroups() {
			g.Definition.UserData.Content = "v1"
			first = append(first, g)
		}
		w.startLeader(first...)
		w.advance(3 * time.Minute)
		require.NoError(t, w.r.Admin().Pause(w.ctx, recordedKey("paused"), "the image is odd"))
		require.NoError(t, w.r.Admin().Freeze(w.ctx, recordedKey("frozen"), "audit"))
		w.r.Observe(nstance.Desired{Groups: recordedGroups()})
		w.advance(time.Hour)
		require.NoError(t, w.r.Admin().Rollback(w.ctx, recordedKey("back"), requester, false))
		for _, v := range w.r.Instances() {
			if v.Group.Group == "frozen" {
				require.NoError(t, w.cloud.Reclaim(v.ID, 1000*time.Hour))
				break
			}
		}
		w.advance(time.Hour)
		require.Len(t, w.cloud.Machines(), 11)
		dump(t, w.store, recorded)
	})
}

// dump writes every object of a store into a directory.
func dump(t *testing.T, store storage.Store, dir string) {
	t.Helper()
	for e, err := range store.List(t.Context(), "", "") {
		require.NoError(t, err)
		obj, err := store.Get(t.Context(), e.Key)
		require.NoError(t, err)
		path := filepath.Join(dir, filepath.FromSlash(e.Key))
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, obj.Data, 0o644))
	}
}

// recordedStore returns a store with the recorded documents. change may replace an object.
func recordedStore(t *testing.T, change func(key string, data []byte) []byte) storage.Store {
	t.Helper()
	store := storage.NewMemory()
	require.NoError(t, filepath.WalkDir(recorded, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		key := filepath.ToSlash(strings.TrimPrefix(path, recorded+string(filepath.Separator)))
		if change != nil {
			data = change(key, data)
		}
		_, err = store.PutIfAbsent(t.Context(), key, data)
		return err
	}))
	return store
}

// upgraded runs a test in a world of recorded documents, with the machines of its
// records, and a new leader.
func upgraded(t *testing.T, change func(key string, data []byte) []byte, test func(t *testing.T, w *world)) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		w.store = recordedStore(t, nil)
		w.epoch = 1
		for _, rec := range w.recordedRecords() {
			_, err := w.cloud.Create(w.ctx, nstance.MachineSpec{
				ID: rec.ID, Owner: nstance.Owner{Installation: "i1", Cluster: "c1", Shard: "s1", Tenant: rec.Tenant}, Group: rec.Group,
				CreatedAt: rec.CreatedAt, Epoch: rec.CreatedEpoch, Arch: nstance.ARM64, InstanceType: rec.Shape.InstanceType,
				Subnet: rec.Shape.Subnet, Market: rec.Shape.Market, Token: rec.Token,
			})
			require.NoError(t, err)
		}
		w.store = recordedStore(t, change)
		defer w.close()
		w.startLeader(recordedGroups()...)
		w.advance(4 * time.Hour)
		test(t, w)
	})
}

func (w *world) recordedRecords() []records.Instance {
	w.t.Helper()
	recs, _, err := records.New(w.store, "s1", nil).Load(w.ctx)
	require.NoError(w.t, err)
	return recs
}

// groupNamed returns a group of the leader.
func (w *world) groupNamed(name nstance.GroupID) reconcile.GroupView {
	w.t.Helper()
	g, err := w.r.Group(recordedKey(name))
	require.NoError(w.t, err)
	return g
}

// TestUpgradeReplacesNothing reads recorded documents.
func TestUpgradeReplacesNothing(t *testing.T) {
	upgraded(t, nil, func(t *testing.T, w *world) {
		require.Len(t, w.recordedRecords(), 11)
		require.Equal(t, 11, w.cloud.Count(simcloud.OpCreate), "nothing was created but by this test")
		require.Zero(t, w.cloud.Count(simcloud.OpDelete))
		for _, typ := range []nstance.EventType{
			nstance.EventDrainStarted, nstance.EventDeleteRequested, nstance.EventCreateRequested, nstance.EventReplacementRequested,
			nstance.EventRecordUnreadable, nstance.EventAlarm, eventtype.RollbackEnded,
		} {
			require.Zero(t, w.count(typ, ""), typ)
		}
		require.Empty(t, attention.Problems(w.r.Admin().Attention()))
		for name, check := range map[nstance.GroupID]func(reconcile.GroupView) bool{
			"plain":  func(g reconcile.GroupView) bool { return g.Stale == 0 && g.Ready == 3 },
			"paused": func(g reconcile.GroupView) bool { return g.Paused && g.Stale == 2 && g.Ready == 2 },
			"halted": func(g reconcile.GroupView) bool { return g.Halted != "" && g.Stale == 2 && g.Ready == 2 },
			"back":   func(g reconcile.GroupView) bool { return g.RolledBack && g.Stale == 0 && g.Ready == 2 },
			"frozen": func(g reconcile.GroupView) bool { return g.Frozen && g.Stale == 2 && g.Ready == 2 },
		} {
			require.True(t, check(w.groupNamed(name)), "%s: %+v", name, w.groupNamed(name))
		}
		require.NoError(t, w.r.Admin().Thaw(t.Context(), recordedKey("frozen"), requester))
		w.advance(time.Minute)
		require.Equal(t, 1, w.count(nstance.EventReplacementRequested, ""), "a recorded notice takes effect")
		w.advance(time.Hour)
		require.Equal(t, 1, w.count(nstance.EventReplacementRequested, ""))
		require.NoError(t, w.r.Admin().Resume(t.Context(), recordedKey("paused"), requester))
		w.advance(30 * time.Minute)
		require.Zero(t, w.groupNamed("paused").Stale, "what was held goes on")
	})
}

// object decodes the object under a key.
func (w *world) object(key string) map[string]any {
	w.t.Helper()
	obj, err := w.store.Get(w.ctx, key)
	require.NoError(w.t, err)
	var doc map[string]any
	require.NoError(w.t, json.Unmarshal(obj.Data, &doc))
	return doc
}

// with changes fields of every JSON object that has a format.
func with(t *testing.T, prefix string, fields map[string]any) func(string, []byte) []byte {
	return func(key string, data []byte) []byte {
		if !strings.HasPrefix(key, prefix) {
			return data
		}
		var doc map[string]any
		require.NoError(t, json.Unmarshal(data, &doc))
		for name, v := range fields {
			doc[name] = v
		}
		data, err := json.Marshal(doc)
		require.NoError(t, err)
		return data
	}
}

// TestDowngradeKeepsUnknownFields: fields that a later version has written survive a
// rewrite.
func TestDowngradeKeepsUnknownFields(t *testing.T) {
	later := map[string]any{"format": "1.9", "later": map[string]any{"a": 1.0}}
	for prefix, rewrite := range map[string]func(t *testing.T, w *world) (key string){
		"state/": func(t *testing.T, w *world) string {
			require.NoError(t, w.r.Admin().Pause(t.Context(), recordedKey("plain"), ""))
			return layout.StateKey("s1")
		},
		"instance/": func(t *testing.T, w *world) string {
			w.mu.Lock()
			w.slowDrain = true
			w.mu.Unlock()
			recs := w.recordedRecords()
			rec := recs[slices.IndexFunc(recs, func(rec records.Instance) bool { return rec.Group == "plain" })]
			_, err := w.r.Drain(t.Context(), rec.ID, "")
			require.NoError(t, err)
			return layout.InstanceKey("s1", rec.Tenant, rec.Group, rec.ID)
		},
	} {
		t.Run(prefix, func(t *testing.T) {
			upgraded(t, with(t, prefix, later), func(t *testing.T, w *world) {
				require.Equal(t, 11, w.cloud.Count(simcloud.OpCreate))
				key := rewrite(t, w)
				doc := w.object(key)
				require.EqualValues(t, 2, doc["epoch"], "it was rewritten")
				require.Equal(t, "1.9", doc["format"])
				require.Equal(t, later["later"], doc["later"])
			})
		})
	}
}

// TestNewerMajorIsRefused: the problem names the object.
func TestNewerMajorIsRefused(t *testing.T) {
	newer := map[string]any{"format": "2.0"}
	t.Run("state: nothing is planned", func(t *testing.T) {
		upgraded(t, with(t, "state/", newer), func(t *testing.T, w *world) {
			require.False(t, w.r.Loaded())
			require.Contains(t, attention.Problems(w.r.Admin().Attention())[0], "state/s1.json")
			require.Contains(t, attention.Problems(w.r.Admin().Attention())[0], "upgrade this program")
			require.ErrorIs(t, w.r.Admin().Pause(t.Context(), recordedKey("plain"), ""), nstance.Unavailable)
			require.Equal(t, 11, w.cloud.Count(simcloud.OpCreate))
			require.Equal(t, "2.0", w.object(layout.StateKey("s1"))["format"], "it is not overwritten")
		})
	})
	t.Run("records: their group is held", func(t *testing.T) {
		upgraded(t, with(t, "instance/s1/default/plain/", newer), func(t *testing.T, w *world) {
			require.Equal(t, 3, w.count(nstance.EventRecordUnreadable, ""))
			require.Contains(t, attention.Problems(w.r.Admin().Attention())[0], "instance/s1/default/plain/")
			require.Contains(t, attention.Problems(w.r.Admin().Attention())[0], "upgrade this program")
			require.Equal(t, 11, w.cloud.Count(simcloud.OpCreate), "unreadable is not missing")
			require.Zero(t, w.cloud.Count(simcloud.OpDelete))
		})
	})
	t.Run("definitions: a rollback needs its own", func(t *testing.T) {
		upgraded(t, with(t, "definition/", newer), func(t *testing.T, w *world) {
			require.Contains(t, attention.Problems(w.r.Admin().Attention())[0], "group default/back is rolled back to definition")
			require.Equal(t, 11, w.cloud.Count(simcloud.OpCreate))
			require.Zero(t, w.cloud.Count(simcloud.OpDelete))
		})
	})
}
