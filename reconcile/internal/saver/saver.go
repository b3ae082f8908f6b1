// Package saver saves a document whenever it has changed, until that succeeds, and lets
// callers wait until their change is durable.
//
// Changes are counted. An attempt to save says up to which change it holds, so changes that
// come in the meantime are in the next one.
package saver

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
)

const (
	// Gather is how long a change that no call waits for is gathered with others.
	Gather = 2 * time.Second

	// retryInterval is the time between attempts to save.
	retryInterval = time.Second
)

// A Saver counts the changes of one document. It is safe for concurrent use.
type Saver struct {
	soon, later chan struct{} // have room for one

	mu      sync.Mutex
	edits   uint64 // changes so far
	tried   uint64 // of them, those that the last attempt held
	saved   uint64 // of them, those that are durable
	err     error  // of the last attempt
	settled chan struct{}
	over    bool
}

// New returns a Saver of a document that has not changed.
func New() *Saver {
	return &Saver{soon: make(chan struct{}, 1), later: make(chan struct{}, 1), settled: make(chan struct{})}
}

// Changed has the document saved: it has changed.
func (s *Saver) Changed() {
	s.mu.Lock()
	s.edits++
	s.mu.Unlock()
	signal(s.soon)
}

// ChangedLater is Changed for changes that come often and that no call waits for.
func (s *Saver) ChangedLater() { signal(s.later) }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Edits returns how many changes there were. A caller that has just changed the document
// gives it to Await.
func (s *Saver) Edits() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.edits
}

// Run calls save after changes until ctx ends, and again after an error. Save returns Edits
// as of the document that it tried to save.
func (s *Saver) Run(ctx context.Context, save func(context.Context) (edits uint64, err error)) {
	for s.awaitChange(ctx) {
		edits, err := save(ctx)
		s.settle(edits, err)
		if err == nil || ctx.Err() != nil {
			continue
		}
		signal(s.soon)
		if !sleep.For(ctx, retryInterval) {
			return
		}
	}
}

// awaitChange returns false when ctx has ended.
func (s *Saver) awaitChange(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-s.soon:
		return true
	case <-s.later:
	}
	select {
	case <-ctx.Done():
		return false
	case <-s.soon:
	case <-time.After(Gather):
	}
	return true
}

func (s *Saver) settle(edits uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tried, s.err = edits, err
	if err == nil {
		s.saved = edits
	}
	s.wake()
}

// Close says that nothing is saved any more.
func (s *Saver) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	s.wake()
}

func (s *Saver) wake() {
	close(s.settled)
	s.settled = make(chan struct{})
}

// Await blocks until a change is durable. It fails with Unavailable when an attempt to save it
// failed, ctx ended, or the Saver is closed: the change may become durable all the same.
func (s *Saver) Await(ctx context.Context, edit uint64) error {
	for {
		settled, durable, err := s.look(edit)
		if durable || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nstance.Errorf(nstance.Unavailable, "not durable yet: %w", ctx.Err())
		case <-settled:
		}
	}
}

// look reports whether a change is durable, or why that cannot be waited for. Settled is closed
// when there is news.
func (s *Saver) look(edit uint64) (settled <-chan struct{}, durable bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.saved >= edit:
		return nil, true, nil
	case s.tried >= edit && s.err != nil:
		return nil, false, &nstance.Error{
			Code: nstance.Unavailable, Err: s.err, Remedy: "look whether it holds, and ask again",
			Msg: fmt.Sprintf("not durable yet, it may still become so: %v", s.err),
		}
	case s.over:
		return nil, false, nstance.Errorf(nstance.Unavailable, "not durable: this term is over")
	}
	return s.settled, false, nil
}
