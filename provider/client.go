package provider

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/internal/validate"
)

// The operations, as Options.Observe and the messages of errors name them.
const (
	opCreate = "create"
	opGet    = "get"
	opList   = "list"
	opDelete = "delete"
)

// A Client is a provider in front of another one. It is safe for concurrent
// use. Every error that it returns carries a code from the closed set.
type Client struct {
	p      nstance.Provider
	o      Options
	slots  [slotKinds]chan struct{}
	budget *budget

	callTimeout atomic.Int64 // a time.Duration
	blocked     atomic.Pointer[error]

	mu       sync.Mutex
	oddWords map[string]bool // that were alarmed about, with what each is
}

var _ nstance.Provider = (*Client)(nil)

// New returns a client in front of p. It fails with Invalid when p is nil or an
// option is negative. A client owns no goroutine and needs no closing.
func New(p nstance.Provider, o *Options) (*Client, error) {
	if err := validate.Given("provider", "give the provider to call", p); err != nil {
		return nil, err
	}
	opt, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	c := &Client{p: p, o: opt, budget: newBudget(opt.Rate, opt.Burst)}
	for kind := range c.slots {
		c.slots[kind] = make(chan struct{}, opt.Width)
	}
	c.callTimeout.Store(int64(opt.Timeout))
	return c, nil
}

// Provider returns the provider behind c. Its abilities are in Abilities.
func (c *Client) Provider() nstance.Provider { return c.p }

// Reserve takes one create from the budget, or says when there may be one. The rate
// halves when creates are throttled and recovers while they are not. It does not
// block.
func (c *Client) Reserve(now time.Time) (ok bool, retryAt time.Time) { return c.budget.reserve(now) }

// Block has every call but the one for the account fail with Unavailable, saying why,
// before anything is sent; nil ends that. Calls under way go on.
func (c *Client) Block(why error) {
	if why == nil {
		c.blocked.Store(nil)
		return
	}
	c.blocked.Store(&why)
}

// Blocked returns the error of calls that begin now; nil: they are sent.
func (c *Client) Blocked() error {
	if why := c.blocked.Load(); why != nil {
		return nstance.Errorf(nstance.Unavailable, "nothing was sent: %w", *why)
	}
	return nil
}

// CallTimeout returns the timeout of each call that begins now.
func (c *Client) CallTimeout() time.Duration { return c.timeout() }

// Create implements [nstance.Provider]. It makes at most one call. A spec that
// cannot work is refused as Invalid, and a ctx that ends while waiting for a free
// slot is Unavailable: no call is made. A call without a definite answer in time
// is Ambiguous.
func (c *Client) Create(ctx context.Context, spec nstance.MachineSpec) (nstance.Machine, error) {
	anyHost := spec
	anyHost.HostLimit = 0 // which only the provider can judge
	if err := ValidateSpec(anyHost, c.o.MaxUserData); err != nil {
		return nstance.Machine{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout())
	defer cancel()
	release, err := c.acquire(ctx, opCreate)
	if err != nil {
		return nstance.Machine{}, about(opCreate, spec.ID, err)
	}
	defer release()
	start := time.Now()
	m, err := c.p.Create(ctx, spec)
	if err == nil && (m.ID != spec.ID || m.Owner != spec.Owner) {
		err = nstance.Errorf(nstance.Internal, "the provider answered with machine %.64q of %+v", m.ID, m.Owner)
	}
	if err != nil {
		m, err = nstance.Machine{}, classifyCreate(ctx, err)
	}
	m = c.known(m)
	c.observe(opCreate, err, time.Since(start))
	if errors.Is(err, nstance.Throttled) {
		c.SlowDown()
	}
	return m, about(opCreate, spec.ID, err)
}

// Get implements [nstance.Provider], and repeats a throttled or unanswered call as
// often as the options permit.
func (c *Client) Get(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
	if _, err := nstance.ParseInstanceID(string(id)); err != nil {
		return nstance.Machine{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout())
	defer cancel()
	for try := 0; ; try++ {
		m, err := c.get(ctx, id)
		if err == nil || !c.waitToRepeat(ctx, opGet, err, try) {
			return m, about(opGet, id, err)
		}
	}
}

func (c *Client) get(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
	release, err := c.acquire(ctx, opGet)
	if err != nil {
		return nstance.Machine{}, err
	}
	defer release()
	start := time.Now()
	m, err := c.p.Get(ctx, id)
	if err == nil && m.ID != id {
		err = nstance.Errorf(nstance.Internal, "the provider answered with machine %.64q", m.ID)
	}
	if err != nil {
		m, err = nstance.Machine{}, c.knownEnd(id, classify(err))
	}
	c.observe(opGet, err, time.Since(start))
	return c.known(m), err
}

// maxOddWords bounds how many words are remembered of a provider that makes them up.
const maxOddWords = 16

// known returns m with a status and a cause of the closed sets: any other word says nothing of
// whether the machine runs, and is the cloud's own about its end.
func (c *Client) known(m nstance.Machine) nstance.Machine {
	if m.ID == "" { // an error
		return m
	}
	if m.Status != "" && !m.Status.Known() {
		c.alarmOdd(m.ID, "status", string(m.Status))
		m.Status = ""
	}
	m.Status = cmp.Or(m.Status, nstance.StatusUnknown)
	if m.Cause != "" && !m.Cause.Known() {
		c.alarmOdd(m.ID, "cause", string(m.Cause))
		m.Cause, m.CauseText = "", cmp.Or(m.CauseText, string(m.Cause))
	}
	return m
}

// knownEnd does the same for an error about a machine that is gone.
func (c *Client) knownEnd(id nstance.InstanceID, err error) error {
	e, ok := errors.AsType[*nstance.Error](err)
	if !ok || e.Cause == "" || e.Cause.Known() {
		return err
	}
	c.alarmOdd(id, "cause", string(e.Cause))
	return &nstance.Error{Code: e.Code, Msg: err.Error(), Words: cmp.Or(e.Words, string(e.Cause)), Err: err}
}

// alarmOdd raises an alarm about a word of the provider that is in no closed set, once for each.
func (c *Client) alarmOdd(id nstance.InstanceID, what, word string) {
	c.mu.Lock()
	fresh := !c.oddWords[what+" "+word] && len(c.oddWords) < maxOddWords
	if fresh {
		if c.oddWords == nil {
			c.oddWords = map[string]bool{}
		}
		c.oddWords[what+" "+word] = true
	}
	c.mu.Unlock()
	if fresh {
		c.o.Log.Error("word outside of the closed set", "instance_id", id, what, clip.Quote(word))
		c.o.Alarm(fmt.Sprintf("the provider says that the %s of machine %.64s is %.40q, which is none: it counts as unknown", what, id, word))
	}
}

// Delete implements [nstance.Provider] with at most one call.
func (c *Client) Delete(ctx context.Context, m nstance.Machine) error {
	if _, err := nstance.ParseInstanceID(string(m.ID)); err != nil {
		return err
	}
	if err := validateOwner(m.Owner); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout())
	defer cancel()
	release, err := c.acquire(ctx, opDelete)
	if err != nil {
		return about(opDelete, m.ID, err)
	}
	defer release()
	start := time.Now()
	err = c.p.Delete(ctx, m)
	if err != nil {
		err = c.knownEnd(m.ID, classify(err))
	}
	c.observe(opDelete, err, time.Since(start))
	return about(opDelete, m.ID, err)
}

// Calls of one kind never wait for those of another: each has slots of its own.
const (
	urgentSlots = iota
	ordinarySlots
	deleteSlots
	slotKinds
)

type urgentKey struct{}

// Urgent marks the calls under a context as urgent: they do not wait for calls
// that are not, nor for deletes.
func Urgent(ctx context.Context) context.Context { return context.WithValue(ctx, urgentKey{}, true) }

// slotsFor returns the slots that an operation takes one of.
func (c *Client) slotsFor(ctx context.Context, op string) chan struct{} {
	switch {
	case op == opDelete:
		return c.slots[deleteSlots]
	case ctx.Value(urgentKey{}) != nil:
		return c.slots[urgentSlots]
	}
	return c.slots[ordinarySlots]
}

// acquire waits for a slot, and returns what gives it back. Its error means that
// nothing was sent.
func (c *Client) acquire(ctx context.Context, op string) (release func(), err error) {
	if err := c.Blocked(); err != nil && op != opAccount {
		return nil, err
	}
	slots := c.slotsFor(ctx, op)
	if ctx.Err() == nil {
		select {
		case slots <- struct{}{}:
			return func() { <-slots }, nil
		case <-ctx.Done():
		}
	}
	return nil, nstance.Errorf(nstance.Unavailable, "nothing was sent: %w", context.Cause(ctx))
}

func (c *Client) observe(op string, err error, d time.Duration) {
	c.o.Observe(op, nstance.CodeOf(err), d)
}

// SlowDown records that a create was throttled, as one may be after it was accepted. Create
// does it for its own answers. It does not block.
func (c *Client) SlowDown() {
	if rate, fell := c.budget.recordThrottled(time.Now()); fell {
		c.o.Log.Warn("the cloud throttles creates: create rate halved, it recovers by itself", "per_second", rate)
	}
}

// The waits between repeats of a read: doubling, with full jitter, so that calls
// that were throttled together are not repeated together.
const (
	firstBackoff = 200 * time.Millisecond
	maxBackoff   = 5 * time.Second
)

// waitToRepeat waits and reports whether a read that ended with err should be
// repeated.
func (c *Client) waitToRepeat(ctx context.Context, op string, err error, try int) bool {
	if try >= c.o.Retries || !errors.Is(err, nstance.Throttled) && !errors.Is(err, nstance.Unavailable) {
		return false
	}
	if !sleep.For(ctx, rand.N(sleep.Backoff(try+1, firstBackoff, maxBackoff))+time.Millisecond) {
		return false
	}
	c.o.Log.Debug("repeating read", "op", op, "code", nstance.CodeOf(err), "err", err)
	return true
}

// about adds the operation and the instance to err. The code stays.
func about(op string, id nstance.InstanceID, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s: %w", op, id, err)
}
