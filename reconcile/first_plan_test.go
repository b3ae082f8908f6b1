package reconcile_test

import (
	"context"
	"fmt"
	"iter"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/storage"
)

// A slowCloud answers lists, and names its account, only after a while.
type slowCloud struct {
	*simcloud.Cloud
	list, account atomic.Int64 // time.Duration
}

func (c *slowCloud) set(list, account time.Duration) {
	c.list.Store(int64(list))
	c.account.Store(int64(account))
}

func (c *slowCloud) List(ctx context.Context, o nstance.Owner) iter.Seq2[nstance.Machine, error] {
	return func(yield func(nstance.Machine, error) bool) {
		if !pause(ctx, time.Duration(c.list.Load())) {
			yield(nstance.Machine{}, nstance.Errorf(nstance.Unavailable, "list: %v", ctx.Err()))
			return
		}
		for m, err := range c.Cloud.List(ctx, o) {
			if !yield(m, err) {
				return
			}
		}
	}
}

func (c *slowCloud) Account(ctx context.Context) (string, error) {
	if !pause(ctx, time.Duration(c.account.Load())) {
		return "", nstance.Errorf(nstance.Unavailable, "account: %v", ctx.Err())
	}
	return "one", nil
}

// replaceAtTakeover has a new leader find a notice, and returns after what time it asked for
// the replacement and announced the drain.
func replaceAtTakeover(t *testing.T, list, account, notice time.Duration) (replaced, drained time.Duration) {
	t.Helper()
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		cloud := &slowCloud{Cloud: w.cloud}
		w.wrap = func(o *leaderEnv) { o.provider = cloud }
		w.startLeader(webGroup(3))
		w.advance(5 * time.Minute)
		w.stopLeader()
		cloud.set(list, account)
		lost := w.ready()[0]
		began := time.Now()
		w.startLeader(webGroup(3))
		w.advance(notice)
		require.NoError(t, w.cloud.Reclaim(lost, 2*time.Minute))
		w.advance(time.Minute)
		cloud.set(0, 0)
		w.advance(10 * time.Minute)
		w.requireMembers(3)
		of := func(typ nstance.EventType, match func(nstance.Event) bool) time.Duration {
			return w.first(typ, match).Time.Sub(began)
		}
		replaced = of(nstance.EventReplacementRequested, func(e nstance.Event) bool { return e.Replaces == lost })
		drained = of(nstance.EventDrainStarted, func(e nstance.Event) bool { return e.Instance == lost })
		for _, v := range w.r.Instances() {
			require.Equal(t, nstance.Ready, v.State)
		}
	})
	return replaced, drained
}

// TestFirstPlanNeedsRecordsOnly: a provider whose lists take long, or that never answers one,
// delays neither replacements nor drains of a new leader.
func TestFirstPlanNeedsRecordsOnly(t *testing.T) {
	for _, list := range []time.Duration{0, 10 * time.Second, 24 * time.Hour} {
		for _, notice := range []time.Duration{0, time.Second, 20 * time.Second} {
			t.Run(fmt.Sprintf("lists take %s, notice after %s", list, notice), func(t *testing.T) {
				replaced, drained := replaceAtTakeover(t, list, 0, notice)
				require.LessOrEqual(t, replaced, notice+3*time.Second)
				require.LessOrEqual(t, drained, notice+3*time.Second)
			})
		}
	}
}

// TestFirstPlanWithoutAccount: while the provider does not say which account it uses, drains
// are announced, and nothing is created in an account that may be the wrong one.
func TestFirstPlanWithoutAccount(t *testing.T) {
	replaced, drained := replaceAtTakeover(t, 0, 30*time.Second, time.Second)
	require.LessOrEqual(t, drained, 4*time.Second)
	require.GreaterOrEqual(t, replaced, 30*time.Second)
	require.LessOrEqual(t, replaced, 33*time.Second, "waits for no backoff")
}

// slowReads is a store whose reads take 20 ms.
type slowReads struct{ storage.Store }

func (s slowReads) Get(ctx context.Context, key string) (storage.Object, error) {
	pause(ctx, 20*time.Millisecond)
	return s.Store.Get(ctx, key)
}

// TestFirstPlanReadsDefinitionsTogether: rolled back groups whose definitions must be read do
// not wait for one another.
func TestFirstPlanReadsDefinitionsTogether(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		groups := make([]nstance.Group, 100)
		for i := range groups {
			groups[i] = webGroup(1)
			groups[i].Key.Group = nstance.GroupID(fmt.Sprintf("web%d", i))
			groups[i].Definition.UserData.Content = fmt.Sprint("good ", i)
		}
		w.startLeader(groups...)
		w.advance(5 * time.Minute)
		for i := range groups {
			groups[i].Definition.UserData.Content = fmt.Sprint("other ", i)
		}
		w.setGroups(groups...)
		w.advance(5 * time.Second)
		for i := range groups {
			require.NoError(t, w.r.Admin().Rollback(t.Context(), groups[i].Key, "", false))
		}
		w.stopLeader()
		require.GreaterOrEqual(t, len(w.stored(layout.DefinitionPrefix("s1"))), 100)
		w.wrap = func(o *leaderEnv) { o.store = slowReads{o.store} }
		w.startLeader(groups...)
		w.advance(time.Second)
		require.True(t, w.r.Loaded())
	})
}

// TestNewLeaderShowsReadyMembers: members that were ready are shown as ready by a new leader,
// from its first answer on and until it hears otherwise. Those that were not are not.
func TestNewLeaderShowsReadyMembers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		w.startLeader(webGroup(3))
		w.advance(time.Minute)
		ready := w.ready()
		require.Len(t, ready, 3)
		w.mu.Lock()
		w.badImage = func(nstance.MachineSpec) bool { return true }
		w.mu.Unlock()
		w.setGroups(webGroup(4))
		w.advance(30 * time.Second)
		w.silenceAgents(ready...)
		w.stopLeader()
		events := w.count(nstance.EventReady, "")
		w.startLeader(webGroup(4))
		for range 60 {
			w.advance(100 * time.Millisecond)
			if !w.r.Loaded() {
				continue
			}
			require.Equal(t, ready, w.ready())
			g := w.group()
			require.Equal(t, []int{3, 1}, []int{g.Ready, g.Booting})
		}
		require.Equal(t, events, w.count(nstance.EventReady, ""), "it has not heard of them")
		w.r.Observe(nstance.Reported{Report: nstance.Report{InstanceID: ready[0], Timestamp: time.Now(), Probes: []nstance.ProbeResult{{Name: "http", OK: false}}}})
		w.advance(time.Second)
		require.Equal(t, ready[1:], w.ready(), "it was shown otherwise")
	})
}
