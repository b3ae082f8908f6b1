package reconcile_test

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/storage"
)

// traffic records every call to a provider and a store.
type traffic struct {
	nstance.Provider
	storage.Store
	mu    sync.Mutex
	calls []string
}

func (c *traffic) record(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, fmt.Sprintf(format, args...))
}

func (c *traffic) take() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.calls
	c.calls = nil
	return out
}

// trafficProvider and trafficStore record into traffic.
type (
	trafficProvider struct{ *traffic }
	trafficStore    struct{ *traffic }
)

func (p trafficProvider) Create(ctx context.Context, spec nstance.MachineSpec) (nstance.Machine, error) {
	p.record("create %s", spec.Group)
	return p.Provider.Create(ctx, spec)
}

func (p trafficProvider) Get(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
	p.record("describe %s", id)
	return p.Provider.Get(ctx, id)
}

func (p trafficProvider) List(ctx context.Context, o nstance.Owner) iter.Seq2[nstance.Machine, error] {
	p.record("list machines")
	return p.Provider.List(ctx, o)
}

func (p trafficProvider) Delete(ctx context.Context, m nstance.Machine) error {
	p.record("delete %s", m.Group)
	return p.Provider.Delete(ctx, m)
}

func (s trafficStore) Get(ctx context.Context, key string) (storage.Object, error) {
	s.record("get %s", key)
	return s.Store.Get(ctx, key)
}

func (s trafficStore) List(ctx context.Context, prefix, after string) iter.Seq2[storage.Entry, error] {
	s.record("list %s", prefix)
	return s.Store.List(ctx, prefix, after)
}

func (s trafficStore) PutIfAbsent(ctx context.Context, key string, data []byte) (storage.Version, error) {
	s.record("put %s", key)
	return s.Store.PutIfAbsent(ctx, key, data)
}

func (s trafficStore) PutIfMatch(ctx context.Context, key string, data []byte, v storage.Version) (storage.Version, error) {
	s.record("put %s", key)
	return s.Store.PutIfMatch(ctx, key, data, v)
}

func (s trafficStore) DeleteIfMatch(ctx context.Context, key string, v storage.Version) error {
	s.record("remove %s", key)
	return s.Store.DeleteIfMatch(ctx, key, v)
}

// TestReloadCallsNothingForOtherGroups grows one of a thousand groups of ten.
func TestReloadCallsNothingForOtherGroups(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		w.badImage = func(nstance.MachineSpec) bool { return true } // no agents
		seen := &traffic{Provider: w.cloud, Store: w.store}
		w.wrap = func(o *leaderEnv) {
			o.provider, o.store = trafficProvider{seen}, trafficStore{seen}
			o.options = func(opts *reconcile.Options) {
				opts.GC.Interval, opts.FullPass, opts.Snapshots = time.Hour, time.Hour, time.Hour // no periodic calls
				opts.Provider = &provider.Options{Rate: 10_000, Burst: 10_000, Width: 10_000}
			}
		}
		groups := make([]nstance.Group, 100)
		for i := range groups {
			g := webGroup(10)
			g.Key.Group = nstance.GroupID(fmt.Sprintf("g%04d", i))
			g.Definition.LaunchTimeout, g.Definition.RegistrationTimeout = 0, 0 // they boot for ever
			groups[i] = g
		}
		w.startLeader(groups...)
		for len(w.cloud.Machines()) < 1000 {
			w.advance(time.Minute)
		}
		for seen.take(); !slices.Contains(seen.take(), "list machines"); { // booting machines are listed every 30 s
			w.advance(time.Second)
		}
		w.advance(5 * time.Second) // covers up to two lists
		seen.take()

		r, _ := w.leader()
		groups[50].Size = 11
		r.Observe(nstance.Desired{Groups: groups})
		w.advance(5 * time.Second)
		require.Len(t, w.cloud.Machines(), 1001)
		for _, call := range seen.take() {
			require.True(t, strings.Contains(call, "g0050"), call)
		}
	})
}
