package nodedrain

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/client-go/util/flowcontrol"
)

// The requests a second that are computed from the number of nodes.
const (
	minQPS = 100
	maxQPS = 500
)

// A budget bounds the rate of requests.
type budget struct {
	limiter *rate.Limiter
	fixed   bool
}

var _ flowcontrol.RateLimiter = (*budget)(nil)

func newBudget(qps float64) *budget {
	b := &budget{fixed: qps > 0}
	if !b.fixed {
		qps = minQPS
	}
	b.limiter = rate.NewLimiter(rate.Limit(qps), max(1, int(qps)))
	return b
}

// resize fits the rate to a fleet: half of 250 nodes with 20 pods each take 10 s, which
// matters where machines go within 30 s. Evictions and their events are most requests.
func (b *budget) resize(nodes int) {
	if b.fixed {
		return
	}
	qps := min(max(2*nodes, minQPS), maxQPS)
	b.limiter.SetLimit(rate.Limit(qps))
	b.limiter.SetBurst(qps)
}

func (b *budget) TryAccept() bool                { return b.limiter.Allow() }
func (b *budget) Accept()                        { _ = b.limiter.Wait(context.Background()) }
func (b *budget) Wait(ctx context.Context) error { return b.limiter.Wait(ctx) }
func (b *budget) Stop()                          {}
func (b *budget) QPS() float32                   { return float32(b.limiter.Limit()) }

// pollInterval is how often each of the given number of drains lists its pods: all
// of them use a quarter of the budget.
func (b *budget) pollInterval(drains int) time.Duration {
	each := time.Duration(4 * float64(drains) / float64(b.limiter.Limit()) * float64(time.Second))
	return min(max(each, 500*time.Millisecond), 5*time.Second)
}

// slots bound the requests in flight. Those of the earliest deadline go first.
type slots struct {
	mu      sync.Mutex
	free    int
	waiting waitingCalls
}

func newSlots(n int) *slots { return &slots{free: n} }

// do sends one request, whose time begins when there is a slot for it.
func (s *slots) do(ctx context.Context, deadline time.Time, send func(context.Context) error) error {
	return s.hold(ctx, deadline, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		return send(ctx)
	})
}

// hold does something in a slot.
func (s *slots) hold(ctx context.Context, deadline time.Time, do func(context.Context) error) error {
	if err := s.acquire(ctx, deadline); err != nil {
		return err
	}
	defer s.release()
	return do(ctx)
}

func (s *slots) acquire(ctx context.Context, deadline time.Time) error {
	s.mu.Lock()
	if s.free > 0 {
		s.free--
		s.mu.Unlock()
		return nil
	}
	w := &waitingCall{deadline: deadline, granted: make(chan struct{})}
	heap.Push(&s.waiting, w)
	s.mu.Unlock()
	select {
	case <-w.granted:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	queued := w.index >= 0
	if queued {
		heap.Remove(&s.waiting, w.index)
	}
	s.mu.Unlock()
	if !queued { // granted meanwhile
		s.release()
	}
	return context.Cause(ctx)
}

func (s *slots) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) == 0 {
		s.free++
		return
	}
	close(heap.Pop(&s.waiting).(*waitingCall).granted)
}

type waitingCall struct {
	deadline time.Time
	granted  chan struct{}
	index    int // in the heap; -1 once it has left
}

type waitingCalls []*waitingCall

func (h waitingCalls) Len() int           { return len(h) }
func (h waitingCalls) Less(i, j int) bool { return h[i].deadline.Before(h[j].deadline) }
func (h waitingCalls) Swap(i, j int)      { h[i], h[j] = h[j], h[i]; h[i].index, h[j].index = i, j }

func (h *waitingCalls) Push(x any) {
	w := x.(*waitingCall)
	w.index = len(*h)
	*h = append(*h, w)
}

func (h *waitingCalls) Pop() any {
	old := *h
	w := old[len(old)-1]
	w.index = -1
	*h = old[:len(old)-1]
	return w
}
