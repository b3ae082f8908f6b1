package reconcile_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/drain"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/ledger"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/storage"
)

var web = nstance.GroupKey{Tenant: nstance.DefaultTenant, Group: "web"}

// requester is a requester, as a reason.
const requester = "asked for by eve"

// world is one shard: a cloud in memory, a store, and an agent on every running machine.
// Everything runs inside one synctest bubble.
type world struct {
	t       *testing.T
	cloud   *simcloud.Cloud
	outside outside // cloud, or its replacement
	store   storage.Store
	ctx     context.Context
	agents  sync.WaitGroup
	stops   map[nstance.InstanceID]context.CancelFunc

	mu         sync.Mutex // guards the fields below
	r          *reconcile.Reconciler
	epoch      uint64
	drains     *drain.Coordinator
	office     *leaderEnv
	stop       context.CancelFunc
	done       chan struct{}
	runError   error // result of the latest Run
	events     []nstance.Event
	acked      map[string]int              // notices acknowledged, by event ID
	wasHealthy map[nstance.InstanceID]bool // machines that were healthy once
	drained    map[nstance.InstanceID]bool // machines whose agent has acknowledged a drain

	keepLives   bool             // in the ledger
	ownUserData bool             // each leader renders its own user data, as servers with different addresses do
	wrap        func(*leaderEnv) // wraps a leader's provider and store
	watch       agentWatch       // observes agents

	slowDrain bool                                // agents do not acknowledge drains
	broken    map[nstance.InstanceID]bool         // agents that never report
	badImage  func(spec nstance.MachineSpec) bool // machines that never register
}

// An leaderEnv is what one leader works with; world.wrap changes its fields.
type leaderEnv struct {
	ctx      context.Context
	cancel   context.CancelFunc
	provider nstance.Provider
	store    storage.Store
	check    func() error
	options  func(*reconcile.Options) // may be nil
	dead     atomic.Bool              // its process is dead: its events are dropped
}

// An agentWatch observes what agents receive from leaders.
type agentWatch interface {
	acked(nstance.InstanceID, nstance.Notice)
	draining(nstance.Drain)
}

// webGroup is a group of the given size.
func webGroup(size int) nstance.Group {
	return nstance.Group{
		Key: web, Size: size, DrainTimeout: 5 * time.Minute, Static: true,
		Rollout: nstance.Rollout{MaxSurge: nstance.Count{N: 1}, HaltAfter: 2},
		Definition: nstance.Definition{
			Kind: "web", Arch: nstance.AMD64, InstanceTypes: []string{"small"}, Market: nstance.Market{Type: nstance.Spot},
			UserData: nstance.UserData{Content: "v1"}, LaunchTimeout: 15 * time.Minute, RegistrationTimeout: 5 * time.Minute,
		},
	}
}

func newWorld(t *testing.T, o simcloud.Options) *world {
	w := &world{
		t: t, store: storage.NewMemory(), ctx: t.Context(), stops: map[nstance.InstanceID]context.CancelFunc{},
		acked: map[string]int{}, broken: map[nstance.InstanceID]bool{}, wasHealthy: map[nstance.InstanceID]bool{},
		drained: map[nstance.InstanceID]bool{},
	}
	o.Latency = cmp.Or(o.Latency, simcloud.Delay{Min: 50 * time.Millisecond})
	o.Boot = cmp.Or(o.Boot, simcloud.Delay{Min: 20 * time.Second})
	o.OnStart = func(m nstance.Machine, spec nstance.MachineSpec) {
		ctx, cancel := context.WithCancel(context.Background())
		w.stops[m.ID] = cancel
		w.agents.Go(func() { w.agent(ctx, m.ID, spec) })
	}
	o.OnStop = func(m nstance.Machine) { w.stops[m.ID]() }
	w.cloud = simcloud.New(&o)
	w.outside = simulated{w.cloud}
	return w
}

// startLeader starts a term with the given groups.
func (w *world) startLeader(groups ...nstance.Group) {
	w.epoch++
	o := &leaderEnv{provider: w.cloud, store: w.store}
	o.ctx, o.cancel = context.WithCancel(w.ctx)
	o.check = o.ctx.Err
	if w.wrap != nil {
		w.wrap(o)
	}
	drains := drain.New(nil)
	opts := &reconcile.Options{
		Owner: nstance.Owner{Installation: "i1", Cluster: "c1", Shard: "s1"}, Epoch: w.epoch, Groups: groups, Drains: drains,
		Journal: func(e nstance.Event) { w.ifAlive(o, func() { w.events = append(w.events, e) }) },
		Check:   o.check,
	}
	if w.ownUserData {
		opts.Bootstrap = serverBootstrap{fmt.Sprintf("server-%d", w.epoch)}
	}
	if o.options != nil {
		o.options(opts)
	}
	r, err := reconcile.New(o.provider, o.store, opts)
	require.NoError(w.t, err)
	lives := ledger.NewWriter(o.store, "s1", &ledger.WriterOptions{Check: o.check})
	if w.keepLives {
		r.Admin().Internals().OnEnd(ledger.NewStories(lives).Ended)
	}
	done := make(chan struct{})
	w.mu.Lock()
	w.r, w.drains, w.office, w.stop, w.done = r, drains, o, o.cancel, done
	w.mu.Unlock()
	go func() {
		defer close(done)
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() { lives.Run(o.ctx) })
		err := r.Run(o.ctx)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.runError = err
	}()
}

// ifAlive handles an event of a leader, unless it is dead.
func (w *world) ifAlive(o *leaderEnv, note func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !o.dead.Load() {
		note()
	}
}

// stopLeader ends the term.
func (w *world) stopLeader() {
	w.stop()
	<-w.done
}

// close ends all goroutines of the bubble.
func (w *world) close() {
	w.stopLeader()
	w.outside.Close()
	w.agents.Wait()
}

func (w *world) leader() (*reconcile.Reconciler, *drain.Coordinator) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.r, w.drains
}

// agent registers, reports every minute, and forwards notices and drains.
func (w *world) agent(ctx context.Context, id nstance.InstanceID, spec nstance.MachineSpec) {
	w.mu.Lock()
	mute := w.broken[id] || w.badImage != nil && w.badImage(spec)
	w.mu.Unlock()
	if mute || !pause(ctx, 2*time.Second) {
		return
	}
	var notices []nstance.Notice
	unacked := map[string]nstance.Notice{}
	var mu sync.Mutex
	bring := func(n nstance.Notice) {
		w.mu.Lock()
		r, o := w.r, w.office
		w.mu.Unlock()
		r.Observe(nstance.Noticed{ID: id, Notice: n, Ack: func() {
			if w.acknowledged(o, id, n) {
				mu.Lock()
				defer mu.Unlock()
				if reflect.DeepEqual(unacked[n.EventID], n) {
					delete(unacked, n.EventID)
				}
			}
		}})
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		for n, err := range w.outside.Notices(ctx, id) {
			if err != nil {
				continue
			}
			mu.Lock()
			notices = slices.DeleteFunc(notices, func(o nstance.Notice) bool { return o.EventID == n.EventID })
			if !n.Cancelled {
				notices = append(notices, n)
			}
			unacked[n.EventID] = n
			mu.Unlock()
			bring(n)
		}
	})
	for ctx.Err() == nil {
		r, drains := w.leader()
		w.mu.Lock()
		mute := w.broken[id]
		slow := w.slowDrain
		w.mu.Unlock()
		if !mute && w.register(ctx, r, id) {
			mu.Lock()
			standing, again := slices.Clone(notices), slices.Collect(maps.Values(unacked))
			mu.Unlock()
			w.mu.Lock()
			w.wasHealthy[id] = true
			w.mu.Unlock()
			r.Observe(nstance.Reported{Report: nstance.Report{InstanceID: id, Timestamp: time.Now(), CanDrain: true, Notices: standing}})
			for _, n := range again {
				bring(n)
			}
		}
		next := time.After(time.Minute)
		w.drain(ctx, drains, id, slow)
		if !slow {
			next = time.After(5 * time.Second)
		}
		select {
		case <-ctx.Done():
		case <-next:
		}
	}
}

// acknowledged handles a leader's answer to a notice. It reports whether it arrived.
func (w *world) acknowledged(o *leaderEnv, id nstance.InstanceID, n nstance.Notice) bool {
	if o.dead.Load() {
		return false
	}
	w.ifAlive(o, func() { w.acked[n.EventID]++ })
	if w.watch != nil {
		w.watch.acked(id, n)
	}
	return true
}

// drain acknowledges drains at once, unless the agent is slow.
func (w *world) drain(ctx context.Context, drains *drain.Coordinator, id nstance.InstanceID, slow bool) {
	for _, d := range drains.Active() {
		if d.Instance != id {
			continue
		}
		if w.watch != nil {
			w.watch.draining(d)
		}
		if slow {
			continue
		}
		w.mu.Lock()
		w.drained[id] = true
		w.mu.Unlock()
		ack := nstance.Ack{Instance: id, Generation: d.Generation, By: d.Executor, Outcome: nstance.OutcomeDrained}
		if drains.Acknowledge(ctx, ack) != nil {
			w.mu.Lock()
			w.drained[id] = false
			w.mu.Unlock()
		}
	}
}

func (w *world) register(ctx context.Context, r *reconcile.Reconciler, id nstance.InstanceID) bool {
	rec, ok := r.Admin().Internals().Records().Get(id)
	if !ok {
		return false
	}
	if rec.RegisteredAt.IsZero() {
		if _, err := r.Admin().Internals().Records().Update(ctx, id, func(rec *records.Instance) error {
			if rec.Deleting != nil {
				return nstance.Errorf(nstance.Denied, "instance %s is being deleted", id)
			}
			rec.RegisteredAt = time.Now().UTC()
			return nil
		}); err != nil {
			return false
		}
		r.Observe(nstance.Registered{ID: id})
	}
	return true
}

func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// advance advances virtual time and waits until the bubble is idle.
func (w *world) advance(d time.Duration) {
	w.t.Helper()
	<-time.After(d)
	synctest.Wait()
}

// ready returns the IDs of ready instances, oldest first.
func (w *world) ready() []nstance.InstanceID { return w.in(nstance.Ready) }

func (w *world) in(s nstance.State) []nstance.InstanceID {
	var out []nstance.InstanceID
	r, _ := w.leader()
	for _, v := range r.Instances() {
		if v.State == s {
			out = append(out, v.ID)
		}
	}
	return out
}

func (w *world) group() reconcile.GroupView {
	r, _ := w.leader()
	for _, g := range r.Groups() {
		if g.Key == web {
			return g
		}
	}
	return reconcile.GroupView{}
}

// count counts events of a type, of one instance unless id is empty.
func (w *world) count(typ nstance.EventType, id nstance.InstanceID) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, e := range w.events {
		if e.Type == typ && (id == "" || e.Instance == id) {
			n++
		}
	}
	return n
}

// first returns the first event of a type of an instance.
func (w *world) first(typ nstance.EventType, match func(nstance.Event) bool) nstance.Event {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		if e.Type == typ && match(e) {
			return e
		}
	}
	require.Failf(w.t, "no such event", "%s", typ)
	return nstance.Event{}
}

// shapes counts the machines by type and market.
func (w *world) shapes() map[string]int {
	out := map[string]int{}
	for _, m := range w.cloud.Machines() {
		out[m.InstanceType+"/"+string(m.Market)]++
	}
	return out
}

// requireMembers requires that cloud, records and memory agree.
func (w *world) requireMembers(size int) {
	w.t.Helper()
	w.requireMachines(size, size)
}

// requireMachines is requireMembers where not every machine is that of a ready member.
func (w *world) requireMachines(ready, size int) {
	w.t.Helper()
	require.Len(w.t, w.ready(), ready)
	require.Len(w.t, w.outside.Machines(), size, "no machine leaked, none missing")
	keys := 0
	for _, err := range w.store.List(w.ctx, layout.InstancePrefix("s1"), "") {
		require.NoError(w.t, err)
		keys++
	}
	require.Equal(w.t, size, keys, "one record for each machine")
}

var front = nstance.LoadBalancer{Name: "front", ID: "lb-1"}

// balancedGroup is a group of the given size behind load balancers.
func balancedGroup(size int, names ...string) nstance.Group {
	g := webGroup(size)
	g.Definition.LoadBalancers = names
	return g
}

// requireBalanced checks that the members of a load balancer are the ready machines and the given
// others.
func (w *world) requireBalanced(lb string, others ...string) {
	w.t.Helper()
	want := slices.Clone(others)
	ready := w.ready()
	for _, m := range w.outside.Machines() {
		if slices.Contains(ready, m.ID) {
			want = append(want, m.ProviderID)
		}
	}
	require.ElementsMatch(w.t, want, w.outside.AttachedTo(lb))
	require.Empty(w.t, w.outside.DeletedWhileMember(), "no machine is deleted while it is sent traffic")
}

// lives returns what the ledger holds, by ID.
func (w *world) lives() map[nstance.InstanceID][]ledger.Life {
	w.t.Helper()
	out := map[nstance.InstanceID][]ledger.Life{}
	for day, err := range ledger.NewReader(w.store, "s1").Days(w.ctx, time.Time{}, time.Time{}) {
		require.NoError(w.t, err)
		require.Empty(w.t, day.Problems)
		for _, l := range day.Lives {
			out[l.ID] = append(out[l.ID], l)
		}
	}
	return out
}

// onDemand is a request for an instance like those of group web, with its own variables.
func onDemand(id nstance.InstanceID) reconcile.OnDemandRequest {
	def := webGroup(0).Definition
	def.Vars = map[string]string{"own": "1"}
	return reconcile.OnDemandRequest{ID: id, Group: web, Definition: def, Digest: "d1"}
}

// A serverBootstrap renders the server's address into user data. No other server
// renders the same bytes.
type serverBootstrap struct{ address string }

func (b serverBootstrap) Render(_ context.Context, req reconcile.RenderRequest) (reconcile.Rendered, error) {
	return reconcile.Rendered{UserData: fmt.Appendf(nil, "%s %s", req.Definition.UserData.Content, b.address), Args: req.Definition.Args}, nil
}
