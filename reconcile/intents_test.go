package reconcile_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// recorder records the specs of creates.
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

func TestRepeatedCreateIsIdentical(t *testing.T) {
	takeover(t, false, simcloud.Options{}, func(t *testing.T, w *world) {
		rec := &recorder{Provider: w.cloud}
		w.wrap = func(o *leaderEnv) { o.provider = rec }
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Times: 2})
		w.startLeader(webGroup(1))
		w.advance(15 * time.Second) // repeated once meanwhile
		require.Equal(t, 2, w.cloud.Count(simcloud.OpCreate))
		w.stopLeader()
		w.startLeader(webGroup(1))
		w.advance(2 * time.Minute)
		w.requireMembers(1)
		specs := rec.take()
		require.Len(t, specs, 3)
		require.Equal(t, specs[0], specs[1], "repeated by the same leader")
		require.Equal(t, specs[0], specs[2], "repeated by the next leader: epoch, time and token come from the intent")
	})
}

// TestTokenDiffersByShape: with the same token, a provider would take a create in
// another shape for a repeat of the refused one.
func TestTokenDiffersByShape(t *testing.T) {
	takeover(t, false, simcloud.Options{}, func(t *testing.T, w *world) {
		rec := &recorder{Provider: w.cloud}
		w.wrap = func(o *leaderEnv) { o.provider = rec }
		w.startLeader(webGroup(0))
		w.advance(time.Second)
		w.cloud.SetCapacity(simcloud.Pool{}, 0)
		req := onDemand(w.newID())
		req.Definition.InstanceTypes, req.Definition.Subnets = []string{"small", "large"}, []string{"a", "b"}
		req.Definition.Market = nstance.Market{Type: nstance.Spot, Fallback: nstance.OnDemand}
		req.Definition.LaunchTimeout = time.Hour
		_, err := w.requestOnDemand(req)
		require.NoError(t, err)
		w.advance(20 * time.Minute)
		tokens, shapes := map[string]records.Shape{}, map[records.Shape]string{}
		for _, s := range rec.take() {
			shape := records.Shape{InstanceType: s.InstanceType, Subnet: s.Subnet, Market: s.Market}
			if known, ok := tokens[s.Token]; ok {
				require.Equal(t, known, shape)
			}
			if known, ok := shapes[shape]; ok {
				require.Equal(t, known, s.Token)
			}
			tokens[s.Token], shapes[shape] = shape, s.Token
			require.Contains(t, s.Token, string(req.ID))
		}
		require.Len(t, shapes, 8, "each shape was tried")
	})
}

// TestMarkedIntentIsNotCreated: a former leader's late deletion mark is read before a
// create is repeated.
func TestMarkedIntentIsNotCreated(t *testing.T) {
	takeover(t, false, simcloud.Options{}, func(t *testing.T, w *world) {
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate})
		w.startLeader(webGroup(1))
		w.advance(time.Second)
		id := w.in(nstance.Provisioning)[0]
		w.writeLate(id, func(rec *records.Instance) { rec.Deleting = &records.Deletion{At: time.Now()} })
		asked := w.cloud.Count(simcloud.OpCreate)
		w.advance(5 * time.Minute)
		w.requireMembers(1)
		require.NotContains(t, w.ready(), id)
		require.Equal(t, asked+1, w.cloud.Count(simcloud.OpCreate), "for another instance")
	})
}

// TestStorageErrorIsNotRefusal: only the provider can refuse a create.
func TestStorageErrorIsNotRefusal(t *testing.T) {
	for _, prefix := range []string{layout.DefinitionPrefix("s1"), layout.InstancePrefix("s1")} {
		for _, code := range []nstance.Code{nstance.Denied, nstance.Invalid, nstance.Throttled} {
			t.Run(prefix+" "+string(code), func(t *testing.T) {
				takeover(t, false, simcloud.Options{}, func(t *testing.T, w *world) {
					faulty := storagetest.NewFaulty(w.store)
					faulty.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Prefix: prefix, Times: 3, Err: nstance.Errorf(code, "injected")})
					w.store = faulty
					w.startLeader(webGroup(2))
					w.advance(2 * time.Minute)
					w.requireMembers(2)
					w.requireNoFailures()
					require.Equal(t, 2, w.cloud.Count(simcloud.OpCreate))
				})
			})
		}
	}
	t.Run("error of a provider read", func(t *testing.T) {
		takeover(t, false, simcloud.Options{}, func(t *testing.T, w *world) {
			w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Lost: true})
			w.cloud.Inject(simcloud.Fault{Op: simcloud.OpGet, Times: 3, Code: nstance.Denied})
			w.startLeader(webGroup(1))
			w.advance(2 * time.Minute)
			w.requireMembers(1)
			require.Equal(t, 1, w.cloud.Count(simcloud.OpCreate))
			w.requireNoFailures()
		})
	})
}

// TestFreezeBetweenIntentAndCreate: an intent written while a freeze begins becomes no
// machine.
func TestFreezeBetweenIntentAndCreate(t *testing.T) {
	takeover(t, false, simcloud.Options{}, func(t *testing.T, w *world) {
		faulty := storagetest.NewFaulty(w.store)
		w.store = faulty
		w.startLeader(webGroup(0))
		w.advance(time.Second)
		faulty.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Prefix: layout.InstancePrefix("s1"), Pass: true, Do: func() { <-time.After(10 * time.Second) }})
		w.setGroups(webGroup(1))
		w.advance(time.Second)
		require.NoError(t, w.r.Admin().Freeze(w.ctx, web, "not now"))
		w.advance(10 * time.Minute)
		require.Zero(t, w.cloud.Count(simcloud.OpCreate))
		require.NoError(t, w.r.Admin().Thaw(w.ctx, web, ""))
		w.advance(2 * time.Minute)
		w.requireMembers(1)
		w.requireNoFailures()
	})
}

// TestDefinitionChangesBeforeIntent: a queued create for an old definition is discarded,
// and that is not a failure.
func TestDefinitionChangesBeforeIntent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		faulty := storagetest.NewFaulty(w.store)
		w.store = faulty
		w.wrap = func(o *leaderEnv) { o.options = func(opts *reconcile.Options) { opts.Width = 1 } }
		w.startLeader(webGroup(0))
		w.advance(time.Second)
		faulty.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Prefix: layout.InstancePrefix("s1"), Pass: true, Do: func() { <-time.After(10 * time.Second) }})
		require.NoError(t, w.r.Admin().Pause(w.ctx, web, "")) // prevents the plan from discarding them first
		w.setGroups(webGroup(4))
		w.advance(time.Second) // the first intent is being written, the others wait
		w.setGroups(groupWithUserData(4, "v2"))
		for range 60 {
			w.advance(time.Second)
			require.Zero(t, w.group().Failures)
			require.Zero(t, w.group().BackoffUntil)
		}
		w.advance(5 * time.Minute)
		w.requireMembers(4)
		require.Zero(t, w.count(nstance.EventRolloutHalted, ""))
		require.Equal(t, map[string]int{"v1": 1, "v2": 3}, w.userDataVersions())
		require.Equal(t, 1, w.group().Stale, "each member counts with its own definition")
	})
}

// TestRecordDecidesUserData: after the answer to an intent was lost and the user data
// changed, the stored intent is used.
func TestRecordDecidesUserData(t *testing.T) {
	takeover(t, false, simcloud.Options{}, func(t *testing.T, w *world) {
		settings := &settableBootstrap{text: "one"}
		w.wrap = func(o *leaderEnv) { o.options = func(opts *reconcile.Options) { opts.Bootstrap = settings } }
		faulty := storagetest.NewFaulty(w.store)
		w.store = faulty
		faulty.Inject(
			storagetest.Fault{Op: storagetest.PutIfAbsent, Prefix: layout.InstancePrefix("s1"), Mode: storagetest.LoseAnswer, Do: func() { settings.set("two") }},
			storagetest.Fault{Op: storagetest.Get, Prefix: layout.InstancePrefix("s1"), Times: 3},
		)
		w.startLeader(webGroup(1))
		w.advance(3 * time.Minute)
		w.requireMembers(1)
		w.requireNoFailures()
		id := w.ready()[0]
		spec, _ := w.cloud.Spec(id)
		sum := sha256.Sum256(spec.UserData)
		rec, _ := w.r.Admin().Internals().Records().Get(id)
		require.Equal(t, hex.EncodeToString(sum[:]), rec.UserDataDigest)
	})
}

// TestFormerIntentOfTheSameID: an intent that a former leader has written a moment ago counts, and
// its create may still be under way: its machine is waited for, whatever this leader would render.
func TestFormerIntentOfTheSameID(t *testing.T) {
	withGroup(t, 0, simcloud.Options{}, func(t *testing.T, w *world) {
		beneath, faulty := w.store, storagetest.NewFaulty(w.store)
		w.store = faulty
		w.changeLeader(webGroup(0))
		req := onDemand(w.newID())
		former := records.New(beneath, "s1", &records.Options{Epoch: 1})
		faulty.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Prefix: "instance/", Pass: true, Do: func() {
			definition, err := former.PutDefinition(w.ctx, req.Definition)
			require.NoError(t, err)
			rec, err := former.Create(w.ctx, records.Instance{
				ID: req.ID, Tenant: web.Tenant, Group: web.Group, OnDemand: true, Request: req.Digest, CreatedAt: req.ID.Time(), CreatedEpoch: 1,
				Definition: definition, Shape: records.Shape{InstanceType: "small", Market: nstance.Spot}, UserDataDigest: "of other bytes",
				Token: string(req.ID) + "-1", LaunchTimeout: req.Definition.LaunchTimeout, RegistrationTimeout: req.Definition.RegistrationTimeout,
			})
			require.NoError(t, err)
			w.agents.Go(func() {
				<-time.After(5 * time.Second)
				_, err := w.cloud.Create(w.ctx, nstance.MachineSpec{
					ID: rec.ID, Owner: nstance.Owner{Installation: "i1", Cluster: "c1", Shard: "s1", Tenant: rec.Tenant}, Group: rec.Group,
					CreatedAt: rec.CreatedAt, Epoch: 1, InstanceType: "small", Market: nstance.Spot, Token: rec.Token,
				})
				require.NoError(t, err)
			})
		}})
		_, err := w.requestOnDemand(req)
		require.NoError(t, err)
		w.advance(time.Minute)
		w.requireMembers(1)
		require.Equal(t, []nstance.InstanceID{req.ID}, w.ready())
		require.Zero(t, w.count(nstance.EventCreateFailed, ""))
	})
}

// A waitingBootstrap renders the user data of an instance when it may.
type waitingBootstrap struct {
	id  nstance.InstanceID
	may <-chan struct{}
}

func (b waitingBootstrap) Render(_ context.Context, req reconcile.RenderRequest) (reconcile.Rendered, error) {
	if req.ID == b.id {
		<-b.may
	}
	return reconcile.Rendered{UserData: []byte(req.Definition.UserData.Content), Args: req.Definition.Args}, nil
}

// TestGrantedWhileTheIntentIsWritten: an intent may be written for another shape than the one that
// is granted meanwhile: the provider is asked for the one that was granted.
func TestGrantedWhileTheIntentIsWritten(t *testing.T) {
	withHook(t, simcloud.Options{}, func(t *testing.T, w *world, p *callHook) {
		second, rendered := w.newID(), make(chan struct{})
		w.wrap = func(e *leaderEnv) {
			e.provider, e.options = p, func(o *reconcile.Options) {
				o.Provider = slowBudget()
				o.Bootstrap = waitingBootstrap{second, rendered}
			}
		}
		w.changeLeader(webGroup(0))
		asked := make(chan string, 100)
		p.create = func(ctx context.Context, spec nstance.MachineSpec) (nstance.Machine, error) {
			asked <- spec.InstanceType
			if spec.InstanceType == "small" {
				<-time.After(time.Second)
				return nstance.Machine{}, nstance.Errorf(nstance.Capacity, "sold out")
			}
			return w.cloud.Create(ctx, spec)
		}
		w.requestTypes("small", "medium") // which takes the budget
		req := onDemand(second)
		req.Definition.InstanceTypes = []string{"small", "medium"}
		w.agents.Go(func() { _, _ = w.r.CreateInstance(w.ctx, req) })
		w.advance(30 * time.Second)
		close(rendered)
		w.advance(2 * time.Minute)
		w.requireMembers(2)
		require.Len(t, asked, 3)
		require.Equal(t, []string{"small", "medium", "medium"}, []string{<-asked, <-asked, <-asked})
	})
}
