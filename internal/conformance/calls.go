package conformance

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
)

const (
	maxAnswerBytes = 300
	maxKeptCalls   = 8
	maxYields      = 20_000
	contextGrace   = time.Second // for a call whose context has ended
)

// None is the answer of a call that returns only an error.
type None struct{}

func (None) String() string { return "nil" }

// Calls records the calls of one subtest. It is safe for concurrent use.
type Calls struct {
	t   testing.TB
	run *Run

	mu     sync.Mutex
	recent []answeredCall
}

type answeredCall struct {
	call, answer string
	times        int
}

func (a answeredCall) String() string {
	if strings.HasPrefix(a.answer, a.call+" ") { // an error of this package, which names the call
		return a.answer
	}
	if a.times == 1 {
		return a.call + " answered " + a.answer
	}
	return fmt.Sprintf("%s answered %s %d times", a.call, a.answer, a.times)
}

// Run returns the run that the subtest belongs to.
func (c *Calls) Run() *Run { return c.run }

// Record notes what a call answered.
func (c *Calls) Record(call string, answer any, err error) {
	text := fmt.Sprint(answer)
	if err != nil {
		text = err.Error()
	}
	if err != nil && !strings.HasPrefix(text, call+" ") {
		text = fmt.Sprintf("%s (%s)", nstance.CodeOf(err), text)
	}
	text = clip.Text(text, maxAnswerBytes)
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.recent); n > 0 && c.recent[n-1].call == call && c.recent[n-1].answer == text {
		c.recent[n-1].times++
		return
	}
	c.recent = append(c.recent, answeredCall{call, text, 1})
	c.recent = c.recent[max(0, len(c.recent)-maxKeptCalls):]
}

// Last returns the last call with its answer in words.
func (c *Calls) Last() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.recent) == 0 {
		return "nothing was called"
	}
	return c.recent[len(c.recent)-1].String()
}

func (c *Calls) logIfFailed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.t.Failed() {
		return
	}
	c.run.mu.Lock()
	c.run.failed = true
	c.run.mu.Unlock()
	if len(c.recent) == 0 {
		return
	}
	var b strings.Builder
	for _, a := range c.recent {
		b.WriteString("\n\t" + a.String())
	}
	c.t.Logf("the calls before the failure:%s", b.String())
}

type answer[T any] struct {
	value T
	err   error
}

// Call runs do within the limit of the run. A call that does not return, returns only
// because the limit has ended its context, or panics is an Internal error with its name.
func Call[T any](ctx context.Context, c *Calls, name string, do func(context.Context) (T, error)) (T, error) {
	limit := c.run.Limit()
	if limit <= 0 {
		var zero T
		return zero, nstance.Errorf(nstance.Internal, "%s was not called: the time of this run is used up", name)
	}
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	done := make(chan answer[T], 1)
	began := time.Now()
	go func() {
		var a answer[T]
		defer func() { done <- a }()
		defer recovered(name, &a.err)
		a.value, a.err = do(bounded)
	}()
	timeout := time.NewTimer(limit + contextGrace)
	defer timeout.Stop()
	var a answer[T]
	select {
	case a = <-done:
		if bounded.Err() != nil && ctx.Err() == nil && a.err != nil {
			a.err = nstance.Errorf(nstance.Internal, "%s gave no answer within %s: %w", name, limit, a.err)
			c.run.Waste(time.Since(began))
		}
	case <-timeout.C:
		a.err = hangs(name, limit)
		c.run.Waste(time.Since(began))
	}
	c.Record(name, a.value, a.err)
	return a.value, a.err
}

func hangs(name string, limit time.Duration) error {
	return nstance.Errorf(nstance.Internal, "%s hangs: it has not returned after %s, and ignores the end of its context", name, limit)
}

func recovered(name string, err *error) {
	if p := recover(); p != nil {
		*err = nstance.Errorf(nstance.Internal, "%s panics: %v\n%s", name, p, debug.Stack())
	}
}

// Sequence returns what list yields, with each step within the limit of the run. The
// body of the loop runs while list waits in its yield, as in a loop over list itself. A
// step that does not return ends the sequence with an Internal error. A sequence that
// goes on after its loop was left fails the test.
func Sequence[T any](ctx context.Context, c *Calls, name string, list func(context.Context) iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		s := &stepper[T]{items: make(chan answer[T]), resume: make(chan bool), ended: make(chan error, 1), quit: make(chan struct{})}
		defer close(s.quit)
		go s.iterate(ctx, name, list)
		count, err := s.deliver(c, name, yield)
		c.Record(name, fmt.Sprintf("%d entries", count), err)
	}
}

// A stepper runs a sequence in a goroutine of its own, one step at a time.
type stepper[T any] struct {
	items  chan answer[T]
	resume chan bool
	ended  chan error
	quit   chan struct{}
}

func (s *stepper[T]) iterate(ctx context.Context, name string, list func(context.Context) iter.Seq2[T, error]) {
	var failure error
	defer func() { s.ended <- failure }()
	defer recovered(name, &failure)
	for v, err := range list(ctx) {
		select {
		case s.items <- answer[T]{v, err}:
		case <-s.quit:
			return
		}
		select {
		case more := <-s.resume:
			if !more {
				return
			}
		case <-s.quit:
			return
		}
	}
}

// deliver returns how many entries it yielded, and the last error.
func (s *stepper[T]) deliver(c *Calls, name string, yield func(T, error) bool) (count int, last error) {
	var zero T
	for limit := c.run.Limit(); ; {
		a, running, err := s.next(c.run, limit)
		switch {
		case errors.Is(err, errNoStep):
			err = nstance.Errorf(nstance.Internal, "%s hangs: its sequence has not gone on for %s, after %d entries", name, limit, count)
		case err == nil && count == maxYields:
			err = nstance.Errorf(nstance.Internal, "%s does not end: it has yielded %d entries", name, count)
		}
		if err != nil {
			yield(zero, err)
			return count, err
		}
		if !running {
			return count, last
		}
		if last = a.err; last == nil {
			count++
		}
		more := yield(a.value, a.err)
		s.resume <- more
		if more {
			continue
		}
		if _, running, err = s.next(c.run, limit); err != nil || running {
			c.t.Errorf("%s does not end after its loop was left: return when yield returns false (%v)", name, err)
		}
		return count, last
	}
}

// errNoStep means that a sequence neither yielded nor ended.
var errNoStep = errors.New("no step within the limit")

// next waits for the next item, or the end.
func (s *stepper[T]) next(run *Run, limit time.Duration) (a answer[T], running bool, err error) {
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	select {
	case a = <-s.items:
		return a, true, nil
	case err = <-s.ended:
		return a, false, err
	case <-timeout.C:
		run.Waste(limit)
		return a, false, errNoStep
	}
}
