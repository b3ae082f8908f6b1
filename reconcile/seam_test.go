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
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/storage"
)

// A strike is the fault at the call that a seam aims at.
type strike string

// The strikes. Each but lost and paused kills the leader at that call: its later calls
// reach neither store nor cloud, and its events are dropped.
const (
	none    strike = ""
	before  strike = "killed before it"
	after   strike = "killed after it"
	blinded strike = "killed after it, and the next leader's first reads of the cloud fail"
	lost    strike = "its answer lost"
	paused  strike = "its term ended, unknown to the leader for a second"
	late    strike = "killed before it, and it lands 3 s later"
	belated strike = "killed before it, and it lands 45 s later"
)

// electionDelay is the time until the next leader.
const electionDelay = time.Second

// A label names one call of a story: operation, kind of object, and its number.
type label struct {
	what string // such as "put_if_match instance" or "create machine"
	nth  int
}

func (l label) String() string { return fmt.Sprintf("%s #%d", l.what, l.nth) }

// mutates reports whether the call changes anything.
func (l label) mutates() bool {
	return l.what == "join balancer" || l.what == "leave balancer" || strings.HasPrefix(l.what, "put") || strings.HasPrefix(l.what, "delete") || strings.HasPrefix(l.what, "create") ||
		strings.HasPrefix(l.what, "park") || strings.HasPrefix(l.what, "wake")
}

// A seam lies between the leaders and the outside, store and cloud. It numbers the
// calls, strikes one of them, and checks the rules for each leader.
type seam struct {
	w     *world
	store storage.Store
	cloud outside

	aim       label
	with      strike
	snapshots time.Duration // start of a term to its first snapshot
	balancers []nstance.LoadBalancer

	wg    sync.WaitGroup  // late calls and ending terms
	ended chan *leaderEnv // ended leaders, read by the goroutine that starts the next one

	mu         sync.Mutex
	current    *view // of the last leader
	armed      bool
	struck     bool
	blind      *leaderEnv // the leader whose first reads fail
	looks      map[string]bool
	counts     map[string]int
	calls      []label
	violations []string
	made       map[nstance.InstanceID]bool
	deleted    map[nstance.InstanceID]bool
	recorded   map[nstance.InstanceID]records.Instance // as last written
	announced  map[string]time.Time                    // deadlines that agents saw, by instance and generation
}

func newSeam(w *world, aim label, with strike) *seam {
	s := &seam{
		w: w, store: w.store, cloud: w.outside, aim: aim, with: with, snapshots: time.Hour, ended: make(chan *leaderEnv, 1),
		looks: map[string]bool{}, counts: map[string]int{}, made: map[nstance.InstanceID]bool{},
		deleted: map[nstance.InstanceID]bool{}, recorded: map[nstance.InstanceID]records.Instance{}, announced: map[string]time.Time{},
	}
	w.wrap, w.watch = s.wrap, s
	return s
}

// A view is the outside of one leader.
type view struct {
	*seam
	o    *leaderEnv
	over time.Time // when its term ended without a kill; guarded by the seam's lock
}

func (s *seam) wrap(o *leaderEnv) {
	v := &view{seam: s, o: o}
	o.options = func(opts *reconcile.Options) {
		opts.Width = 8                    // fewer idle goroutines
		opts.Snapshots = 10 * s.snapshots // the first one comes after a tenth
		opts.Balancers = s.balancers
	}
	o.provider, o.store = leaderCloud{v}, leaderStore{v}
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

// startNumbering starts the numbering.
func (s *seam) startNumbering() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.armed, s.calls, s.counts = true, nil, map[string]int{}
}

func (s *seam) violation(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.violations = append(s.violations, time.Now().UTC().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
}

// number numbers a call and returns its strike.
func (v *view) number(what string) (label, strike) {
	s := v.seam
	s.mu.Lock()
	defer s.mu.Unlock()
	l := label{what: what}
	if !v.over.IsZero() && time.Now().After(v.over) && l.mutates() {
		s.violations = append(s.violations, "a leader after its term's end called "+what)
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

// readThrough passes a call with a result through the seam. The result of a late call is
// dropped.
func readThrough[T any](ctx context.Context, v *view, what string, call func(context.Context) (T, error)) (T, error) {
	answers := make(chan T, 1)
	err := v.callThrough(ctx, what, func(ctx context.Context) error {
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

// callThrough passes a call without a result through the seam.
func (v *view) callThrough(ctx context.Context, what string, effect func(context.Context) error) error {
	if v.o.dead.Load() {
		return errDead
	}
	l, with := v.number(what)
	switch with {
	case before:
		v.kill()
	case after, blinded:
		_ = effect(context.WithoutCancel(ctx))
		v.kill()
	case late:
		v.kill()
		v.executeLate(3*time.Second, effect)
	case belated:
		v.kill()
		v.executeLate(45*time.Second, effect)
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
		return errDead // executed, but the caller is dead
	}
	return err
}

var errDead = nstance.Errorf(nstance.Unavailable, "this process is dead")

// lostAnswer is the error for a lost answer. Reads of the cloud fail with a code that no
// client repeats.
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
	v.hasEnded()
}

// pause ends a leader's term while it runs: its check fails at once, its context ends
// late.
func (v *view) pause() {
	v.mu.Lock()
	v.over = time.Now()
	v.mu.Unlock()
	v.wg.Go(func() {
		<-time.After(2 * electionDelay)
		v.o.cancel()
	})
	v.hasEnded()
}

func (v *view) hasEnded() {
	select {
	case v.ended <- v.o:
	default:
	}
}

// executeLate executes a call that was in flight for d.
func (v *view) executeLate(d time.Duration, effect func(context.Context) error) {
	v.wg.Go(func() {
		<-time.After(d)
		_ = effect(v.w.ctx)
	})
}

// acked checks that a notice or its withdrawal is acknowledged only after its
// consequence is durable.
func (s *seam) acked(id nstance.InstanceID, n nstance.Notice) {
	rec, ok := s.record(id)
	if !ok || rec.Deleting != nil || n.Cancelled && rec.Reclaims > 1 {
		return
	}
	named := rec.Drain != nil && slices.ContainsFunc(rec.Drain.Causes, func(c nstance.Cause) bool { return c.EventID == n.EventID })
	if named == n.Cancelled {
		s.violation("notice %s (withdrawn: %v) was acknowledged before its consequence was durable", n.EventID, n.Cancelled)
	}
}

// draining checks that the deadline that agents receive is not extended.
func (s *seam) draining(d nstance.Drain) {
	s.mu.Lock()
	key := fmt.Sprint(d.Instance, "/", d.Generation)
	first, seen := s.announced[key]
	if !seen || d.Deadline.Before(first) {
		s.announced[key] = d.Deadline
	}
	s.mu.Unlock()
	if seen && d.Deadline.After(first) {
		s.violation("the agent of %s received deadline %s after %s", d.Instance, d.Deadline, first)
	}
}

// record reads the durable record, bypassing all faults.
func (s *seam) record(id nstance.InstanceID) (records.Instance, bool) {
	obj, err := s.store.Get(context.Background(), layout.InstanceKey("s1", web.Tenant, web.Group, id))
	if err != nil {
		return records.Instance{}, false
	}
	var rec records.Instance
	if err := json.Unmarshal(obj.Data, &rec); err != nil {
		s.violation("record of %s: %v", id, err)
	}
	return rec, true
}

// machine returns the true machine.
func (s *seam) machine(id nstance.InstanceID) (nstance.Machine, bool) {
	for _, m := range s.cloud.Machines() {
		if m.ID == id {
			return m, true
		}
	}
	return nstance.Machine{}, false
}

// leaderCloud is the provider of one leader.
type leaderCloud struct{ *view }

var _ nstance.Provider = leaderCloud{}

func (c leaderCloud) Create(ctx context.Context, spec nstance.MachineSpec) (nstance.Machine, error) {
	if _, intended := c.record(spec.ID); !intended && !c.o.dead.Load() {
		c.violation("%s is created without an intent", spec.ID)
	}
	return readThrough(ctx, c.view, "create machine", func(ctx context.Context) (nstance.Machine, error) {
		if _, exists := c.machine(spec.ID); exists && c.with != belated {
			c.violation("%s is created although its machine exists: not every cloud detects that", spec.ID)
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

func (c leaderCloud) Get(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
	return readThrough(ctx, c.view, "get machine", func(ctx context.Context) (nstance.Machine, error) { return c.cloud.Get(ctx, id) })
}

func (c leaderCloud) Delete(ctx context.Context, m nstance.Machine) error {
	if !c.o.dead.Load() {
		c.checkDelete(m.ID)
	}
	return c.callThrough(ctx, "delete machine", func(ctx context.Context) error { return c.cloud.Delete(ctx, m) })
}

// checkDelete checks that the deletion is durably marked, and that a member that was ready
// was drained. A delete may be repeated once record and machine are both gone: a former
// leader's delete of the record may land late.
func (c leaderCloud) checkDelete(id nstance.InstanceID) {
	rec, ok := c.record(id)
	m, exists := c.machine(id)
	if !ok && !exists {
		return
	}
	if rec.Deleting == nil && (rec.FailedLaunch == nil || rec.Registered()) {
		c.violation("%s is deleted without a durable mark", id)
	}
	c.w.mu.Lock()
	served, empty := c.w.wasHealthy[id], c.w.drained[id]
	c.w.mu.Unlock()
	over := rec.Drain != nil && !time.Now().Before(rec.Drain.Deadline)
	if exists && !m.Status.Dead() && served && !empty && !over {
		c.violation("%s is deleted without a drain", id)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deleted[id] = true
}

func (c leaderCloud) List(ctx context.Context, owner nstance.Owner) iter.Seq2[nstance.Machine, error] {
	return func(yield func(nstance.Machine, error) bool) {
		all, err := readThrough(ctx, c.view, "list machine", func(ctx context.Context) ([]nstance.Machine, error) {
			return collect(c.cloud.List(ctx, owner))
		})
		replay(all, err, yield)
	}
}

var _ nstance.Parker = leaderCloud{}

func (c leaderCloud) ParkModes() []nstance.ParkMode {
	return []nstance.ParkMode{nstance.ParkStopped, nstance.ParkHibernated}
}

func (c leaderCloud) Park(ctx context.Context, m nstance.Machine, mode nstance.ParkMode) error {
	c.checkPhase(m.ID, nstance.Parking)
	return c.callThrough(ctx, "park machine", func(ctx context.Context) error { return c.cloud.(nstance.Parker).Park(ctx, m, mode) })
}

func (c leaderCloud) Wake(ctx context.Context, m nstance.Machine) error {
	c.checkPhase(m.ID, nstance.Waking)
	return c.callThrough(ctx, "wake machine", func(ctx context.Context) error { return c.cloud.(nstance.Parker).Wake(ctx, m) })
}

// checkPhase checks that a machine is parked or woken only after the durable mark for it.
func (c leaderCloud) checkPhase(id nstance.InstanceID, phase nstance.State) {
	rec, ok := c.record(id)
	if !c.o.dead.Load() && (!ok || rec.Standby == nil || rec.Standby.Phase != phase) {
		c.violation("%s is asked to be %s without a durable mark", id, phase)
	}
}

var _ nstance.Balancer = leaderCloud{}

func (c leaderCloud) BalancerMembers(ctx context.Context, lb nstance.LoadBalancer) ([]string, error) {
	return readThrough(ctx, c.view, "list balancer", func(ctx context.Context) ([]string, error) { return c.cloud.BalancerMembers(ctx, lb) })
}

func (c leaderCloud) JoinBalancer(ctx context.Context, lb nstance.LoadBalancer, machines []nstance.Machine) error {
	return c.callThrough(ctx, "join balancer", func(ctx context.Context) error { return c.cloud.JoinBalancer(ctx, lb, machines) })
}

func (c leaderCloud) LeaveBalancer(ctx context.Context, lb nstance.LoadBalancer, machines []nstance.Machine) error {
	return c.callThrough(ctx, "leave balancer", func(ctx context.Context) error { return c.cloud.LeaveBalancer(ctx, lb, machines) })
}

// collect collects a listing.
func collect[T any](listing iter.Seq2[T, error]) (all []T, err error) {
	for one, err := range listing {
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

// replay replays a listing.
func replay[T any](all []T, err error, yield func(T, error) bool) {
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

// leaderStore is the store of one leader, with latency.
type leaderStore struct{ *view }

const storeLatency = 5 * time.Millisecond

var _ storage.Store = leaderStore{}

// kind is the first part of a key: the kind of object.
func kind(key string) string {
	first, _, _ := strings.Cut(key, "/")
	return first
}

func (d leaderStore) Get(ctx context.Context, key string) (storage.Object, error) {
	return readThrough(ctx, d.view, "get "+kind(key), func(ctx context.Context) (storage.Object, error) {
		defer pause(ctx, storeLatency)
		return d.store.Get(ctx, key)
	})
}

func (d leaderStore) PutIfAbsent(ctx context.Context, key string, data []byte) (storage.Version, error) {
	return readThrough(ctx, d.view, "put_if_absent "+kind(key), func(ctx context.Context) (storage.Version, error) {
		defer pause(ctx, storeLatency)
		return d.store.PutIfAbsent(ctx, key, data)
	})
}

func (d leaderStore) PutIfMatch(ctx context.Context, key string, data []byte, have storage.Version) (storage.Version, error) {
	return readThrough(ctx, d.view, "put_if_match "+kind(key), func(ctx context.Context) (storage.Version, error) {
		defer pause(ctx, storeLatency)
		v, err := d.store.PutIfMatch(ctx, key, data, have)
		if err == nil && kind(key) == "instance" {
			d.checkWrite(key, data)
		}
		return v, err
	})
}

// checkWrite checks that no durable deadline is extended and no deletion is reverted.
func (d leaderStore) checkWrite(key string, data []byte) {
	var rec records.Instance
	if err := json.Unmarshal(data, &rec); err != nil {
		d.violation("%s: %v", key, err)
	}
	d.mu.Lock()
	old := d.recorded[rec.ID]
	d.recorded[rec.ID] = rec
	d.mu.Unlock()
	if old.Drain != nil && rec.Drain != nil && rec.Drain.Deadline.After(old.Drain.Deadline) {
		d.violation("the deadline of %s is extended from %s to %s", rec.ID, old.Drain.Deadline, rec.Drain.Deadline)
	}
	if old.Deleting != nil && rec.Deleting == nil {
		d.violation("the deletion of %s is reverted", rec.ID)
	}
}

func (d leaderStore) DeleteIfMatch(ctx context.Context, key string, v storage.Version) error {
	ref, err := records.ParseInstanceKey(key)
	if m, exists := d.machine(ref.ID); err == nil && exists && !d.o.dead.Load() {
		d.violation("the record of %s is deleted while its machine is %s", ref.ID, m.Status)
	}
	return d.callThrough(ctx, "delete "+kind(key), func(ctx context.Context) error {
		defer pause(ctx, storeLatency)
		return d.store.DeleteIfMatch(ctx, key, v)
	})
}

func (d leaderStore) List(ctx context.Context, prefix, after string) iter.Seq2[storage.Entry, error] {
	return func(yield func(storage.Entry, error) bool) {
		all, err := readThrough(ctx, d.view, "list "+kind(prefix), func(ctx context.Context) ([]storage.Entry, error) {
			defer pause(ctx, storeLatency)
			return collect(d.store.List(ctx, prefix, after))
		})
		replay(all, err, yield)
	}
}
