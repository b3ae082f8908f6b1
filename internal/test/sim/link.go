package sim

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
)

// link lies between one server process and everything outside it.
type link struct {
	mu     sync.Mutex
	rng    *rand.Rand
	dead   bool          // the process has crashed: no call gets in or out
	cut    bool          // no call gets through
	frozen chan struct{} // closed when the process resumes; nil while it runs
	lose   float64       // share of answers lost after the effect
	refuse float64       // share of calls that are throttled
	repeat float64       // share of lost answers to writes that the client library repeats
	slow   time.Duration // longest latency
}

func newLink(seed uint64) *link {
	return &link{rng: rand.New(rand.NewPCG(seed, 7)), repeat: 0.5, slow: 40 * time.Millisecond}
}

func (l *link) set(change func(*link)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(l)
}

// freeze stops every call that is sent from now on, until thaw is called. A link that is
// frozen or dead already is unchanged.
func (l *link) freeze() (thaw func()) {
	frozen := make(chan struct{})
	l.set(func(l *link) {
		if l.frozen == nil && !l.dead {
			l.frozen = frozen
		}
	})
	return func() {
		l.set(func(l *link) {
			if l.frozen == frozen {
				close(frozen)
				l.frozen = nil
			}
		})
	}
}

// broken reports whether no call gets through now.
func (l *link) broken() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dead || l.cut || l.frozen != nil
}

// verdict is the outcome of one call.
type verdict struct {
	dead, cut, lost bool
	throttled       bool
	frozen          chan struct{}
	before, after   time.Duration
}

func (l *link) decide() verdict {
	l.mu.Lock()
	defer l.mu.Unlock()
	return verdict{
		dead: l.dead, cut: l.cut, frozen: l.frozen, lost: l.rng.Float64() < l.lose, throttled: l.rng.Float64() < l.refuse,
		before: time.Duration(l.rng.Int64N(int64(l.slow) + 1)), after: time.Duration(l.rng.Int64N(int64(l.slow) + 1)),
	}
}

// carry executes one call through the link. The effect happens at most once, also when
// carry fails.
func (l *link) carry(ctx context.Context, deed func()) error {
	v := l.decide()
	if !sleep.For(ctx, v.before) {
		return lost(ctx, nstance.Unavailable)
	}
	if v = l.thawed(v); v.dead || v.cut {
		sleep.For(ctx, 2*time.Second)
		return lost(ctx, nstance.Unavailable)
	}
	if v.throttled {
		return nstance.Errorf(nstance.Throttled, "slow down")
	}
	deed()
	if !sleep.For(ctx, v.after) || l.decide().dead {
		return lost(ctx, nstance.Ambiguous)
	}
	if v.lost {
		sleep.For(ctx, time.Second)
		return lost(ctx, nstance.Ambiguous)
	}
	return nil
}

// thawed waits until the process is not frozen, regardless of the caller's deadline: a
// frozen process cannot give up. Its pending calls continue then.
func (l *link) thawed(v verdict) verdict {
	for v.frozen != nil {
		<-v.frozen
		v = l.decide()
	}
	return v
}

func lost(ctx context.Context, code nstance.Code) error {
	if ctx.Err() != nil {
		return nstance.Errorf(code, "no answer: %w", ctx.Err())
	}
	return nstance.Errorf(code, "no answer")
}

// repeats reports whether the client library repeats a write whose answer was lost.
func (l *link) repeats() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.dead && l.rng.Float64() < l.repeat
}

// next waits for the next tick and returns false when ctx ends first.
func next(ctx context.Context, tick *time.Ticker) bool {
	select {
	case <-ctx.Done():
		return false
	case <-tick.C:
		return true
	}
}
