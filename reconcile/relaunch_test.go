package reconcile_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// withFailingLaunches runs a test in a world whose machines of some types are shown as failed,
// for a cause, until they are deleted.
func withFailingLaunches(t *testing.T, cause nstance.LossCause, types []string, test func(t *testing.T, w *world)) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{ByToken: true, Shutdown: simcloud.Delay{Min: 20 * time.Second}})
		defer w.close()
		p := &endingEarly{Provider: w.cloud, cloud: w.cloud, cause: cause, types: types}
		w.wrap = func(e *leaderEnv) { e.provider = p }
		w.startLeader(webGroup(0))
		w.advance(time.Minute)
		test(t, w)
	})
}

// requestTypes requests an instance on demand of one of the types.
func (w *world) requestTypes(types ...string) nstance.InstanceID {
	w.t.Helper()
	req := onDemand(w.newID())
	req.Definition.InstanceTypes = types
	_, err := w.requestOnDemand(req)
	require.NoError(w.t, err)
	return req.ID
}

// lateCauses are those of machines that are accepted and cannot be started: "" is one that the
// cloud gives in words only.
var lateCauses = []nstance.LossCause{nstance.LossCapacity, nstance.LossQuota, nstance.LossInvalid, ""}

// TestFailedLaunch: a machine that the cloud has accepted and shows as failed is a refusal of
// its shape. It is deleted, and the instance is made of the next one.
func TestFailedLaunch(t *testing.T) {
	for _, cause := range lateCauses {
		t.Run("cause "+string(cause), func(t *testing.T) {
			withFailingLaunches(t, cause, []string{"small"}, func(t *testing.T, w *world) {
				id := w.requestTypes("small", "medium")
				w.advance(3 * time.Minute)
				w.requireMembers(1)
				require.Equal(t, []nstance.InstanceID{id}, w.ready())
				require.Equal(t, map[string]int{"medium": 1}, w.types())
				require.Equal(t, 2, w.cloud.Count(simcloud.OpCreate))
				require.Equal(t, 1, w.count(nstance.EventCreateFailed, id))
				failed := w.first(nstance.EventCreateFailed, func(nstance.Event) bool { return true })
				require.Equal(t, "it is tried again", failed.Reason)
				require.Contains(t, failed.Error, words)
				require.Zero(t, w.count(nstance.EventMachineGone, ""))
				rec, _ := w.r.Admin().Internals().Records().Get(id)
				require.Nil(t, rec.FailedLaunch)
			})
		})
	}
}

// TestFailedLaunchOfOnlyShape: a shape without capacity is asked for until the launch timeout;
// one that is refused for good fails the instance, in the cloud's words.
func TestFailedLaunchOfOnlyShape(t *testing.T) {
	for _, cause := range lateCauses {
		t.Run("cause "+string(cause), func(t *testing.T) {
			withFailingLaunches(t, cause, []string{"small"}, func(t *testing.T, w *world) {
				id := w.requestTypes("small")
				w.advance(10 * time.Minute)
				failed := w.first(nstance.EventCreateFailed, func(e nstance.Event) bool { return e.Instance == id })
				require.Contains(t, failed.Error, words)
				if forGood := cause == nstance.LossInvalid || cause == ""; forGood {
					require.Equal(t, nstance.Invalid, failed.Code)
					require.Empty(t, failed.Reason)
					require.Equal(t, 1, w.cloud.Count(simcloud.OpCreate))
				} else {
					require.Equal(t, nstance.Provisioning, w.view(id).State)
					require.Greater(t, w.count(nstance.EventCreateFailed, id), 2)
					w.advance(7 * time.Minute)
					late := w.first(nstance.EventDeleteRequested, func(nstance.Event) bool { return true })
					require.Contains(t, late.Reason, words)
				}
				w.requireMembers(0)
				require.Equal(t, 1, w.count(nstance.EventDeleted, id))
			})
		})
	}
}

// TestFailedLaunchRefusedEverywhere: each shape is tried once.
func TestFailedLaunchRefusedEverywhere(t *testing.T) {
	withFailingLaunches(t, "", []string{"small", "medium"}, func(t *testing.T, w *world) {
		id := w.requestTypes("small", "medium")
		w.advance(5 * time.Minute)
		w.requireMembers(0)
		require.Equal(t, 2, w.cloud.Count(simcloud.OpCreate))
		require.Equal(t, 2, w.count(nstance.EventCreateFailed, id))
		require.Equal(t, 1, w.count(nstance.EventMachineGone, id))
	})
}

// TestFailedLaunchFrozen: the machine of an instance that stays is not deleted during a freeze.
func TestFailedLaunchFrozen(t *testing.T) {
	withFailingLaunches(t, nstance.LossCapacity, []string{"small"}, func(t *testing.T, w *world) {
		w.requestTypes("small", "medium")
		require.NoError(t, w.r.Admin().Freeze(w.ctx, web, requester))
		w.advance(5 * time.Minute)
		require.Equal(t, map[string]int{"small": 1}, w.types())
		require.Zero(t, w.cloud.Count(simcloud.OpDelete))
		require.NoError(t, w.r.Admin().Thaw(w.ctx, web, requester))
		w.advance(3 * time.Minute)
		w.requireMembers(1)
		require.Equal(t, map[string]int{"medium": 1}, w.types())
	})
}

// TestFailedLaunchThatRuns: a machine whose agent registers is kept, whatever the cloud said of
// it before. While its deletion is refused, the cloud's words are in attention.
func TestFailedLaunchThatRuns(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{Boot: simcloud.Delay{Min: 8 * time.Minute}})
		defer w.close()
		p := &shownAsFailed{Provider: w.cloud, until: time.Now().Add(9 * time.Minute)}
		w.wrap = func(e *leaderEnv) { e.provider = p }
		w.startLeader(webGroup(0))
		w.advance(time.Minute)
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpDelete, Times: -1, Code: nstance.Denied})
		id := w.requestTypes("small", "medium")
		w.advance(7 * time.Minute)
		needs := w.attentionFor("obstacle")
		require.Len(t, needs, 1)
		require.Contains(t, needs[0].Why, "its machine did not start and is to be deleted")
		w.advance(time.Minute + 30*time.Second)
		w.cloud.ClearFaults()
		w.advance(5 * time.Minute)
		w.requireMembers(1)
		require.Equal(t, []nstance.InstanceID{id}, w.ready())
		require.Equal(t, 1, w.cloud.Count(simcloud.OpCreate))
		w.stopLeader()
		w.startLeader(webGroup(0))
		w.advance(5 * time.Minute)
		require.Equal(t, []nstance.InstanceID{id}, w.ready(), "the next leader keeps it")
	})
}

// shownAsFailed is a provider that shows its machines as failed for a while.
type shownAsFailed struct {
	nstance.Provider
	until time.Time
}

func (p *shownAsFailed) Get(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
	m, err := p.Provider.Get(ctx, id)
	if err == nil && time.Now().Before(p.until) {
		m.Status, m.CauseText = nstance.StatusFailed, words
	}
	return m, err
}

// TestFailedLaunchLateDelete: a Delete without an answer may still arrive a moment later, where
// a machine is deleted by its name. The next machine is not made before that.
func TestFailedLaunchLateDelete(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{ByToken: true})
		defer w.close()
		p := &lateDelete{endingEarly: endingEarly{Provider: w.cloud, cloud: w.cloud, cause: nstance.LossInvalid, types: []string{"small"}}}
		w.wrap = func(e *leaderEnv) { e.provider = p }
		w.startLeader(webGroup(0))
		w.advance(time.Minute)
		id := w.requestTypes("small", "medium")
		w.advance(3 * time.Minute)
		w.requireMembers(1)
		require.Equal(t, []nstance.InstanceID{id}, w.ready())
	})
}

// lateDelete is a provider that deletes by ID, and whose first Delete is repeated by the network
// after its caller has given up.
type lateDelete struct {
	endingEarly
	sent atomic.Bool
}

func (p *lateDelete) Delete(ctx context.Context, m nstance.Machine) error {
	m.ProviderID = ""
	err := p.Provider.Delete(ctx, m)
	if err != nil || p.sent.Swap(true) {
		return err
	}
	go func() {
		<-time.After(5 * time.Second)
		_ = p.Provider.Delete(context.WithoutCancel(ctx), m)
	}()
	return nstance.Errorf(nstance.Unavailable, "no answer")
}

// TestVanishedLaunch: that there is no machine is no refusal of its shape, in whatever words,
// unless the cloud said so while it still showed the machine.
func TestVanishedLaunch(t *testing.T) {
	for name, ending := range map[string]bool{"unexplained": false, "explained while it ended": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, simcloud.Options{ByToken: true, Boot: simcloud.Delay{Min: time.Minute}})
				defer w.close()
				p := &endingEarly{Provider: w.cloud, cloud: w.cloud}
				w.wrap = func(e *leaderEnv) { e.provider = p }
				w.startLeader(webGroup(0))
				w.advance(time.Minute)
				id := w.requestTypes("small", "medium")
				w.advance(10 * time.Second)
				if ending {
					require.NoError(t, w.cloud.Stop(id, nstance.StatusDeleting))
					w.advance(30 * time.Second)
				}
				require.NoError(t, w.cloud.Kill(id))
				w.advance(4 * time.Minute)
				if ending {
					w.requireMembers(1)
					require.Equal(t, map[string]int{"medium": 1}, w.types())
					require.Contains(t, w.first(nstance.EventCreateFailed, func(nstance.Event) bool { return true }).Error, words)
					return
				}
				w.requireMembers(0)
				require.Equal(t, 1, w.cloud.Count(simcloud.OpCreate))
				require.Equal(t, 1, w.count(nstance.EventMachineGone, id))
				require.Zero(t, w.count(nstance.EventCreateFailed, id))
			})
		})
	}
}

// TestFailedLaunchUnderNewLeader: the next leader knows the other shapes of the instance, which
// are not its group's.
func TestFailedLaunchUnderNewLeader(t *testing.T) {
	for name, wait := range map[string]time.Duration{"failed before it led": time.Second, "failed later": 10 * time.Second} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, simcloud.Options{ByToken: true, Boot: simcloud.Delay{Min: time.Minute}})
				defer w.close()
				p := &endingEarly{Provider: w.cloud, cloud: w.cloud, cause: nstance.LossInvalid}
				w.wrap = func(e *leaderEnv) { e.provider = p }
				w.startLeader(webGroup(0))
				w.advance(time.Minute)
				id := w.requestTypes("small", "medium")
				w.advance(time.Second)
				w.stopLeader()
				go func() {
					<-time.After(wait)
					_ = w.cloud.Stop(id, nstance.StatusFailed)
				}()
				w.advance(5 * time.Second)
				w.startLeader(webGroup(0))
				w.advance(5 * time.Minute)
				w.requireMembers(1)
				require.Equal(t, map[string]int{"medium": 1}, w.types())
				require.Equal(t, 1, w.count(nstance.EventCreateFailed, id))
			})
		})
	}
}
