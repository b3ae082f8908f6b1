// Package snapshot shares one listing of a cluster's objects among all that need it.
package snapshot

import (
	"context"
	"time"
)

const (
	listTime  = 5 * time.Second // of one listing; client-go retries refusals in silence until then
	retryTime = time.Second     // between a listing that failed and the next one
)

// A Snapshot is the latest listing. It is safe for concurrent use.
type Snapshot[T any] struct {
	list func(context.Context) (T, error)
	turn chan struct{} // guards the fields below during a listing

	taken time.Time
	value T

	failedAt time.Time
	failure  error
}

// New returns a Snapshot of what list returns.
func New[T any](list func(context.Context) (T, error)) *Snapshot[T] {
	return &Snapshot[T]{list: list, turn: make(chan struct{}, 1)}
}

// Since returns a listing that was begun at t or later. Fails as the listing does, which ends
// after 5 s. Its error is that of all calls which wait for it, and of those within a second: an
// API server that hangs holds up each caller once, and not once for each of the others.
func (s *Snapshot[T]) Since(ctx context.Context, t time.Time) (value T, err error) {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return value, context.Cause(ctx)
	}
	if !s.taken.Before(t) {
		return s.value, nil
	}
	if s.failure != nil && time.Since(s.failedAt) < retryTime {
		return value, s.failure
	}
	began := time.Now()
	limited, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	if value, err = s.list(limited); err != nil {
		if ctx.Err() == nil { // or else it is the caller that ended it
			s.failure, s.failedAt = err, time.Now()
		}
		return value, err
	}
	s.taken, s.value, s.failure = began, value, nil
	return value, nil
}
