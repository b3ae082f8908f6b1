package reconcile_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// TestLateDeleteOfFormerLeader: a machine that fails long after it was asked for is deleted by
// the leader of that time. The next leader makes no other one of that name before that call has
// landed, although the last create was long ago.
func TestLateDeleteOfFormerLeader(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{ByToken: true, Boot: simcloud.Delay{Min: 4 * time.Minute}})
		defer w.close()
		p := &byName{endingEarly{Provider: w.cloud, cloud: w.cloud, cause: nstance.LossInvalid}}
		w.wrap = func(e *leaderEnv) { e.provider = p }
		w.startLeader(webGroup(0))
		w.advance(time.Minute)
		id := w.requestTypes("small", "medium")
		w.advance(3 * time.Minute)
		sent := make(chan struct{})
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpDelete, Delay: 25 * time.Second, Do: func() { close(sent) }})
		require.NoError(t, w.cloud.Stop(id, nstance.StatusFailed))
		<-sent
		w.stopLeader()
		w.startLeader(webGroup(0))
		w.advance(7 * time.Minute)
		w.requireMembers(1)
		require.Equal(t, []nstance.InstanceID{id}, w.ready())
		require.Equal(t, 2, w.cloud.Count(simcloud.OpCreate))
	})
}

// byName is a provider that deletes whatever machine has the ID.
type byName struct{ endingEarly }

func (p *byName) Delete(ctx context.Context, m nstance.Machine) error {
	m.ProviderID = ""
	return p.Provider.Delete(ctx, m)
}

// TestCreateOfLeaderWithOtherClock: a former leader has just asked for a machine, whatever
// instant it has recorded and whatever the clocks say. The next leader gives the provider the
// whole window to show it.
func TestCreateOfLeaderWithOtherClock(t *testing.T) {
	for name, k := range map[string]struct{ former, next *clocks }{
		"the former clock is behind, and trusted": {ahead(-50 * time.Second), ahead(0)},
		"the next clock is ahead, and trusted":    {ahead(0), ahead(59 * time.Second)},
		"the next clock cannot be trusted":        {ahead(0), &clocks{}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, simcloud.Options{ByToken: true, Lag: simcloud.Delay{Min: 9 * time.Second}})
				defer w.close()
				if !k.next.undated {
					k.next.stepped.Store(int64(time.Hour))
				}
				w.wrap = func(e *leaderEnv) { e.options = k.former.configure }
				sent := make(chan struct{})
				w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Lost: true, Do: func() { close(sent) }})
				w.startLeader(webGroup(1))
				<-sent
				w.stopLeader()
				w.wrap = func(e *leaderEnv) { e.options = k.next.configure }
				w.startLeader(webGroup(1))
				w.advance(9 * time.Second)
				require.Equal(t, 1, w.cloud.Count(simcloud.OpCreate))
				w.advance(time.Minute)
				w.requireMembers(1)
				require.Equal(t, 1, w.cloud.Count(simcloud.OpCreate))
			})
		})
	}
}

// ahead is a clock that is trusted, and set ahead before its leader begins.
func ahead(by time.Duration) *clocks {
	c := &clocks{undated: true}
	c.stepped.Store(int64(by))
	return c
}

// TestAskIsOnRecord: whenever the provider is asked for a machine, the stored record says so
// with an instant that is hardly older, however long ago the instance was requested.
func TestAskIsOnRecord(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		p := &recordReader{Provider: w.cloud, w: w}
		w.wrap = func(e *leaderEnv) { e.provider = p }
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Code: nstance.Unavailable, Times: 6})
		w.startLeader(webGroup(1))
		w.advance(2 * time.Minute)
		w.stopLeader()
		w.startLeader(webGroup(1))
		w.advance(10 * time.Minute)
		w.requireMembers(1)
		p.mu.Lock()
		defer p.mu.Unlock()
		require.Len(t, p.ages, 7)
		for _, age := range p.ages {
			require.LessOrEqual(t, age, records.AskedFor)
		}
	})
}

// A recordReader is a provider that reads the record of each machine that it is asked for.
type recordReader struct {
	nstance.Provider
	w *world

	mu   sync.Mutex
	ages []time.Duration // since the instant on record
}

func (p *recordReader) Create(ctx context.Context, spec nstance.MachineSpec) (nstance.Machine, error) {
	stored := records.New(p.w.store, "s1", nil)
	if _, _, err := stored.Load(ctx); err != nil {
		return nstance.Machine{}, err
	}
	rec, _ := stored.Get(spec.ID)
	p.mu.Lock()
	p.ages = append(p.ages, time.Since(rec.AskedAt))
	p.mu.Unlock()
	return p.Provider.Create(ctx, spec)
}

// TestLossOfFormerMachine: a cloud may answer with the end of the former machine until it shows
// the next one, of whose create the answer was lost. That is no end of the next one.
func TestLossOfFormerMachine(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{ByToken: true, Lag: simcloud.Delay{Min: 5 * time.Second}})
		defer w.close()
		w.startLeader(webGroup(0))
		w.advance(time.Minute)
		w.cloud.FailStarts(simcloud.Pool{InstanceType: "small"}, nstance.LossInvalid, 1)
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Nth: 2, Lost: true})
		id := w.requestTypes("small", "medium")
		w.advance(3 * time.Minute)
		w.requireMembers(1)
		require.Equal(t, []nstance.InstanceID{id}, w.ready())
		require.Equal(t, map[string]int{"medium": 1}, w.types())
		require.Equal(t, 1, w.count(nstance.EventCreateFailed, id))
	})
}

// TestLateDeletionAfterCreate: a deletion that a former leader has written late is older than
// the present leader's own create, which may still make the machine. It leaves no machine
// without a record.
func TestLateDeletionAfterCreate(t *testing.T) {
	for name, accepts := range map[string]bool{"the provider knows no machine": false, "the provider accepts Delete of a machine that it does not show": true} {
		t.Run(name, func(t *testing.T) {
			withHook(t, simcloud.Options{}, func(t *testing.T, w *world, p *callHook) {
				p.delete = func(ctx context.Context, m nstance.Machine) error {
					if accepts {
						accepts = false
						return nil
					}
					return w.cloud.Delete(ctx, m)
				}
				sent := make(chan struct{})
				w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Delay: 9 * time.Second, Do: func() { close(sent) }})
				w.setGroups(webGroup(1))
				<-sent
				w.advance(100 * time.Millisecond)
				r, _ := w.leader()
				id := r.Instances()[0].ID
				why := nstance.Cause{Kind: nstance.CauseRequest, Message: "by the former leader"}
				w.writeLate(id, func(rec *records.Instance) {
					rec.Deleting = &records.Deletion{At: time.Now().Add(-time.Hour).UTC(), Why: why}
				})
				require.NoError(t, r.Admin().Internals().Reread(w.ctx))
				w.setGroups(webGroup(0))
				w.advance(time.Minute)
				require.Empty(t, w.ids())
				require.Zero(t, w.count(nstance.EventOrphanSeen, ""))
			})
		})
	}
}

// TestRegisteredWhileNotShown: a machine whose agent has registered is there, although the
// provider does not show it for longer than it should take: it is not asked for again.
func TestRegisteredWhileNotShown(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{Boot: simcloud.Delay{Min: 3 * time.Second}, Lag: simcloud.Delay{Min: 40 * time.Second}})
		defer w.close()
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Lost: true})
		w.startLeader(webGroup(1))
		w.advance(2 * time.Minute)
		w.requireMembers(1)
		require.Equal(t, 1, w.cloud.Count(simcloud.OpCreate))
		require.Zero(t, w.count(nstance.EventMachineGone, ""))
	})
}

// TestMarkedWhileAskIsRecorded: no machine is asked for that a former leader has marked for deletion
// a moment ago.
func TestMarkedWhileAskIsRecorded(t *testing.T) {
	withHook(t, simcloud.Options{}, func(t *testing.T, w *world, p *callHook) {
		var mu sync.Mutex
		asked := map[nstance.InstanceID]int{}
		p.create = func(ctx context.Context, spec nstance.MachineSpec) (nstance.Machine, error) {
			mu.Lock()
			defer mu.Unlock()
			asked[spec.ID]++
			return w.cloud.Create(ctx, spec)
		}
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Code: nstance.Unavailable})
		w.setGroups(webGroup(1))
		w.advance(time.Second)
		id := w.r.Instances()[0].ID
		faulty := storagetest.NewFaulty(w.store)
		faulty.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Prefix: "instance/", Pass: true, Do: func() {
			w.writeLate(id, func(rec *records.Instance) {
				rec.Deleting = &records.Deletion{At: time.Now().UTC(), Why: nstance.Cause{Kind: nstance.CauseRequest}}
			})
		}})
		w.wrap = func(e *leaderEnv) { e.provider, e.store = p, faulty }
		w.changeLeader(webGroup(1))
		w.advance(5 * time.Minute)
		w.requireMembers(1)
		mu.Lock()
		defer mu.Unlock()
		require.Len(t, asked, 2)
		require.Equal(t, 1, asked[id])
	})
}
