// Package balance keeps the members of load balancers as they should be: wanted
// members come from records, actual ones from the provider, and the difference is
// sent in batches. Nothing of it is durable.
//
// A [Keeper] owns that state. It asks its [Source] for members and never calls it
// while it holds its own lock, so a source may call a keeper under a lock.
package balance

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
)

const (
	// gatherWindow is how long changes are collected before load balancers are
	// called, so that a storm is a few batches.
	gatherWindow = 100 * time.Millisecond
	// firstRetry and lastRetry are the waits before another attempt at a load
	// balancer that failed.
	firstRetry = time.Second
	lastRetry  = time.Minute
	// maxConcurrent is how many load balancers are settled at once.
	maxConcurrent = 8
	// removedTimeout is how long members are withdrawn from a load balancer that
	// is not configured any more.
	removedTimeout = 5 * time.Minute
	// maxDeleted is how many deleted machines are still withdrawn from one load
	// balancer.
	maxDeleted = 1000
)

// A Target is a load balancer as a source is asked about it.
type Target struct {
	Name    string // as groups name it
	Removed bool   // it is not configured any more
}

// A Membership says where a member belongs with regard to one load balancer.
type Membership int

// The memberships.
const (
	Unchanged Membership = iota // in or out, as it is
	In
	Out
)

// A Member is one instance with regard to one load balancer.
type Member struct {
	Machine    nstance.Machine // with a ProviderID
	Membership Membership
	Frozen     bool // a freeze decides its membership
}

// A Source knows the members of a shard.
type Source interface {
	// Members returns the members that t may concern, or all members of the
	// shard.
	Members(t Target, all bool) []Member

	// Withdrawn tells that machines are in a load balancer no more.
	Withdrawn(machines []nstance.Machine)

	// Suspect tells that the provider does not know a machine.
	Suspect(id nstance.InstanceID)
}

// Options of a Keeper.
type Options struct {
	Check func() error // says whether the term still stands; asked before every change
	Now   func() time.Time
	Log   *slog.Logger
}

// A Keeper keeps load balancers up to date. Its methods may be called
// concurrently.
type Keeper struct {
	source Source
	o      Options
	wake   chan struct{} // has room for one

	mu sync.Mutex
	by map[string]*balancer
}

// A balancer is one load balancer and what is known of its members. The keeper's
// lock guards it.
type balancer struct {
	nstance.LoadBalancer
	members   map[string]bool            // by provider ID, as listed and changed since; nil: not known
	joining   map[string]bool            // a call that may make them members has no answer yet
	deleted   map[string]nstance.Machine // deleted while they may have been members
	removedAt time.Time                  // when it was taken out of the configuration; zero: it is configured

	dirty      bool // some of its members may have changed
	compareAll bool // every member of the shard is to be compared with it
	relist     bool // its members are to be listed again
	settling   bool

	attempts  int
	retryAt   time.Time
	lastError error // of the last attempt; nil: it succeeded
	failedAt  time.Time
}

func (b *balancer) target() Target { return Target{Name: b.Name, Removed: !b.removedAt.IsZero()} }

// New returns a keeper without load balancers. Run makes it work.
func New(source Source, o Options) *Keeper {
	return &Keeper{source: source, o: o, wake: make(chan struct{}, 1), by: map[string]*balancer{}}
}

// Configure replaces the load balancers. From one that is not among them any
// more members are withdrawn, for up to five minutes.
func (k *Keeper) Configure(lbs []nstance.LoadBalancer) {
	k.mu.Lock()
	defer k.mu.Unlock()
	wanted := map[string]nstance.LoadBalancer{}
	for _, lb := range lbs {
		wanted[lb.Name] = lb
	}
	for name, b := range k.by {
		if lb, ok := wanted[name]; ok && isSame(lb, b.LoadBalancer) {
			if !b.removedAt.IsZero() {
				b.removedAt = time.Time{}
				k.markAll(b)
			}
			delete(wanted, name)
			continue
		} else if ok { // the name stands for another one now
			delete(k.by, name)
			name = fmt.Sprintf("%s (was %s)", name, b.ID)
			k.by[name] = b
		}
		if b.removedAt.IsZero() {
			b.removedAt, b.retryAt = k.o.Now(), time.Time{}
			k.markAll(b)
		}
	}
	for name, lb := range wanted {
		b := &balancer{LoadBalancer: lb, deleted: k.forgetRemoved(lb)}
		k.by[name] = b
		k.markAll(b)
	}
}

// forgetRemoved forgets a load balancer that was removed and is configured again
// under another name, and returns the deleted machines that are still withdrawn
// from it.
func (k *Keeper) forgetRemoved(lb nstance.LoadBalancer) (deleted map[string]nstance.Machine) {
	for name, b := range k.by {
		if !b.removedAt.IsZero() && isSame(lb, b.LoadBalancer) {
			delete(k.by, name)
			deleted = b.deleted
		}
	}
	return deleted
}

func isSame(a, b nstance.LoadBalancer) bool { return a.ID == b.ID && string(a.Args) == string(b.Args) }

// Mark has those load balancers compared with their members that changed selects.
// It costs nothing where there are none.
func (k *Keeper) Mark(changed func(Target) bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, b := range k.by {
		if changed(b.target()) {
			b.dirty = true
			k.signal()
		}
	}
}

// MarkAll has those load balancers compared with every member of the shard that
// changed selects.
func (k *Keeper) MarkAll(changed func(Target) bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, b := range k.by {
		if changed(b.target()) {
			k.markAll(b)
		}
	}
}

// CompareAll compares every member with every load balancer, with relist after
// listing the members of each again.
func (k *Keeper) CompareAll(relist bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, b := range k.by {
		b.relist = b.relist || relist
		k.markAll(b)
	}
}

// Thaw does what a freeze has put off.
func (k *Keeper) Thaw() {
	k.mu.Lock()
	for _, b := range k.by {
		if !b.removedAt.IsZero() {
			b.removedAt = k.o.Now()
		}
	}
	k.mu.Unlock()
	k.CompareAll(false)
}

// markAll needs the lock, as signal does not.
func (k *Keeper) markAll(b *balancer) {
	b.dirty, b.compareAll = true, true
	k.signal()
}

func (k *Keeper) signal() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// Names returns the names of all load balancers, sorted.
func (k *Keeper) Names() (names []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for name := range k.by {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Attached returns the names of the load balancers that may send traffic to a
// machine, sorted. One whose members are not known counts if the machine's agent
// has registered. One that is not configured any more does not count.
func (k *Keeper) Attached(providerID string, registered bool) (names []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for name, b := range k.by {
		unknown := b.members == nil && registered
		if b.removedAt.IsZero() && (b.members[providerID] || b.joining[providerID] || unknown) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// WithdrawDeleted has a machine that is deleted while it may be a member withdrawn
// from the load balancers named.
func (k *Keeper) WithdrawDeleted(m nstance.Machine, names []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, name := range names {
		b := k.by[name]
		if b == nil {
			continue
		}
		if b.deleted == nil {
			b.deleted = map[string]nstance.Machine{}
		}
		if len(b.deleted) < maxDeleted {
			b.deleted[m.ProviderID] = m
		}
	}
}

// A Failure is a load balancer that is not up to date.
type Failure struct {
	Name  string
	Since time.Time
	Err   error
}

// Failures returns the load balancers whose last attempt failed, in no order.
func (k *Keeper) Failures() (out []Failure) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for name, b := range k.by {
		if b.lastError != nil {
			out = append(out, Failure{name, b.failedAt, b.lastError})
		}
	}
	return out
}

// Run keeps the members of load balancers as they should be until ctx ends, each
// load balancer by itself: one that does not answer delays no other.
func (k *Keeper) Run(ctx context.Context, p nstance.Balancer) {
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, maxConcurrent)
	next := time.Hour
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-k.wake:
			sleep.For(ctx, gatherWindow)
		case <-time.After(next):
		}
		var due []*balancer
		due, next = k.takeDue()
		for _, b := range due {
			wg.Go(func() {
				select {
				case slots <- struct{}{}:
					k.settle(ctx, p, b)
					<-slots
				case <-ctx.Done():
				}
			})
		}
	}
}

// takeDue takes those that are to be settled now, and says how long the others
// can wait.
func (k *Keeper) takeDue() (due []*balancer, next time.Duration) {
	detained := k.detained()
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.o.Now()
	next = time.Hour
	for name, b := range k.by {
		switch wait := b.retryAt.Sub(now); {
		case b.settling:
		case !b.removedAt.IsZero() && now.Sub(b.removedAt) > removedTimeout && !detained[b]:
			k.o.Log.Warn("machines may be left in a load balancer that is not configured any more", "load_balancer", b.ID, "err", b.lastError)
			delete(k.by, name)
		case !b.dirty:
		case wait > 0:
			next = min(next, wait)
		default:
			b.settling = true
			due = append(due, b)
		}
	}
	return due, next
}

// detained returns the removed load balancers in which a freeze keeps a member.
func (k *Keeper) detained() map[*balancer]bool {
	out := map[*balancer]bool{}
	for b, t := range k.removed() {
		for _, m := range k.source.Members(t, true) {
			k.mu.Lock()
			out[b] = out[b] || m.Frozen && m.Membership == Unchanged && (b.members == nil || b.members[m.Machine.ProviderID])
			k.mu.Unlock()
		}
	}
	return out
}

func (k *Keeper) removed() map[*balancer]Target {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := map[*balancer]Target{}
	for _, b := range k.by {
		if !b.removedAt.IsZero() {
			out[b] = b.target()
		}
	}
	return out
}

// settle brings one load balancer up to date, or records why it is not.
func (k *Keeper) settle(ctx context.Context, p nstance.Balancer, b *balancer) {
	var err error
	for again := true; again && err == nil && ctx.Err() == nil; {
		again, err = k.settleOnce(ctx, p, b)
	}
	detained := k.detained()
	k.mu.Lock()
	defer k.mu.Unlock()
	b.settling = false
	switch {
	case ctx.Err() != nil:
	case err != nil:
		k.recordFailure(b, err)
	default:
		b.attempts, b.retryAt, b.lastError = 0, time.Time{}, nil
		if !b.removedAt.IsZero() && !detained[b] {
			k.forget(b)
		}
	}
	k.signal() // for what has become dirty meanwhile, and the time of the next attempt
}

func (k *Keeper) recordFailure(b *balancer, err error) {
	now := k.o.Now()
	if b.lastError == nil {
		b.failedAt = now
	}
	if b.lastError == nil || b.lastError.Error() != err.Error() {
		k.o.Log.Warn("load balancer not up to date, will be tried again", "load_balancer", b.Name, "code", nstance.CodeOf(err), "err", err)
	}
	b.lastError, b.dirty, b.compareAll = err, true, true
	b.retryAt = now.Add(sleep.Backoff(b.attempts+1, firstRetry, lastRetry))
	b.attempts++
}

func (k *Keeper) forget(b *balancer) {
	for name, o := range k.by {
		if o == b {
			delete(k.by, name)
		}
	}
}

// settleOnce lists b's members if they are not known, and makes one round of
// changes. It reports whether there was another change meanwhile.
func (k *Keeper) settleOnce(ctx context.Context, p nstance.Balancer, b *balancer) (again bool, err error) {
	missing, err := k.list(ctx, p, b)
	if err != nil {
		return false, err
	}
	d := k.difference(b)
	if missing != nil {
		d.join = nil
	}
	err = errors.Join(
		k.inBatches(d.leave, func(some []nstance.Machine) error {
			err := p.LeaveBalancer(ctx, b.LoadBalancer, some)
			k.ended(b, some, false, err)
			return err
		}),
		k.inBatches(d.join, func(some []nstance.Machine) error {
			err := p.JoinBalancer(ctx, b.LoadBalancer, some)
			k.ended(b, some, true, err)
			return err
		}))
	k.mu.Lock()
	defer k.mu.Unlock()
	b.joining = nil
	if b.removedAt.IsZero() {
		err = errors.Join(missing, err)
	}
	return b.dirty, err
}

// list asks for the members of b, if they are not known. A load balancer that does
// not exist has no members, which is told apart from an error: no machine has to
// be withdrawn from it.
func (k *Keeper) list(ctx context.Context, p nstance.Balancer, b *balancer) (missing, err error) {
	k.mu.Lock()
	known := b.members != nil && !b.relist
	k.mu.Unlock()
	if known {
		return nil, nil
	}
	ids, err := p.BalancerMembers(ctx, b.LoadBalancer)
	if errors.Is(err, nstance.NotFound) {
		missing, err = err, nil
	}
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	b.relist = missing != nil // it may be created
	b.members = make(map[string]bool, len(ids))
	for _, id := range ids {
		b.members[id] = true
	}
	return missing, nil
}
