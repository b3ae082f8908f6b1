package reconcile_test

import (
	"context"
	"slices"
	"sync"
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
	"github.com/nstance-go/nstance/storage/storagetest"
)

// createOrphan creates a machine with the shard's marks and without a record, with an ID of
// that age. change may change its marks.
func (w *world) createOrphan(ago time.Duration, change func(*nstance.MachineSpec)) nstance.InstanceID {
	w.t.Helper()
	createdAt := time.Now().Add(-ago).UTC().Truncate(time.Millisecond)
	id, err := nstance.NewInstanceID("web", createdAt)
	require.NoError(w.t, err)
	spec := nstance.MachineSpec{
		ID: id, Owner: nstance.Owner{Installation: "i1", Cluster: "c1", Shard: "s1", Tenant: web.Tenant}, Group: web.Group,
		CreatedAt: createdAt, Epoch: 1, Arch: nstance.AMD64, InstanceType: "small", Market: nstance.Spot, Token: string(id) + "-1",
	}
	if change != nil {
		change(&spec)
	}
	_, err = w.cloud.Create(w.ctx, spec)
	require.NoError(w.t, err)
	return id
}

// exists reports whether the cloud has the machine.
func (w *world) exists(id nstance.InstanceID) bool {
	_, ok := w.cloud.Spec(id)
	return ok
}

// keepReason returns why the orphan is kept.
func (w *world) keepReason(id nstance.InstanceID) string {
	w.t.Helper()
	r, _ := w.leader()
	all := r.Admin().Orphans()
	i := slices.IndexFunc(all, func(o reconcile.OrphanView) bool { return o.Machine.ID == id })
	require.NotEqual(w.t, -1, i, "%s is no orphan", id)
	return all[i].Spared
}

// withSettledLeader is withGroup with a leader that has led long enough to collect orphans.
func withSettledLeader(t *testing.T, size int, test func(t *testing.T, w *world)) {
	withGroup(t, size, simcloud.Options{}, func(t *testing.T, w *world) {
		w.advance(30 * time.Minute)
		test(t, w)
	})
}

// keyIn returns the key of a record in group, which may be unknown.
func keyIn(group nstance.GroupID, id nstance.InstanceID) string {
	return layout.InstanceKey("s1", web.Tenant, group, id)
}

// record writes the record of a machine behind the leader.
func (w *world) record(id nstance.InstanceID, group nstance.GroupID) {
	w.t.Helper()
	other := records.New(w.store, "s1", &records.Options{Epoch: w.epoch})
	_, err := other.Create(w.ctx, records.Instance{ID: id, Tenant: web.Tenant, Group: group, CreatedAt: id.Time(), RegisteredAt: id.Time()})
	require.NoError(w.t, err)
}

func TestOrphanIsCollected(t *testing.T) {
	withSettledLeader(t, 5, func(t *testing.T, w *world) {
		before := w.ready()
		id := w.createOrphan(10*time.Minute, nil)
		tombstoned := false
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpDelete, ID: id, Keep: true, Do: func() {
			obj, err := w.store.Get(w.ctx, keyIn(web.Group, id))
			require.NoError(t, err)
			rec, err := records.DecodeInstance(obj.Key, obj.Data)
			require.NoError(t, err)
			tombstoned = rec.Deleting != nil && rec.Deleting.Why.Kind == nstance.CauseOrphan
		}})
		w.advance(10 * time.Minute)
		require.False(t, w.exists(id))
		require.True(t, tombstoned, "the tombstone is durable before the delete")
		require.Equal(t, 1, w.count(nstance.EventOrphanSeen, id))
		require.Equal(t, 1, w.count(nstance.EventDeleteRequested, id))
		require.Equal(t, 1, w.count(nstance.EventDeleted, id))
		require.Equal(t, before, w.ready())
		require.Zero(t, w.count(nstance.EventDrainStarted, ""))
		w.requireMembers(5)
		require.Empty(t, w.r.Admin().Orphans())
	})
}

func TestOrphanIsKept(t *testing.T) {
	t.Run("while the term is young", func(t *testing.T) {
		withSettledLeader(t, 3, func(t *testing.T, w *world) {
			id := w.createOrphan(10*time.Minute, nil)
			w.stopLeader()
			w.startLeader(webGroup(3))
			w.advance(4*time.Minute + 50*time.Second)
			require.True(t, w.exists(id))
			require.Contains(t, w.keepReason(id), "has not led for 5m")
			w.advance(2 * time.Minute)
			require.False(t, w.exists(id))
		})
	})
	t.Run("until two listings have shown it", func(t *testing.T) {
		withSettledLeader(t, 3, func(t *testing.T, w *world) {
			id := w.createOrphan(10*time.Minute, nil)
			for w.count(nstance.EventOrphanSeen, id) == 0 {
				w.advance(time.Second)
			}
			w.advance(time.Minute + 50*time.Second)
			require.True(t, w.exists(id))
			require.Contains(t, w.keepReason(id), "two listings 2m")
			w.advance(3 * time.Minute)
			require.False(t, w.exists(id))
		})
	})
	t.Run("while listings fail", func(t *testing.T) {
		withSettledLeader(t, 3, func(t *testing.T, w *world) {
			id := w.createOrphan(10*time.Minute, nil)
			for w.count(nstance.EventOrphanSeen, id) == 0 {
				w.advance(time.Second)
			}
			w.cloud.Inject(simcloud.Fault{Op: simcloud.OpList, Times: -1})
			w.advance(30 * time.Minute)
			require.True(t, w.exists(id))
			w.cloud.ClearFaults()
			w.advance(5 * time.Minute)
			require.False(t, w.exists(id))
		})
	})
	t.Run("while it may still be registering", func(t *testing.T) {
		withSettledLeader(t, 3, func(t *testing.T, w *world) {
			id := w.createOrphan(0, nil)
			w.advance(4*time.Minute + 55*time.Second)
			require.True(t, w.exists(id))
			require.Contains(t, w.keepReason(id), "younger than 5m")
			w.advance(3 * time.Minute)
			require.False(t, w.exists(id))
		})
	})
	for name, c := range map[string]struct{ id, marked time.Duration }{ // before now
		"by its ID, with an old mark": {0, 20 * time.Minute},
		"by its mark, with an old ID": {20 * time.Minute, 0},
	} {
		t.Run("while it may still be registering "+name, func(t *testing.T) {
			withSettledLeader(t, 3, func(t *testing.T, w *world) {
				id := w.createOrphan(c.id, func(s *nstance.MachineSpec) { s.CreatedAt = time.Now().Add(-c.marked).UTC() })
				w.advance(4*time.Minute + 55*time.Second)
				require.True(t, w.exists(id))
				require.Contains(t, w.keepReason(id), "younger than 5m")
				w.advance(3 * time.Minute)
				require.False(t, w.exists(id))
			})
		})
	}
	t.Run("while there are too many, with one alarm", func(t *testing.T) {
		withSettledLeader(t, 9, func(t *testing.T, w *world) {
			a, b := w.createOrphan(10*time.Minute, nil), w.createOrphan(11*time.Minute, nil)
			w.advance(time.Hour)
			require.True(t, w.exists(a) && w.exists(b), "a fifth of nine is one")
			require.Contains(t, w.keepReason(a), "2 machines without a record are more than 1")
			require.Equal(t, 1, w.count(nstance.EventAlarm, ""))
			require.Len(t, w.r.Admin().Orphans(), 2)
			require.Len(t, attention.Problems(w.r.Admin().Attention()), 2)

			require.NoError(t, w.r.Admin().DeleteOrphan(w.ctx, a, "asked for"))
			w.advance(5 * time.Minute)
			require.False(t, w.exists(a), "deleted on request")
			require.False(t, w.exists(b), "the other one is within the limit now")
			w.requireMembers(9)
		})
	})
	t.Run("while there are as many as a fifth", func(t *testing.T) {
		withSettledLeader(t, 10, func(t *testing.T, w *world) {
			a, b := w.createOrphan(10*time.Minute, nil), w.createOrphan(11*time.Minute, nil)
			w.advance(10 * time.Minute)
			require.False(t, w.exists(a) || w.exists(b), "a fifth of ten is two")
			require.Zero(t, w.count(nstance.EventAlarm, ""))
		})
	})
	for name, change := range map[string]func(*nstance.MachineSpec){
		"of another installation": func(s *nstance.MachineSpec) { s.Owner.Installation = "i2" },
		"of another cluster":      func(s *nstance.MachineSpec) { s.Owner.Cluster = "c2" },
		"of another shard":        func(s *nstance.MachineSpec) { s.Owner.Shard = "s2" },
	} {
		t.Run(name, func(t *testing.T) {
			withSettledLeader(t, 3, func(t *testing.T, w *world) {
				id := w.createOrphan(10*time.Minute, change)
				w.advance(time.Hour)
				require.True(t, w.exists(id))
				require.Empty(t, w.r.Admin().Orphans(), "not of this shard")
				require.ErrorIs(t, w.r.Admin().DeleteOrphan(w.ctx, id, "asked for"), nstance.NotFound)
				err := w.r.Admin().AdoptOrphan(w.ctx, id, requester)
				require.ErrorIs(t, err, nstance.NotFound)
			})
		})
	}
	t.Run("where storage is empty", func(t *testing.T) {
		withSettledLeader(t, 1, func(t *testing.T, w *world) {
			id := w.ready()[0]
			w.stopLeader()
			w.store = storage.NewMemory()
			w.startLeader(webGroup(0))
			w.advance(time.Hour)
			require.True(t, w.exists(id))
			require.Contains(t, w.keepReason(id), "storage holds no live record")
			require.Equal(t, 1, w.count(nstance.EventAlarm, ""))
		})
	})
	t.Run("where storage was empty when the term began", func(t *testing.T) {
		withSettledLeader(t, 1, func(t *testing.T, w *world) {
			id := w.ready()[0]
			w.stopLeader()
			w.store = storage.NewMemory()
			w.startLeader(webGroup(1))
			w.advance(time.Hour)
			require.Len(t, w.ready(), 1)
			require.NotContains(t, w.ready(), id)
			require.True(t, w.exists(id))
			require.Contains(t, w.keepReason(id), "when this leader began")
		})
	})
	t.Run("where its record appears late", func(t *testing.T) {
		withSettledLeader(t, 3, func(t *testing.T, w *world) {
			id := w.createOrphan(10*time.Minute, nil)
			w.record(id, "zoo") // a late write, in another group than the mark
			w.advance(time.Hour)
			require.True(t, w.exists(id))
			v, err := w.r.Instance(id)
			require.NoError(t, err)
			require.Equal(t, nstance.GroupID("zoo"), v.Group.Group)
			require.NotEmpty(t, v.Machine.ProviderID)
			require.Empty(t, w.r.Admin().Orphans())
		})
	})
	t.Run("where its record appears before the tombstone", func(t *testing.T) {
		withSettledLeader(t, 3, func(t *testing.T, w *world) {
			id := w.createOrphan(10*time.Minute, func(s *nstance.MachineSpec) { s.Group = "zoo" })
			faulty := storagetest.NewFaulty(w.store)
			faulty.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Prefix: keyIn("zoo", id), Pass: true, Do: func() { w.record(id, "zoo") }})
			plain := w.store
			w.stopLeader()
			w.store = faulty
			w.startLeader(webGroup(3))
			w.store = plain // for the late write
			w.advance(time.Hour)
			require.Equal(t, 1, faulty.Count(storagetest.PutIfAbsent), "the tombstone was refused")
			require.True(t, w.exists(id))
			_, err := w.r.Instance(id)
			require.NoError(t, err)
		})
	})
	t.Run("where its record cannot be read", func(t *testing.T) {
		withSettledLeader(t, 3, func(t *testing.T, w *world) {
			id := w.createOrphan(10*time.Minute, nil)
			key := keyIn("zoo", id)
			_, err := w.store.PutIfAbsent(w.ctx, key, []byte("{torn"))
			require.NoError(t, err)
			w.advance(time.Hour)
			require.True(t, w.exists(id))
			require.Empty(t, w.r.Admin().Orphans())
			require.Equal(t, 1, w.count(nstance.EventRecordUnreadable, id))
			require.Contains(t, attention.Problems(w.r.Admin().Attention())[0], key)
		})
	})
	t.Run("while storage cannot be read", func(t *testing.T) {
		withSettledLeader(t, 3, func(t *testing.T, w *world) {
			id := w.createOrphan(10*time.Minute, nil)
			faulty := storagetest.NewFaulty(w.store)
			w.stopLeader()
			w.store = faulty
			w.startLeader(webGroup(3))
			w.advance(time.Minute)
			faulty.Inject(storagetest.Fault{Op: storagetest.List, Times: -1})
			w.advance(time.Hour)
			require.True(t, w.exists(id))
			require.ErrorIs(t, w.r.Admin().DeleteOrphan(w.ctx, id, "asked for"), nstance.Unavailable)
			faulty.ClearFaults()
			w.advance(5 * time.Minute)
			require.False(t, w.exists(id))
		})
	})
	t.Run("while the provider does not report its state", func(t *testing.T) {
		withSettledLeader(t, 3, func(t *testing.T, w *world) {
			id := w.createOrphan(10*time.Minute, nil)
			w.cloud.Inject(simcloud.Fault{Op: simcloud.OpGet, ID: id, Times: -1})
			w.advance(time.Hour)
			require.True(t, w.exists(id))
			w.requireMembersAndStray(3)
		})
	})
	t.Run("as the machine of a create in flight", func(t *testing.T) {
		withSettledLeader(t, 3, func(t *testing.T, w *world) {
			w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Lost: true, Times: -1})
			w.cloud.Inject(simcloud.Fault{Op: simcloud.OpGet, Times: -1})
			w.r.Observe(nstance.Desired{Groups: []nstance.Group{webGroup(4)}})
			w.advance(4 * time.Minute)
			require.Len(t, w.cloud.Machines(), 4)
			require.Zero(t, w.count(nstance.EventOrphanSeen, ""))
			w.cloud.ClearFaults()
			w.advance(5 * time.Minute)
			w.requireMembers(4)
		})
	})
}

// requireMembersAndStray requires that no record was written for one stray machine.
func (w *world) requireMembersAndStray(size int) {
	w.t.Helper()
	require.Len(w.t, w.cloud.Machines(), size+1)
	keys := 0
	for _, err := range w.store.List(w.ctx, layout.InstancePrefix("s1"), "") {
		require.NoError(w.t, err)
		keys++
	}
	require.Equal(w.t, size, keys)
}

// TestLateCreateLeaksNothing: a create that the cloud executes after its record was
// deleted leaves no machine.
func TestLateCreateLeaksNothing(t *testing.T) {
	withSettledLeader(t, 3, func(t *testing.T, w *world) {
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Delay: 10 * time.Minute})
		w.r.Observe(nstance.Desired{Groups: []nstance.Group{webGroup(4)}})
		w.advance(time.Second)
		w.r.Observe(nstance.Desired{Groups: []nstance.Group{webGroup(3)}})
		w.advance(5 * time.Minute)
		w.requireMembers(3)
		w.advance(6 * time.Minute)
		require.Len(t, w.cloud.Machines(), 4, "the late machine")
		w.advance(10 * time.Minute)
		w.requireMembers(3)
		require.Equal(t, 1, w.count(nstance.EventOrphanSeen, ""))
	})
}

func TestNewLeaderFinishesOrphanDelete(t *testing.T) {
	withSettledLeader(t, 3, func(t *testing.T, w *world) {
		id := w.createOrphan(10*time.Minute, nil)
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpDelete, Times: -1})
		w.advance(10 * time.Minute)
		require.True(t, w.exists(id))
		require.Equal(t, []nstance.InstanceID{id}, w.in(nstance.Deleting))
		w.stopLeader()
		w.cloud.ClearFaults()
		w.startLeader(webGroup(3))
		w.advance(30 * time.Second)
		require.False(t, w.exists(id), "the tombstone suffices")
		w.requireMembers(3)
	})
}

func TestOrphanVanishes(t *testing.T) {
	withSettledLeader(t, 3, func(t *testing.T, w *world) {
		id := w.createOrphan(0, nil)
		w.advance(3 * time.Minute)
		require.Len(t, w.r.Admin().Orphans(), 1)
		require.NoError(t, w.cloud.Kill(id))
		w.advance(150 * time.Second)
		require.Empty(t, w.r.Admin().Orphans())
		require.Empty(t, attention.Problems(w.r.Admin().Attention()))
		w.requireMembers(3)
	})
}

// reusedHandle is a provider that shows another machine under a handle than it listed, as
// clouds that reuse handles do.
type reusedHandle struct {
	nstance.Provider
	id     nstance.InstanceID
	change func(*nstance.Machine)
}

func (b *reusedHandle) Get(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
	mach, err := b.Provider.Get(ctx, id)
	if id == b.id {
		b.change(&mach)
	}
	return mach, err
}

func TestOrphanHandleIsReused(t *testing.T) {
	for name, change := range map[string]func(*nstance.Machine){
		"handle":        func(m *nstance.Machine) { m.ProviderID = "sim-other" },
		"creation time": func(m *nstance.Machine) { m.CreatedAt = m.CreatedAt.Add(time.Second) },
		"installation":  func(m *nstance.Machine) { m.Owner.Installation = "i2" },
		"tenant":        func(m *nstance.Machine) { m.Owner.Tenant = "blue" },
	} {
		t.Run(name, func(t *testing.T) {
			withSettledLeader(t, 3, func(t *testing.T, w *world) {
				id := w.createOrphan(10*time.Minute, nil)
				w.stopLeader()
				w.wrap = func(o *leaderEnv) { o.provider = &reusedHandle{o.provider, id, change} }
				w.startLeader(webGroup(3))
				w.advance(30 * time.Minute)
				require.True(t, w.exists(id))
				w.requireMembersAndStray(3)
				require.ErrorIs(t, w.r.Admin().DeleteOrphan(w.ctx, id, "asked for"), nstance.Conflict)
				err := w.r.Admin().AdoptOrphan(w.ctx, id, requester)
				require.ErrorIs(t, err, nstance.Conflict)
			})
		})
	}
}

func TestOrphanOfUnknownGroup(t *testing.T) {
	withSettledLeader(t, 3, func(t *testing.T, w *world) {
		id := w.createOrphan(10*time.Minute, func(s *nstance.MachineSpec) { s.Group = "" })
		w.advance(10 * time.Minute)
		require.False(t, w.exists(id))
		w.requireMembers(3)
	})
}

func TestDeleteOrphan(t *testing.T) {
	withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		id := w.createOrphan(time.Minute, nil)
		w.advance(150 * time.Second)
		require.NotEmpty(t, w.keepReason(id), "automatic collection would wait")
		require.NoError(t, w.r.Admin().DeleteOrphan(w.ctx, id, requester))
		obj, err := w.store.Get(w.ctx, keyIn(web.Group, id))
		require.NoError(t, err)
		rec, err := records.DecodeInstance(obj.Key, obj.Data)
		require.NoError(t, err)
		require.Equal(t, nstance.Cause{Kind: nstance.CauseRequest, Message: requester}, rec.Deleting.Why)
		require.ErrorIs(t, w.r.Admin().DeleteOrphan(w.ctx, id, "again"), nstance.NotFound)
		w.advance(time.Minute)
		require.False(t, w.exists(id))
		w.requireMembers(3)
		require.ErrorIs(t, w.r.Admin().DeleteOrphan(w.ctx, w.ready()[0], "a member"), nstance.NotFound)
	})
}

func TestDeleteOrphanWithRecord(t *testing.T) {
	withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		id := w.createOrphan(time.Minute, nil)
		w.advance(150 * time.Second)
		w.record(id, "zoo")
		require.ErrorIs(t, w.r.Admin().DeleteOrphan(w.ctx, id, "asked for"), nstance.Conflict)
		_, err := w.r.Instance(id)
		require.NoError(t, err)
		require.True(t, w.exists(id))
	})
}

// TestAdoptOrphans: a shard whose records are lost gets its machines back.
func TestAdoptOrphans(t *testing.T) {
	withSettledLeader(t, 3, func(t *testing.T, w *world) {
		before := w.ready()
		w.stopLeader()
		w.store = storage.NewMemory()
		w.startLeader() // without groups
		w.advance(time.Second)
		require.Len(t, w.r.Admin().Orphans(), 3)
		for _, id := range before {
			err := w.r.Admin().AdoptOrphan(w.ctx, id, requester)
			require.NoError(t, err)
			rec, ok := w.r.Admin().Internals().Records().Get(id)
			require.True(t, ok)
			require.Equal(t, web, rec.Key())
			require.True(t, rec.Registered(), "counts as registered")
			require.Nil(t, rec.Current, "its key is unknown")
			require.Equal(t, records.ReasonAdopted, rec.Reason)
			require.Equal(t, 1, w.count(eventtype.OrphanAdopted, id))
			err = w.r.Admin().AdoptOrphan(w.ctx, id, requester)
			require.ErrorIs(t, err, nstance.NotFound)
		}
		w.r.Observe(nstance.Desired{Groups: []nstance.Group{webGroup(3)}})
		w.advance(30 * time.Minute)
		w.requireMembers(3)
		require.Equal(t, before, w.ready())
		require.Zero(t, w.group().Stale, "an unknown definition is not drift")
		w.stopLeader()
		w.startLeader(webGroup(3))
		w.advance(30 * time.Minute)
		require.Equal(t, before, w.ready())
	})
}

func TestSilentAdoptedMachineIsReplaced(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		w.startLeader(webGroup(3))
		w.advance(10 * time.Minute)
		w.mu.Lock()
		w.badImage = func(spec nstance.MachineSpec) bool { return len(spec.UserData) == 0 }
		w.mu.Unlock()
		id := w.createOrphan(0, nil)
		w.advance(3 * time.Minute)
		err := w.r.Admin().AdoptOrphan(w.ctx, id, requester)
		require.NoError(t, err)
		w.advance(30 * time.Minute)
		w.requireMembers(3)
		require.NotContains(t, w.ready(), id)
	})
}

// TestOrphanLookedAtOnRequest: a machine that is looked at before it is deleted may be gone
// by then, or frozen.
func TestOrphanLookedAtOnRequest(t *testing.T) {
	withOrphan := func(t *testing.T, test func(t *testing.T, w *world, p *callHook, id nstance.InstanceID)) {
		withHook(t, simcloud.Options{}, func(t *testing.T, w *world, p *callHook) {
			id := w.createOrphan(10*time.Minute, nil)
			w.advance(150 * time.Second)
			require.NotEmpty(t, w.keepReason(id))
			test(t, w, p, id)
		})
	}
	t.Run("gone: it is listed no more", func(t *testing.T) {
		withOrphan(t, func(t *testing.T, w *world, _ *callHook, id nstance.InstanceID) {
			require.NoError(t, w.cloud.Kill(id))
			require.ErrorIs(t, w.r.Admin().DeleteOrphan(w.ctx, id, requester), nstance.NotFound)
			require.Empty(t, w.r.Admin().Orphans())
		})
	})
	t.Run("frozen meanwhile: it stays", func(t *testing.T) {
		withOrphan(t, func(t *testing.T, w *world, p *callHook, id nstance.InstanceID) {
			var frozen sync.Once
			p.get = func(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
				frozen.Do(func() { require.NoError(t, w.r.Admin().FreezeShard(w.ctx, requester)) })
				return w.cloud.Get(ctx, id)
			}
			require.ErrorIs(t, w.r.Admin().DeleteOrphan(w.ctx, id, requester), nstance.Conflict)
			w.advance(time.Minute)
			require.True(t, w.exists(id))
			require.Empty(t, w.stored(layout.InstancePrefix("s1")))
		})
	})
}
