package reconcile_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// stray makes a machine with the shard's marks and no record, whose ID was
// chosen some time ago. change may make its marks different.
func (w *world) stray(ago time.Duration, change func(*nstance.MachineSpec)) nstance.InstanceID {
	w.t.Helper()
	born := time.Now().Add(-ago).UTC().Truncate(time.Millisecond)
	id, err := nstance.NewInstanceID("web", born)
	require.NoError(w.t, err)
	spec := nstance.MachineSpec{
		ID: id, Owner: nstance.Owner{Installation: "i1", Cluster: "c1", Shard: "s1", Tenant: web.Tenant}, Group: web.Group,
		CreatedAt: born, Epoch: 1, Arch: nstance.AMD64, InstanceType: "small", Market: nstance.Spot, Token: string(id) + "-1",
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

// spared returns why the orphan is not collected.
func (w *world) spared(id nstance.InstanceID) string {
	w.t.Helper()
	r, _ := w.leader()
	o, err := r.Orphan(id)
	require.NoError(w.t, err)
	return o.Spared
}

// settled is within, and the leader has led long enough to collect orphans.
func settled(t *testing.T, size int, test func(t *testing.T, w *world)) {
	within(t, size, simcloud.Options{}, func(t *testing.T, w *world) {
		w.passes(30 * time.Minute)
		test(t, w)
	})
}

// keyIn returns the key of a record in a group that nobody plans for.
func keyIn(group nstance.GroupID, id nstance.InstanceID) string {
	return storage.InstanceKey("s1", web.Tenant, group, id)
}

// record writes the record of a machine behind the leader's back.
func (w *world) record(id nstance.InstanceID, group nstance.GroupID) {
	w.t.Helper()
	other := storage.NewRecords(w.store, "s1", &storage.RecordsOptions{Epoch: w.epoch})
	_, err := other.Create(w.ctx, storage.Instance{ID: id, Tenant: web.Tenant, Group: group, CreatedAt: id.Time(), RegisteredAt: id.Time()})
	require.NoError(w.t, err)
}

func TestOrphanIsCollected(t *testing.T) {
	settled(t, 5, func(t *testing.T, w *world) {
		before := w.ready()
		id := w.stray(10*time.Minute, nil)
		tombstoned := false
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpDelete, ID: id, Keep: true, Do: func() {
			obj, err := w.store.Get(w.ctx, keyIn(web.Group, id))
			require.NoError(t, err)
			rec, err := storage.DecodeInstance(obj.Key, obj.Data)
			require.NoError(t, err)
			tombstoned = rec.Deleting != nil && rec.Deleting.Why.Kind == nstance.CauseOrphan
		}})
		w.passes(10 * time.Minute)
		require.False(t, w.exists(id))
		require.True(t, tombstoned, "its deletion was durable before it began")
		require.Equal(t, 1, w.count(nstance.EventOrphanSeen, id))
		require.Equal(t, 1, w.count(nstance.EventDeleteRequested, id))
		require.Equal(t, 1, w.count(nstance.EventDeleted, id))
		require.Equal(t, before, w.ready())
		require.Zero(t, w.count(nstance.EventDrainStarted, ""))
		w.agrees(5)
		require.Empty(t, w.r.Orphans())
	})
}

func TestOrphanIsSpared(t *testing.T) {
	t.Run("while the leader is young", func(t *testing.T) {
		settled(t, 3, func(t *testing.T, w *world) {
			id := w.stray(10*time.Minute, nil)
			w.depose()
			w.lead(wanted(3))
			w.passes(4*time.Minute + 50*time.Second)
			require.True(t, w.exists(id))
			require.Contains(t, w.spared(id), "has not led for 5m")
			w.passes(2 * time.Minute)
			require.False(t, w.exists(id))
		})
	})
	t.Run("until two listings have shown it", func(t *testing.T) {
		settled(t, 3, func(t *testing.T, w *world) {
			id := w.stray(10*time.Minute, nil)
			for w.count(nstance.EventOrphanSeen, id) == 0 {
				w.passes(time.Second)
			}
			w.passes(time.Minute + 50*time.Second)
			require.True(t, w.exists(id))
			require.Contains(t, w.spared(id), "two listings 2m")
			w.passes(3 * time.Minute)
			require.False(t, w.exists(id))
		})
	})
	t.Run("while listings fail", func(t *testing.T) {
		settled(t, 3, func(t *testing.T, w *world) {
			id := w.stray(10*time.Minute, nil)
			for w.count(nstance.EventOrphanSeen, id) == 0 {
				w.passes(time.Second)
			}
			w.cloud.Inject(simcloud.Fault{Op: simcloud.OpList, Times: -1})
			w.passes(30 * time.Minute)
			require.True(t, w.exists(id))
			w.cloud.Heal()
			w.passes(5 * time.Minute)
			require.False(t, w.exists(id))
		})
	})
	t.Run("while it may still be registering", func(t *testing.T) {
		settled(t, 3, func(t *testing.T, w *world) {
			id := w.stray(0, nil)
			w.passes(4*time.Minute + 55*time.Second)
			require.True(t, w.exists(id))
			require.Contains(t, w.spared(id), "younger than 5m")
			w.passes(3 * time.Minute)
			require.False(t, w.exists(id))
		})
	})
	for name, c := range map[string]struct{ id, marked time.Duration }{ // ago
		"by its ID, whatever its mark says": {0, 20 * time.Minute},
		"by its mark, whatever its ID says": {20 * time.Minute, 0},
	} {
		t.Run("while it may still be registering "+name, func(t *testing.T) {
			settled(t, 3, func(t *testing.T, w *world) {
				id := w.stray(c.id, func(s *nstance.MachineSpec) { s.CreatedAt = time.Now().Add(-c.marked).UTC() })
				w.passes(4*time.Minute + 55*time.Second)
				require.True(t, w.exists(id))
				require.Contains(t, w.spared(id), "younger than 5m")
				w.passes(3 * time.Minute)
				require.False(t, w.exists(id))
			})
		})
	}
	t.Run("while there are too many, and somebody is told once", func(t *testing.T) {
		settled(t, 9, func(t *testing.T, w *world) {
			a, b := w.stray(10*time.Minute, nil), w.stray(11*time.Minute, nil)
			w.passes(time.Hour)
			require.True(t, w.exists(a) && w.exists(b), "a fifth of nine is one")
			require.Contains(t, w.spared(a), "2 machines without a record are more than 1")
			require.Equal(t, 1, w.count(nstance.EventAlarm, ""))
			require.Len(t, w.r.Orphans(), 2)
			require.Len(t, w.r.Problems(), 2)

			require.NoError(t, w.r.DeleteOrphan(w.ctx, a, "asked for"))
			w.passes(5 * time.Minute)
			require.False(t, w.exists(a), "a person may decide")
			require.False(t, w.exists(b), "and the other is not too many any more")
			w.agrees(9)
		})
		settled(t, 10, func(t *testing.T, w *world) {
			a, b := w.stray(10*time.Minute, nil), w.stray(11*time.Minute, nil)
			w.passes(10 * time.Minute)
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
			settled(t, 3, func(t *testing.T, w *world) {
				id := w.stray(10*time.Minute, change)
				w.passes(time.Hour)
				require.True(t, w.exists(id))
				require.Empty(t, w.r.Orphans(), "it is none of ours")
				require.ErrorIs(t, w.r.DeleteOrphan(w.ctx, id, "asked for"), nstance.NotFound)
				_, err := w.r.AdoptOrphan(w.ctx, id, eve)
				require.ErrorIs(t, err, nstance.NotFound)
			})
		})
	}
	t.Run("where storage is empty", func(t *testing.T) {
		settled(t, 1, func(t *testing.T, w *world) {
			id := w.ready()[0]
			w.depose()
			w.store = storage.NewMemory()
			w.lead(wanted(0))
			w.passes(time.Hour)
			require.True(t, w.exists(id))
			require.Contains(t, w.spared(id), "storage holds no live record")
			require.Equal(t, 1, w.count(nstance.EventAlarm, ""))
		})
	})
	t.Run("where storage was empty when the leader began", func(t *testing.T) {
		settled(t, 1, func(t *testing.T, w *world) {
			id := w.ready()[0]
			w.depose()
			w.store = storage.NewMemory()
			w.lead(wanted(1))
			w.passes(time.Hour)
			require.Len(t, w.ready(), 1)
			require.NotContains(t, w.ready(), id)
			require.True(t, w.exists(id))
			require.Contains(t, w.spared(id), "when this leader began")
		})
	})
	t.Run("where its record appears after all", func(t *testing.T) {
		settled(t, 3, func(t *testing.T, w *world) {
			id := w.stray(10*time.Minute, nil)
			w.record(id, "zoo") // a late write, even of another group than the mark says
			w.passes(time.Hour)
			require.True(t, w.exists(id))
			v, err := w.r.Instance(id)
			require.NoError(t, err)
			require.Equal(t, nstance.GroupID("zoo"), v.Record.Group)
			require.NotEmpty(t, v.Machine.ProviderID)
			require.Empty(t, w.r.Orphans())
		})
	})
	t.Run("where its record appears at the last moment", func(t *testing.T) {
		settled(t, 3, func(t *testing.T, w *world) {
			id := w.stray(10*time.Minute, func(s *nstance.MachineSpec) { s.Group = "zoo" })
			faulty := storagetest.NewFaulty(w.store)
			faulty.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Prefix: keyIn("zoo", id), Pass: true, Do: func() { w.record(id, "zoo") }})
			plain := w.store
			w.depose()
			w.store = faulty
			w.lead(wanted(3))
			w.store = plain // for the late write
			w.passes(time.Hour)
			require.Equal(t, 1, faulty.Count(storagetest.PutIfAbsent), "the tombstone was refused")
			require.True(t, w.exists(id))
			_, err := w.r.Instance(id)
			require.NoError(t, err)
		})
	})
	t.Run("where its record cannot be read", func(t *testing.T) {
		settled(t, 3, func(t *testing.T, w *world) {
			id := w.stray(10*time.Minute, nil)
			key := keyIn("zoo", id)
			_, err := w.store.PutIfAbsent(w.ctx, key, []byte("{torn"))
			require.NoError(t, err)
			w.passes(time.Hour)
			require.True(t, w.exists(id))
			require.Empty(t, w.r.Orphans())
			require.Equal(t, 1, w.count(nstance.EventRecordUnreadable, id))
			require.Contains(t, w.r.Problems()[0], key)
		})
	})
	t.Run("while storage cannot be read", func(t *testing.T) {
		settled(t, 3, func(t *testing.T, w *world) {
			id := w.stray(10*time.Minute, nil)
			faulty := storagetest.NewFaulty(w.store)
			w.depose()
			w.store = faulty
			w.lead(wanted(3))
			w.passes(time.Minute)
			faulty.Inject(storagetest.Fault{Op: storagetest.List, Times: -1})
			w.passes(time.Hour)
			require.True(t, w.exists(id))
			require.ErrorIs(t, w.r.DeleteOrphan(w.ctx, id, "asked for"), nstance.Unavailable)
			faulty.Heal()
			w.passes(5 * time.Minute)
			require.False(t, w.exists(id))
		})
	})
	t.Run("while the provider does not say how it is", func(t *testing.T) {
		settled(t, 3, func(t *testing.T, w *world) {
			id := w.stray(10*time.Minute, nil)
			w.cloud.Inject(simcloud.Fault{Op: simcloud.OpGet, ID: id, Times: -1})
			w.passes(time.Hour)
			require.True(t, w.exists(id))
			w.agreesWithStray(3)
		})
	})
	t.Run("as the machine of a create under way", func(t *testing.T) {
		settled(t, 3, func(t *testing.T, w *world) {
			w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, When: simcloud.After, Times: -1})
			w.cloud.Inject(simcloud.Fault{Op: simcloud.OpGet, Times: -1})
			w.r.Observe(nstance.Desired{Groups: []nstance.Group{wanted(4)}})
			w.passes(4 * time.Minute)
			require.Len(t, w.cloud.Machines(), 4)
			require.Zero(t, w.count(nstance.EventOrphanSeen, ""))
			w.cloud.Heal()
			w.passes(5 * time.Minute)
			w.agrees(4)
		})
	})
}

// agreesWithStray checks that nothing was written about one stray machine.
func (w *world) agreesWithStray(size int) {
	w.t.Helper()
	require.Len(w.t, w.cloud.Machines(), size+1)
	keys := 0
	for _, err := range w.store.List(w.ctx, storage.InstancePrefix("s1"), "") {
		require.NoError(w.t, err)
		keys++
	}
	require.Equal(w.t, size, keys)
}

// A create that is carried out long after everybody has given it up, and its
// record is gone, must not leave a machine behind.
func TestLateCreateLeaksNothing(t *testing.T) {
	settled(t, 3, func(t *testing.T, w *world) {
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, When: simcloud.Late, Delay: 10 * time.Minute})
		w.r.Observe(nstance.Desired{Groups: []nstance.Group{wanted(4)}})
		w.passes(time.Second)
		w.r.Observe(nstance.Desired{Groups: []nstance.Group{wanted(3)}})
		w.passes(5 * time.Minute)
		w.agrees(3)
		w.passes(6 * time.Minute)
		require.Len(t, w.cloud.Machines(), 4, "there it is")
		w.passes(10 * time.Minute)
		w.agrees(3)
		require.Equal(t, 1, w.count(nstance.EventOrphanSeen, ""))
	})
}

func TestNewLeaderFinishesACollection(t *testing.T) {
	settled(t, 3, func(t *testing.T, w *world) {
		id := w.stray(10*time.Minute, nil)
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpDelete, Times: -1})
		w.passes(10 * time.Minute)
		require.True(t, w.exists(id))
		require.Equal(t, []nstance.InstanceID{id}, w.in(nstance.Deleting))
		w.depose()
		w.cloud.Heal()
		w.lead(wanted(3))
		w.passes(30 * time.Second)
		require.False(t, w.exists(id), "its record says so, and no rule is asked again")
		w.agrees(3)
	})
}

func TestOrphanThatGoesByItself(t *testing.T) {
	settled(t, 3, func(t *testing.T, w *world) {
		id := w.stray(0, nil)
		w.passes(3 * time.Minute)
		require.Len(t, w.r.Orphans(), 1)
		require.NoError(t, w.cloud.Kill(id))
		w.passes(150 * time.Second)
		require.Empty(t, w.r.Orphans())
		require.Empty(t, w.r.Problems())
		w.agrees(3)
	})
}

// A borrowed handle is one under which the cloud shows another machine than it
// listed, as when a cloud uses its handles again.
type borrowed struct {
	nstance.Provider
	id     nstance.InstanceID
	change func(*nstance.Machine)
}

func (b *borrowed) Get(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
	mach, err := b.Provider.Get(ctx, id)
	if id == b.id {
		b.change(&mach)
	}
	return mach, err
}

func TestOrphanThatIsAnotherMachineByNow(t *testing.T) {
	for name, change := range map[string]func(*nstance.Machine){
		"handle":        func(m *nstance.Machine) { m.ProviderID = "sim-other" },
		"creation time": func(m *nstance.Machine) { m.CreatedAt = m.CreatedAt.Add(time.Second) },
		"installation":  func(m *nstance.Machine) { m.Owner.Installation = "i2" },
		"tenant":        func(m *nstance.Machine) { m.Owner.Tenant = "blue" },
	} {
		t.Run(name, func(t *testing.T) {
			settled(t, 3, func(t *testing.T, w *world) {
				id := w.stray(10*time.Minute, nil)
				w.depose()
				w.wrap = func(o *office) { o.provider = &borrowed{o.provider, id, change} }
				w.lead(wanted(3))
				w.passes(30 * time.Minute)
				require.True(t, w.exists(id))
				w.agreesWithStray(3)
				require.ErrorIs(t, w.r.DeleteOrphan(w.ctx, id, "asked for"), nstance.Conflict)
				_, err := w.r.AdoptOrphan(w.ctx, id, eve)
				require.ErrorIs(t, err, nstance.Conflict)
			})
		})
	}
}

func TestOrphanWithoutAGroup(t *testing.T) {
	settled(t, 3, func(t *testing.T, w *world) {
		id := w.stray(10*time.Minute, func(s *nstance.MachineSpec) { s.Group = "" })
		w.passes(10 * time.Minute)
		require.False(t, w.exists(id))
		w.agrees(3)
	})
}

func TestDeleteOrphan(t *testing.T) {
	within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		id := w.stray(time.Minute, nil)
		w.passes(150 * time.Second)
		require.NotEmpty(t, w.spared(id), "the rule would wait")
		require.NoError(t, w.r.DeleteOrphan(w.ctx, id, eve))
		obj, err := w.store.Get(w.ctx, keyIn(web.Group, id))
		require.NoError(t, err)
		rec, err := storage.DecodeInstance(obj.Key, obj.Data)
		require.NoError(t, err)
		require.Equal(t, nstance.Cause{Kind: nstance.CauseRequest, Message: eve}, rec.Deleting.Why)
		require.ErrorIs(t, w.r.DeleteOrphan(w.ctx, id, "again"), nstance.NotFound)
		w.passes(time.Minute)
		require.False(t, w.exists(id))
		w.agrees(3)
		require.ErrorIs(t, w.r.DeleteOrphan(w.ctx, w.ready()[0], "a member"), nstance.NotFound)
	})
}

func TestDeleteOrphanThatHasARecord(t *testing.T) {
	within(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		id := w.stray(time.Minute, nil)
		w.passes(150 * time.Second)
		w.record(id, "zoo")
		require.ErrorIs(t, w.r.DeleteOrphan(w.ctx, id, "asked for"), nstance.Conflict)
		_, err := w.r.Instance(id)
		require.NoError(t, err)
		require.True(t, w.exists(id))
	})
}

// A shard whose records are lost gets its machines back.
func TestAdoptOrphans(t *testing.T) {
	settled(t, 3, func(t *testing.T, w *world) {
		before := w.ready()
		w.depose()
		w.store = storage.NewMemory()
		w.lead() // nothing is wanted yet
		w.passes(time.Second)
		require.Len(t, w.r.Orphans(), 3)
		for _, id := range before {
			rec, err := w.r.AdoptOrphan(w.ctx, id, eve)
			require.NoError(t, err)
			require.Equal(t, web, rec.Key())
			require.True(t, rec.Registered(), "it is taken for registered")
			require.Nil(t, rec.Current, "with a key that is unknown")
			require.Equal(t, string(reconcile.ReasonAdopted), rec.Reason)
			require.Equal(t, 1, w.count(nstance.EventOrphanAdopted, id))
			_, err = w.r.AdoptOrphan(w.ctx, id, eve)
			require.ErrorIs(t, err, nstance.NotFound)
		}
		w.r.Observe(nstance.Desired{Groups: []nstance.Group{wanted(3)}})
		w.passes(30 * time.Minute)
		w.agrees(3)
		require.Equal(t, before, w.ready())
		require.Zero(t, w.group().Stale, "what it was made from is unknown, which is no drift")
		w.depose()
		w.lead(wanted(3))
		w.passes(30 * time.Minute)
		require.Equal(t, before, w.ready())
	})
}

func TestAdoptedMachineThatNeverSpeaksIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		w.lead(wanted(3))
		w.passes(10 * time.Minute)
		w.mu.Lock()
		w.badImage = func(spec nstance.MachineSpec) bool { return len(spec.UserData) == 0 }
		w.mu.Unlock()
		id := w.stray(0, nil)
		w.passes(3 * time.Minute)
		_, err := w.r.AdoptOrphan(w.ctx, id, eve)
		require.NoError(t, err)
		w.passes(30 * time.Minute)
		w.agrees(3)
		require.NotContains(t, w.ready(), id)
	})
}
