package aws

import (
	"context"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
)

// How long an answer is used, and how long the former answer is used on after a
// look-up that failed.
const (
	lookupTTL   = 5 * time.Minute
	lookupRetry = 30 * time.Second
)

// maxLookups bounds the answers that are remembered: groups made through the API may
// name tags of their own.
const maxLookups = 256

// lookups remember what was looked up. Callers that ask for the same at once share
// one look-up. The zero value is ready to use; it is safe for concurrent use.
type lookups struct {
	mu      sync.Mutex
	answers map[string]*lookup
}

// A lookup is one answer, or one that is under way.
type lookup struct {
	done    chan struct{} // closed once the rest is set
	ids     []string
	err     error
	retry   bool // err says something about the caller only
	expires time.Time
	former  []string // the answer before; nil: none
}

// get returns the answer for key, found by find unless it is remembered. An answer
// that is too old is used on while find fails for another reason than Invalid: a read
// error says nothing about what there is.
func (l *lookups) get(ctx context.Context, key string, find func(context.Context) ([]string, error)) ([]string, error) {
	for {
		answer, own := l.claim(key, time.Now())
		if own {
			l.settle(ctx, key, answer, find)
		}
		select {
		case <-answer.done:
		case <-ctx.Done():
			return nil, nstance.Errorf(nstance.Unavailable, "waiting for a look-up by tags: %w", ctx.Err())
		}
		if own || !answer.retry {
			return answer.ids, answer.err
		}
	}
}

// claim returns the answer for key, and whether the caller is to settle it.
func (l *lookups) claim(key string, now time.Time) (answer *lookup, own bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.answers[key]
	if old != nil && (!old.settled() || now.Before(old.expires)) {
		return old, false
	}
	answer = &lookup{done: make(chan struct{})}
	if old != nil {
		answer.former = old.ids
	}
	if l.answers == nil {
		l.answers = map[string]*lookup{}
	}
	if old != nil || l.makeRoom() {
		l.answers[key] = answer
	}
	return answer, true
}

// makeRoom forgets the answer that expires first if there are too many. It needs
// the lock, and reports whether there is room.
func (l *lookups) makeRoom() bool {
	if len(l.answers) < maxLookups {
		return true
	}
	first := ""
	for key, a := range l.answers {
		if a.settled() && (first == "" || a.expires.Before(l.answers[first].expires)) {
			first = key
		}
	}
	delete(l.answers, first)
	return first != ""
}

func (l *lookup) settled() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// settle finds the answer. An error without a former answer is not remembered.
func (l *lookups) settle(ctx context.Context, key string, answer *lookup, find func(context.Context) ([]string, error)) {
	ids, err := find(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	switch {
	case err == nil:
		answer.ids, answer.expires = ids, now.Add(lookupTTL)
	case answer.former != nil && nstance.CodeOf(err) != nstance.Invalid:
		answer.ids, answer.expires = answer.former, now.Add(lookupRetry)
	default:
		answer.err, answer.retry = err, ctx.Err() != nil
		if l.answers[key] == answer {
			delete(l.answers, key)
		}
	}
	close(answer.done)
}
