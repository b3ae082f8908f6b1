package reconcile_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"sync"
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

// A recorder keeps what machines were asked for with.
type recorder struct {
	nstance.Provider
	mu    sync.Mutex
	specs []nstance.MachineSpec
}

func (p *recorder) Create(ctx context.Context, spec nstance.MachineSpec) (nstance.Machine, error) {
	p.mu.Lock()
	p.specs = append(p.specs, spec)
	p.mu.Unlock()
	return p.Provider.Create(ctx, spec)
}

func (p *recorder) take() []nstance.MachineSpec {
	p.mu.Lock()
	defer p.mu.Unlock()
	specs := p.specs
	p.specs = nil
	return specs
}

func TestRepeatedCreateIsTheSame(t *testing.T) {
	takeover(t, false, simcloud.Options{}, func(t *testing.T, w *world) {
		rec := &recorder{Provider: w.cloud}
		w.wrap = func(o *office) { o.provider = rec }
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Times: 2})
		w.lead(wanted(1))
		w.passes(15 * time.Second) // in which it is repeated once
		require.Equal(t, 2, w.cloud.Count(simcloud.OpCreate))
		w.depose()
		w.lead(wanted(1))
		w.passes(2 * time.Minute)
		w.agrees(1)
		specs := rec.take()
		require.Len(t, specs, 3)
		require.Equal(t, specs[0], specs[1], "by the same leader")
		require.Equal(t, specs[0], specs[2], "and by the next one: epoch, instant and token are the intent's")
	})
}

// TestTokensTellShapesApart: a provider would take a create for a repeat of the
// one that it refused.
func TestTokensTellShapesApart(t *testing.T) {
	takeover(t, false, simcloud.Options{}, func(t *testing.T, w *world) {
		rec := &recorder{Provider: w.cloud}
		w.wrap = func(o *office) { o.provider = rec }
		w.lead(wanted(0))
		w.passes(time.Second)
		w.cloud.SetCapacity(simcloud.Pool{}, 0)
		req := onDemand(w.newID())
		req.Definition.InstanceTypes, req.Definition.Subnets = []string{"small", "large"}, []string{"a", "b"}
		req.Definition.Market = nstance.Market{Type: nstance.Spot, Fallback: nstance.OnDemand}
		req.Definition.LaunchTimeout = time.Hour
		_, err := w.order(req)
		require.NoError(t, err)
		w.passes(20 * time.Minute)
		tokens, shapes := map[string]storage.Shape{}, map[storage.Shape]string{}
		for _, s := range rec.take() {
			shape := storage.Shape{InstanceType: s.InstanceType, Subnet: s.Subnet, Market: s.Market}
			if known, ok := tokens[s.Token]; ok {
				require.Equal(t, known, shape)
			}
			if known, ok := shapes[shape]; ok {
				require.Equal(t, known, s.Token)
			}
			tokens[s.Token], shapes[shape] = shape, s.Token
			require.Contains(t, s.Token, string(req.ID))
		}
		require.Len(t, shapes, 8, "each of them was tried")
	})
}

// TestMarkedIntentIsNotAskedForAgain: a former leader's late mark is read before
// a create is repeated.
func TestMarkedIntentIsNotAskedForAgain(t *testing.T) {
	takeover(t, false, simcloud.Options{}, func(t *testing.T, w *world) {
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate})
		w.lead(wanted(1))
		w.passes(time.Second)
		id := w.in(nstance.Provisioning)[0]
		w.land(id, func(rec *storage.Instance) { rec.Deleting = &storage.Deletion{At: time.Now()} })
		asked := w.cloud.Count(simcloud.OpCreate)
		w.passes(5 * time.Minute)
		w.agrees(1)
		require.NotContains(t, w.ready(), id)
		require.Equal(t, asked+1, w.cloud.Count(simcloud.OpCreate), "for another instance")
	})
}

// TestStorageTroubleIsNoRefusal: only the provider can refuse a create.
func TestStorageTroubleIsNoRefusal(t *testing.T) {
	for _, prefix := range []string{storage.DefinitionPrefix("s1"), storage.InstancePrefix("s1")} {
		for _, code := range []nstance.Code{nstance.Denied, nstance.Invalid, nstance.Throttled} {
			takeover(t, false, simcloud.Options{}, func(t *testing.T, w *world) {
				faulty := storagetest.NewFaulty(w.store)
				faulty.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Prefix: prefix, Times: 3, Err: nstance.Errorf(code, "injected")})
				w.store = faulty
				w.lead(wanted(2))
				w.passes(2 * time.Minute)
				w.agrees(2)
				w.blameless()
				require.Equal(t, 2, w.cloud.Count(simcloud.OpCreate))
			})
		}
	}
	t.Run("nor is that of the provider's reads", func(t *testing.T) {
		takeover(t, false, simcloud.Options{}, func(t *testing.T, w *world) {
			w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, When: simcloud.After})
			w.cloud.Inject(simcloud.Fault{Op: simcloud.OpGet, Times: 3, Code: nstance.Denied})
			w.lead(wanted(1))
			w.passes(2 * time.Minute)
			w.agrees(1)
			require.Equal(t, 1, w.cloud.Count(simcloud.OpCreate))
			w.blameless()
		})
	})
}

// TestFreezeBetweenIntentAndCreate: what is being written down when a freeze
// begins becomes no machine.
func TestFreezeBetweenIntentAndCreate(t *testing.T) {
	takeover(t, false, simcloud.Options{}, func(t *testing.T, w *world) {
		faulty := storagetest.NewFaulty(w.store)
		w.store = faulty
		w.lead(wanted(0))
		w.passes(time.Second)
		faulty.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Prefix: storage.InstancePrefix("s1"), Pass: true, Do: func() { <-time.After(10 * time.Second) }})
		w.want(wanted(1))
		w.passes(time.Second)
		require.NoError(t, w.r.Freeze(w.ctx, web, "not now"))
		w.passes(10 * time.Minute)
		require.Zero(t, w.cloud.Count(simcloud.OpCreate))
		require.NoError(t, w.r.Thaw(w.ctx, web, ""))
		w.passes(2 * time.Minute)
		w.agrees(1)
		w.blameless()
	})
}

// TestDefinitionThatChangesBeforeTheIntent: what waited for its turn is not made
// from another definition than it was chosen for, and that is no failure.
func TestDefinitionThatChangesBeforeTheIntent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		faulty := storagetest.NewFaulty(w.store)
		w.store = faulty
		w.wrap = func(o *office) { o.options = func(opts *reconcile.Options) { opts.Width = 1 } }
		w.lead(wanted(0))
		w.passes(time.Second)
		faulty.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Prefix: storage.InstancePrefix("s1"), Pass: true, Do: func() { <-time.After(10 * time.Second) }})
		require.NoError(t, w.r.Pause(w.ctx, web, "")) // else the plan takes them back first
		w.want(wanted(4))
		w.passes(time.Second) // the first one is being written down, the others wait
		w.want(redefined(4, "v2"))
		for range 60 {
			w.passes(time.Second)
			require.Zero(t, w.group().Failures)
			require.Zero(t, w.group().BackoffUntil)
		}
		w.passes(5 * time.Minute)
		w.agrees(4)
		require.Zero(t, w.count(nstance.EventRolloutHalted, ""))
		require.Equal(t, map[string]int{"v1": 1, "v2": 3}, w.told())
		require.Equal(t, 1, w.group().Stale, "each is known for what it was made from")
	})
}

// TestBytesOfTheRecord: where the answer to an intent was lost and other bytes
// are rendered by then, what stands in storage counts.
func TestBytesOfTheRecord(t *testing.T) {
	takeover(t, false, simcloud.Options{}, func(t *testing.T, w *world) {
		settings := &changing{text: "one"}
		w.wrap = func(o *office) { o.options = func(opts *reconcile.Options) { opts.Bootstrap = settings } }
		faulty := storagetest.NewFaulty(w.store)
		w.store = faulty
		faulty.Inject(
			storagetest.Fault{Op: storagetest.PutIfAbsent, Prefix: storage.InstancePrefix("s1"), Mode: storagetest.Lose, Do: func() { settings.set("two") }},
			storagetest.Fault{Op: storagetest.Get, Prefix: storage.InstancePrefix("s1"), Times: 3},
		)
		w.lead(wanted(1))
		w.passes(3 * time.Minute)
		w.agrees(1)
		w.blameless()
		id := w.ready()[0]
		spec, _ := w.cloud.Spec(id)
		sum := sha256.Sum256(spec.UserData)
		rec, _ := w.r.Records().Get(id)
		require.Equal(t, hex.EncodeToString(sum[:]), rec.UserDataDigest)
	})
}
