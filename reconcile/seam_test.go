package reconcile_test

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/storage"
)

// A strike is what happens at the call that a seam has been told to hit.
type strike string

// The strikes. Each but lost and paused kills the leader at that call: from
// then on nothing that it does reaches store or cloud, and nobody hears it.
const (
	none    strike = ""
	before  strike = "killed before it"
	after   strike = "killed after it"
	blinded strike = "killed after it, and the successor's first looks at the cloud fail"
	lost    strike = "its answer lost"
	paused  strike = "its term over at it, unknown to the leader for a second"
	late    strike = "killed before it, and it lands 3 s later"
	belated strike = "killed before it, and it lands 45 s later"
)

// moment is how long it takes until somebody leads again.
const moment = time.Second

// A label names one call of a story: what it does, to which kind of object,
// the how-manieth of these it is.
type label struct {
	what string // such as "put_if_match instance" or "create machine"
	nth  int
}

func (l label) String() string { return fmt.Sprintf("%s #%d", l.what, l.nth) }

// mutates reports whether the call changes anything outside.
func (l label) mutates() bool {
	return l.what == "join balancer" || l.what == "leave balancer" || strings.HasPrefix(l.what, "put") || strings.HasPrefix(l.what, "delete") || strings.HasPrefix(l.what, "create")
}

// A seam lies between the leaders and the outside, store and cloud. It numbers
// the calls, strikes one of them, and watches that no leader breaks the rules,
// whichever of them dies.
type seam struct {
	w     *world
	store storage.Store
	cloud outside

	aim       label
	with      strike
	snapshots time.Duration // from the beginning of a term to its first one
	balancers []nstance.LoadBalancer

	wg   sync.WaitGroup // late calls, and terms that end
	fall chan *office   // leaders that are over, for whoever puts up the next one

	mu        sync.Mutex
	current   *view // of the last leader
	armed     bool
	struck    bool
	blind     *office // the leader whose first looks fail
	looks     map[string]bool
	counts    map[string]int
	calls     []label
	wrongs    []string
	made      map[nstance.InstanceID]bool
	deleted   map[nstance.InstanceID]bool
	recorded  map[nstance.InstanceID]storage.Instance // as last written over
	announced map[string]time.Time                    // deadlines that agents saw, by instance and generation
}

func newSeam(w *world, aim label, with strike) *seam {
	s := &seam{
		w: w, store: w.store, cloud: w.outside, aim: aim, with: with, snapshots: time.Hour, fall: make(chan *office, 1),
		looks: map[string]bool{}, counts: map[string]int{}, made: map[nstance.InstanceID]bool{},
		deleted: map[nstance.InstanceID]bool{}, recorded: map[nstance.InstanceID]storage.Instance{}, announced: map[string]time.Time{},
	}
	w.wrap, w.watched = s.wrap, s
	return s
}

// A view is the outside as one leader sees it.
type view struct {
	*seam
	o    *office
	over time.Time // when its term ended while it lived on; guarded by the seam's lock
}

func (s *seam) wrap(o *office) {
	v := &view{seam: s, o: o}
	o.options = func(opts *reconcile.Options) {
		opts.Width = 8                    // fewer idle goroutines
		opts.Snapshots = 10 * s.snapshots // the first one comes after a tenth
		opts.Balancers = s.balancers
	}
	o.provider, o.store = theCloud{v}, theStore{v}
	o.check = func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !v.over.IsZero() {
			return nstance.Errorf(nstance.Unavailable, "the term is over")
		}
		return o.ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = v
	if s.struck && s.with == blinded && s.blind == nil {
		s.blind = o
	}
}

// arm begins the numbering.
func (s *seam) arm() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.armed, s.calls, s.counts = true, nil, map[string]int{}
}

func (s *seam) wrong(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wrongs = append(s.wrongs, time.Now().UTC().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
}

// meet numbers a call and says what happens at it.
func (v *view) meet(what string) (label, strike) {
	s := v.seam
	s.mu.Lock()
	defer s.mu.Unlock()
	l := label{what: what}
	if !v.over.IsZero() && time.Now().After(v.over) && l.mutates() {
		s.wrongs = append(s.wrongs, "after its term's end a leader called "+what)
	}
	if v.o == s.blind && !s.looks[what] && (what == "get machine" || what == "list machine") {
		s.looks[what] = true
		return l, lost
	}
	if !s.armed {
		return l, none
	}
	s.counts[what]++
	l.nth = s.counts[what]
	s.calls = append(s.calls, l)
	if l != s.aim || s.struck {
		return l, none
	}
	s.struck = true
	return l, s.with
}

// ask takes a call that answers with something through the seam. The answer
// of a call that lands late is nobody's.
func ask[T any](ctx context.Context, v *view, what string, call func(context.Context) (T, error)) (T, error) {
	answers := make(chan T, 1)
	err := v.do(ctx, what, func(ctx context.Context) error {
		answer, err := call(ctx)
		if err == nil {
			answers <- answer
		}
		return err
	})
	if err != nil {
		var nothing T
		return nothing, err
	}
	return <-answers, nil
}

// do takes one call through the seam.
func (v *view) do(ctx context.Context, what string, effect func(context.Context) error) error {
	if v.o.dead.Load() {
		return errDead
	}
	l, with := v.meet(what)
	switch with {
	case before:
		v.kill()
	case after, blinded:
		_ = effect(context.WithoutCancel(ctx))
		v.kill()
	case late:
		v.kill()
		v.land(3*time.Second, effect)
	case belated:
		v.kill()
		v.land(45*time.Second, effect)
	case lost:
		_ = effect(ctx)
		return lostAnswer(l)
	case paused:
		v.pause()
	}
	if v.o.dead.Load() {
		return errDead
	}
	err := effect(ctx)
	if v.o.dead.Load() {
		return errDead // it happened, but whoever asked is no more
	}
	return err
}

var errDead = nstance.Errorf(nstance.Unavailable, "this process is dead")

// lostAnswer is what a caller is told who will never know. Reads of the cloud
// fail in a way that nobody repeats by himself.
func lostAnswer(l label) error {
	switch {
	case l.what == "create machine":
		return nstance.Errorf(nstance.Ambiguous, "injected: the answer to %s is lost", l)
	case strings.HasSuffix(l.what, " machine"):
		return nstance.Errorf(nstance.Internal, "injected: the answer to %s is lost", l)
	}
	return nstance.Errorf(nstance.Unavailable, "injected: the answer to %s is lost", l)
}

// kill ends a leader's process.
func (v *view) kill() {
	v.w.mu.Lock()
	v.o.dead.Store(true)
	v.w.mu.Unlock()
	v.o.cancel()
	v.fallen()
}

// pause ends a leader's term while it is still running: its clock knows, its
// context hears of it too late.
func (v *view) pause() {
	v.mu.Lock()
	v.over = time.Now()
	v.mu.Unlock()
	v.wg.Go(func() {
		<-time.After(2 * moment)
		v.o.cancel()
	})
	v.fallen()
}

func (v *view) fallen() {
	select {
	case v.fall <- v.o:
	default:
	}
}

// land carries out a call that has been on its way for d.
func (v *view) land(d time.Duration, effect func(context.Context) error) {
	v.wg.Go(func() {
		<-time.After(d)
		_ = effect(v.w.ctx)
	})
}

// acked checks that a notice, or its withdrawal, is acknowledged only when that
// is durable which follows from it.
func (s *seam) acked(id nstance.InstanceID, n nstance.Notice) {
	rec, ok := s.record(id)
	if !ok || rec.Deleting != nil || n.Cancelled && rec.Reclaims > 1 {
		return
	}
	named := rec.Drain != nil && slices.ContainsFunc(rec.Drain.Causes, func(c nstance.Cause) bool { return c.EventID == n.EventID })
	if named == n.Cancelled {
		s.wrong("notice %s (withdrawn: %v) was acknowledged, and nothing came of it yet", n.EventID, n.Cancelled)
	}
}

// draining checks that what agents are told is not lengthened.
func (s *seam) draining(d nstance.Drain) {
	s.mu.Lock()
	key := fmt.Sprint(d.Instance, "/", d.Generation)
	first, seen := s.announced[key]
	if !seen || d.Deadline.Before(first) {
		s.announced[key] = d.Deadline
	}
	s.mu.Unlock()
	if seen && d.Deadline.After(first) {
		s.wrong("the agent of %s is told %s after %s", d.Instance, d.Deadline, first)
	}
}

// record reads what is durable, past all faults.
func (s *seam) record(id nstance.InstanceID) (storage.Instance, bool) {
	obj, err := s.store.Get(context.Background(), storage.InstanceKey("s1", web.Tenant, web.Group, id))
	if err != nil {
		return storage.Instance{}, false
	}
	var rec storage.Instance
	if err := json.Unmarshal(obj.Data, &rec); err != nil {
		s.wrong("record of %s: %v", id, err)
	}
	return rec, true
}

// machine returns the machine as it is.
func (s *seam) machine(id nstance.InstanceID) (nstance.Machine, bool) {
	for _, m := range s.cloud.Machines() {
		if m.ID == id {
			return m, true
		}
	}
	return nstance.Machine{}, false
}

// theCloud is the provider of one leader.
type theCloud struct{ *view }

var _ nstance.Provider = theCloud{}

func (c theCloud) Create(ctx context.Context, spec nstance.MachineSpec) (nstance.Machine, error) {
	if _, intended := c.record(spec.ID); !intended && !c.o.dead.Load() {
		c.wrong("%s is created without an intent", spec.ID)
	}
	return ask(ctx, c.view, "create machine", func(ctx context.Context) (nstance.Machine, error) {
		if _, exists := c.machine(spec.ID); exists && c.with != belated {
			c.wrong("%s is created although its machine exists: not every cloud would know", spec.ID)
		}
		m, err := c.cloud.Create(ctx, spec)
		if c.cloud.Existed(spec.ID) {
			c.mu.Lock()
			c.made[spec.ID] = true
			c.mu.Unlock()
		}
		return m, err
	})
}

func (c theCloud) Get(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
	return ask(ctx, c.view, "get machine", func(ctx context.Context) (nstance.Machine, error) { return c.cloud.Get(ctx, id) })
}

func (c theCloud) Delete(ctx context.Context, m nstance.Machine) error {
	if !c.o.dead.Load() {
		c.mayDelete(m.ID)
	}
	return c.do(ctx, "delete machine", func(ctx context.Context) error { return c.cloud.Delete(ctx, m) })
}

// mayDelete checks that the deletion is durably marked, and that a member that
// served was drained. One whose record and machine are both gone may be asked for
// again: a former leader's delete of the record may land late.
func (c theCloud) mayDelete(id nstance.InstanceID) {
	rec, ok := c.record(id)
	m, exists := c.machine(id)
	if !ok && !exists {
		return
	}
	if rec.Deleting == nil {
		c.wrong("%s is deleted without a durable mark", id)
	}
	c.w.mu.Lock()
	served, empty := c.w.served[id], c.w.empty[id]
	c.w.mu.Unlock()
	over := rec.Drain != nil && !time.Now().Before(rec.Drain.Deadline)
	if exists && !m.Status.Dead() && served && !empty && !over {
		c.wrong("%s is deleted without a drain", id)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deleted[id] = true
}

func (c theCloud) List(ctx context.Context, owner nstance.Owner) iter.Seq2[nstance.Machine, error] {
	return func(yield func(nstance.Machine, error) bool) {
		all, err := ask(ctx, c.view, "list machine", func(ctx context.Context) ([]nstance.Machine, error) {
			return whole(c.cloud.List(ctx, owner))
		})
		passOn(all, err, yield)
	}
}

var _ nstance.Balancer = theCloud{}

func (c theCloud) BalancerMembers(ctx context.Context, lb nstance.LoadBalancer) ([]string, error) {
	return ask(ctx, c.view, "list balancer", func(ctx context.Context) ([]string, error) { return c.cloud.BalancerMembers(ctx, lb) })
}

func (c theCloud) JoinBalancer(ctx context.Context, lb nstance.LoadBalancer, machines []nstance.Machine) error {
	return c.do(ctx, "join balancer", func(ctx context.Context) error { return c.cloud.JoinBalancer(ctx, lb, machines) })
}

func (c theCloud) LeaveBalancer(ctx context.Context, lb nstance.LoadBalancer, machines []nstance.Machine) error {
	return c.do(ctx, "leave balancer", func(ctx context.Context) error { return c.cloud.LeaveBalancer(ctx, lb, machines) })
}

// whole takes a listing in.
func whole[T any](listing iter.Seq2[T, error]) (all []T, err error) {
	for one, err := range listing {
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

// passOn hands a listing out again.
func passOn[T any](all []T, err error, yield func(T, error) bool) {
	for _, one := range all {
		if !yield(one, nil) {
			return
		}
	}
	if err != nil {
		var nothing T
		yield(nothing, err)
	}
}

// theStore is the store of one leader. Each answer takes its time.
type theStore struct{ *view }

const storeLatency = 5 * time.Millisecond

var _ storage.Store = theStore{}

// kind is the first part of a key, which names the kind of object.
func kind(key string) string {
	first, _, _ := strings.Cut(key, "/")
	return first
}

func (d theStore) Get(ctx context.Context, key string) (storage.Object, error) {
	return ask(ctx, d.view, "get "+kind(key), func(ctx context.Context) (storage.Object, error) {
		defer pause(ctx, storeLatency)
		return d.store.Get(ctx, key)
	})
}

func (d theStore) PutIfAbsent(ctx context.Context, key string, data []byte) (storage.Version, error) {
	return ask(ctx, d.view, "put_if_absent "+kind(key), func(ctx context.Context) (storage.Version, error) {
		defer pause(ctx, storeLatency)
		return d.store.PutIfAbsent(ctx, key, data)
	})
}

func (d theStore) PutIfMatch(ctx context.Context, key string, data []byte, have storage.Version) (storage.Version, error) {
	return ask(ctx, d.view, "put_if_match "+kind(key), func(ctx context.Context) (storage.Version, error) {
		defer pause(ctx, storeLatency)
		v, err := d.store.PutIfMatch(ctx, key, data, have)
		if err == nil && kind(key) == "instance" {
			d.written(key, data)
		}
		return v, err
	})
}

// written checks that no durable deadline is lengthened, nor a deletion taken
// back.
func (d theStore) written(key string, data []byte) {
	var rec storage.Instance
	if err := json.Unmarshal(data, &rec); err != nil {
		d.wrong("%s: %v", key, err)
	}
	d.mu.Lock()
	old := d.recorded[rec.ID]
	d.recorded[rec.ID] = rec
	d.mu.Unlock()
	if old.Drain != nil && rec.Drain != nil && rec.Drain.Deadline.After(old.Drain.Deadline) {
		d.wrong("the deadline of %s goes from %s to %s", rec.ID, old.Drain.Deadline, rec.Drain.Deadline)
	}
	if old.Deleting != nil && rec.Deleting == nil {
		d.wrong("the deletion of %s is taken back", rec.ID)
	}
}

func (d theStore) DeleteIfMatch(ctx context.Context, key string, v storage.Version) error {
	ref, err := storage.ParseInstanceKey(key)
	if m, exists := d.machine(ref.ID); err == nil && exists && !d.o.dead.Load() {
		d.wrong("the record of %s is deleted while its machine is %s", ref.ID, m.Status)
	}
	return d.do(ctx, "delete "+kind(key), func(ctx context.Context) error {
		defer pause(ctx, storeLatency)
		return d.store.DeleteIfMatch(ctx, key, v)
	})
}

func (d theStore) List(ctx context.Context, prefix, after string) iter.Seq2[storage.Entry, error] {
	return func(yield func(storage.Entry, error) bool) {
		all, err := ask(ctx, d.view, "list "+kind(prefix), func(ctx context.Context) ([]storage.Entry, error) {
			defer pause(ctx, storeLatency)
			return whole(d.store.List(ctx, prefix, after))
		})
		passOn(all, err, yield)
	}
}
