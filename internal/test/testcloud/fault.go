package testcloud

import (
	"maps"
	"net/http"
	"sync"
)

// Faults make calls fail, by the operation's name in the cloud's API, and count
// all calls. The zero value is ready to use, and safe for concurrent use.
type Faults struct {
	mu    sync.Mutex
	armed map[string][]Fault
	calls map[string]int
}

// A Fault is what happens to one call.
type Fault struct {
	// Lost says when the connection breaks: before the call takes effect, or
	// after it, so that only the answer is lost. Empty: the call is answered.
	Lost Lost

	// Answer answers in place of the cloud: a refusal, in the cloud's own form.
	// Nil: the cloud answers.
	Answer http.HandlerFunc

	// Wait is received from before anything happens, if it is not nil.
	Wait <-chan struct{}
}

// Lost is which part of a call the network loses.
type Lost string

// What can be lost.
const (
	LostRequest Lost = "request"
	LostAnswer  Lost = "answer"
)

// Next has the next calls of an operation meet these faults, one each, after
// those that are armed already. A Fault without anything lets its call pass.
func (f *Faults) Next(op string, faults ...Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.armed == nil {
		f.armed = map[string][]Fault{}
	}
	f.armed[op] = append(f.armed[op], faults...)
}

// Clear disarms every fault.
func (f *Faults) Clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.armed = nil
}

// Calls returns how many calls of each operation have come in.
func (f *Faults) Calls() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.calls)
}

func (f *Faults) take(op string) Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.calls == nil {
		f.calls = map[string]int{}
	}
	f.calls[op]++
	armed := f.armed[op]
	if len(armed) == 0 {
		return Fault{}
	}
	f.armed[op] = armed[1:]
	return armed[0]
}

// Serve answers one call of an operation through serve, unless a fault is armed
// for it.
func (f *Faults) Serve(w http.ResponseWriter, r *http.Request, op string, serve http.HandlerFunc) {
	fault := f.take(op)
	if fault.Wait != nil {
		select {
		case <-fault.Wait:
		case <-r.Context().Done():
			return
		}
	}
	switch {
	case fault.Lost == LostRequest:
		panic(http.ErrAbortHandler)
	case fault.Lost == LostAnswer:
		serve(lostAnswer{}, r)
		panic(http.ErrAbortHandler)
	case fault.Answer != nil:
		fault.Answer(w, r)
	default:
		serve(w, r)
	}
}

// lostAnswer is an answer that arrives nowhere.
type lostAnswer http.Header

func (l lostAnswer) Header() http.Header       { return http.Header(l) }
func (lostAnswer) Write(b []byte) (int, error) { return len(b), nil }
func (lostAnswer) WriteHeader(int)             {}
