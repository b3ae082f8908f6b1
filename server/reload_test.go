package server_test

import (
	"context"
	"fmt"
	"iter"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/server"
)

// configWithSettings is the default configuration with further settings of the shard.
func configWithSettings(size int, shard string) string {
	return fmt.Sprintf(configuration, shard, size)
}

// A reload puts these settings in force. Each test checks the setting's effect.
func TestReloadOfTheCreateRate(t *testing.T) {
	t.Parallel()
	const tight, wide = `"create_rate": {"per_second": 0.001, "burst": 2},`, `"create_rate": {"per_second": 50, "burst": 50},`
	grow := func(w *world, want int) {
		t.Helper()
		require.Eventually(t, func() bool { return len(w.cloud.Machines()) == want }, eventually, time.Millisecond)
	}
	t.Run("at once", func(t *testing.T) {
		w := newWorld(t, setup{config: configWithSettings(5, tight)})
		grow(w, 2)
		w.conf.set(configWithSettings(5, wide), nil)
		changed, err := w.server.Refresh(t.Context())
		require.NoError(t, err)
		require.True(t, changed)
		grow(w, 6)
	})
	t.Run("after a restart, and at the next reload", func(t *testing.T) {
		w := newWorld(t, setup{config: configWithSettings(5, tight)})
		grow(w, 2)
		require.NoError(t, w.stopServer())
		w.conf.set(configWithSettings(5, wide), nil)
		w.startSuccessor(server.Options{})
		grow(w, 6)
		api := w.admin()
		require.Empty(t, w.configStatus(api).GetRejectedError())
		w.applyConfig(configWithSettings(5, tight))
	})
	t.Run("for the next leader, although its own file differs", func(t *testing.T) {
		w := newWorld(t, setup{config: configWithSettings(0, tight)})
		grow(w, 1)
		w.applyConfig(configWithSettings(0, wide))
		w.conf.set(configWithSettings(5, wide), nil)
		w.startSuccessor(server.Options{})
		grow(w, 6)
	})
}

func TestReloadOfTheHealthInterval(t *testing.T) {
	t.Parallel() // it waits for intervals of seconds
	long, short := `"health_interval": "1h",`, `"health_interval": "300ms",`
	interval := func(k *agentSession) time.Duration {
		t.Helper()
		return k.nextMessage().GetWelcome().GetReportInterval().AsDuration()
	}
	t.Run("agents reconnect to receive it, and silence is measured by it", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, setup{config: configWithSettings(1, long)})
		id := w.awaitMachine(nstance.DefaultTenant)
		h := w.registerAgent(id)
		k := h.open(t.Context())
		require.Equal(t, time.Hour, interval(k))
		k.awaitAck(k.sendReport())
		w.awaitEvent(nstance.EventReady, id)

		w.applyConfig(configWithSettings(1, short))
		for m := k.nextMessage(); m.GetGoAway() == nil; {
			m = k.nextMessage()
		}
		k = h.open(t.Context())
		require.Equal(t, 300*time.Millisecond, interval(k))
		w.awaitEvent(nstance.EventUnhealthy, id) // it sends no more reports
	})
	t.Run("an agent that ignores the request loses its session", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, setup{config: configWithSettings(1, long)})
		k := w.registerAgent(w.awaitMachine(nstance.DefaultTenant)).connect()
		k.ignoreGoAway.Store(true)
		w.applyConfig(configWithSettings(1, short))
		require.Error(t, k.awaitEnd())
	})
	t.Run("after a restart", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, setup{config: configWithSettings(1, long)})
		id := w.awaitMachine(nstance.DefaultTenant)
		h := w.registerAgent(id)
		require.NoError(t, w.stopServer())
		w.conf.set(configWithSettings(1, short), nil)
		w.startSuccessor(server.Options{})
		require.Eventually(t, func() bool {
			k := h.open(t.Context())
			return interval(k) == 300*time.Millisecond
		}, eventually, 10*time.Millisecond)
	})
}

func TestReloadOfTheBreaker(t *testing.T) {
	t.Parallel() // it waits for intervals of seconds
	conf := func(most string) string {
		return configWithSettings(2, fmt.Sprintf(`"health_interval": "1s", "breaker": {"max_unhealthy": %q},`, most))
	}
	// held returns a world whose three members became silent together.
	held := func(t *testing.T) *world {
		w := newWorld(t, setup{config: conf("1%")})
		require.Eventually(t, func() bool { return len(w.cloud.Machines()) == 3 }, eventually, time.Millisecond)
		var talks []*agentSession
		for _, m := range w.cloud.Machines() {
			talks = append(talks, w.connectReady(m.ID))
			for _, k := range talks { // the last reports of all come together
				k.sendReport()
			}
		}
		require.Contains(t, w.awaitEvent(nstance.EventAlarm, "").Reason, "of the shard's 3 members fell silent")
		require.Zero(t, w.countEvents(nstance.EventUnhealthy))
		return w
	}
	t.Run("at once", func(t *testing.T) {
		t.Parallel()
		w := held(t)
		w.applyConfig(conf("100%"))
		w.awaitEvent(nstance.EventUnhealthy, "")
	})
	t.Run("after a restart", func(t *testing.T) {
		t.Parallel()
		w := held(t)
		require.NoError(t, w.stopServer())
		w.conf.set(conf("100%"), nil)
		w.startSuccessor(server.Options{})
		w.awaitEvent(nstance.EventUnhealthy, "")
	})
	t.Run("for the next leader, although its own file differs", func(t *testing.T) {
		t.Parallel()
		w := held(t)
		w.applyConfig(conf("100%"))
		w.conf.set(conf("100%"), nil)
		w.startSuccessor(server.Options{})
		w.awaitEvent(nstance.EventUnhealthy, "")
	})
}

// A watchedCloud records the calls of a provider.
type watchedCloud struct {
	*simcloud.Cloud
	lists atomic.Int64
	limit atomic.Int64 // timeout of the last create, a time.Duration
}

func (c *watchedCloud) List(ctx context.Context, owner nstance.Owner) iter.Seq2[nstance.Machine, error] {
	c.lists.Add(1)
	return c.Cloud.List(ctx, owner)
}

func (c *watchedCloud) Create(ctx context.Context, spec nstance.MachineSpec) (nstance.Machine, error) {
	at, _ := ctx.Deadline()
	c.limit.Store(int64(time.Until(at)))
	return c.Cloud.Create(ctx, spec)
}

func newWatchedCloud(t *testing.T) *watchedCloud {
	c := &watchedCloud{Cloud: simcloud.New(nil)}
	t.Cleanup(c.Close)
	return c
}

// Package reconcile tests the rest of the rule, which takes minutes.
func TestReloadOfTheCollection(t *testing.T) {
	t.Parallel() // it waits for intervals of seconds
	cloud := newWatchedCloud(t)
	w := newWorld(t, setup{config: configWithSettings(1, `"gc": {"interval": "1d"},`), provider: cloud})
	w.awaitEvent(nstance.EventCreated, "")
	before := cloud.lists.Load()
	w.applyConfig(configWithSettings(1, `"gc": {"interval": "1s"},`))
	require.Eventually(t, func() bool { return cloud.lists.Load() >= before+2 }, eventually, time.Millisecond)
}

func TestReloadOfTheRequestTimeout(t *testing.T) {
	t.Parallel()
	cloud := newWatchedCloud(t)
	w := newWorld(t, setup{config: configWithSettings(1, `"request_timeout": "1h",`), provider: cloud})
	made := func(n int) {
		t.Helper()
		require.Eventually(t, func() bool { return w.countEvents(nstance.EventCreated) == n }, eventually, time.Millisecond)
	}
	made(2)
	require.Greater(t, time.Duration(cloud.limit.Load()), 50*time.Minute)
	w.applyConfig(configWithSettings(1, `"request_timeout": "77s",`))
	w.applyConfig(configWithSettings(2, `"request_timeout": "77s",`))
	made(3)
	require.LessOrEqual(t, time.Duration(cloud.limit.Load()), 77*time.Second)
}

// Exactly the settings that are documented to need a restart are refused by name.
func TestReloadThatNeedsARestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{config: configWithSettings(1, "")})
	for field, change := range map[string][2]string{
		"cluster.id":             {`"id": "c1"`, `"id": "c2"`},
		"shard.id":               {`"id": "s1"`, `"id": "s2"`},
		"shard.provider.kind":    {`"kind": "sim"`, `"kind": "aws"`},
		"shard.provider.options": {`"kind": "sim"`, `"kind": "sim", "options": {"load_balancers": ["secret"]}`},
		"shard.bind.peer":        {`"http": "127.0.0.1:0"`, `"http": "127.0.0.1:0", "peer": "127.0.0.1:9"`},
		"shard.advertise.agent":  {`"shutdown_timeout"`, `"advertise": {"agent": "example.org:1"}, "shutdown_timeout"`},
		"shard.election.ttl":     {`"shutdown_timeout"`, `"election": {"ttl": "7s"}, "shutdown_timeout"`},
	} {
		t.Run(field, func(t *testing.T) {
			w.conf.set(replaceOnce(t, configWithSettings(1, ""), change[0], change[1]), nil)
			_, err := w.server.Refresh(t.Context())
			require.ErrorIs(t, err, nstance.Invalid)
			require.ErrorContains(t, err, field+": cannot change")
			require.NotContains(t, err.Error(), "secret")
		})
	}
	w.applyConfig(configWithSettings(1, `"file_refresh": "9s", "image_refresh": "2h", "max_change": 7, "default_drain_timeout": "3s",`))
}
