package testcloud

import (
	"bytes"
	"cmp"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
)

// Faults make calls fail, by the operation's name in the cloud's API, and count
// all calls. The zero value is ready to use, and safe for concurrent use.
type Faults struct {
	mu    sync.Mutex
	armed map[string][]Fault
	out   bool // of order: no call is answered
	calls map[string]int
}

// A Fault is what happens to one call.
type Fault struct {
	// Lost says when the connection breaks: before the call takes effect, or
	// after it, so that only the answer is lost. LostLate: the call takes effect and
	// its answer waits until the caller has left. Empty: the call is answered.
	Lost Lost

	// Answer answers in place of the cloud: a refusal, in the cloud's own form.
	// Nil: the cloud answers.
	Answer http.HandlerFunc

	// Wait is received from before anything happens, if it is not nil.
	Wait <-chan struct{}

	// Held is received from before the answer is sent, if it is not nil: what the call says
	// is old when it arrives.
	Held <-chan struct{}
}

// Lost is which part of a call the network loses.
type Lost string

// What can be lost.
const (
	LostRequest Lost = "request"
	LostAnswer  Lost = "answer"
	LostRest    Lost = "rest" // the second half of the answer
	LostLate    Lost = "late" // the answer is due after the caller's deadline
)

// between says that what stands between the client and the cloud answers: a proxy names itself
// in the header Via.
func between(w http.ResponseWriter) { w.Header().Set("Via", "1.1 gateway") }

// Page answers with a page for people, as a proxy does that stands between. With status 200 it
// is XML, too.
func Page(status int) Fault {
	page := "<!DOCTYPE html><html><meta charset=utf-8><title>Gateway</title><p>Please sign in.<br></html>"
	if status == http.StatusOK {
		page = "<html><head><title>Gateway</title></head><body><p>Please sign in.</p></body></html>"
	}
	return Fault{Answer: func(w http.ResponseWriter, _ *http.Request) {
		between(w)
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(status)
		_, _ = w.Write([]byte(page))
	}}
}

// Blank answers with a status and nothing else, as a proxy does.
func Blank(status int) Fault {
	return Fault{Answer: func(w http.ResponseWriter, _ *http.Request) {
		between(w)
		w.WriteHeader(status)
	}}
}

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

// All has the next calls of an operation, as many as a client may repeat, meet one fault.
func (f *Faults) All(op string, fault Fault) { f.Next(op, slices.Repeat([]Fault{fault}, 100)...) }

// Outage has no call answered, of any operation, until restore is called.
func (f *Faults) Outage() (restore func()) {
	set := func(out bool) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.out = out
	}
	set(true)
	return func() { set(false) }
}

// Clear disarms every fault.
func (f *Faults) Clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.armed, f.out = nil, false
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
	if f.out {
		return Fault{Lost: LostRequest}
	}
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
	case fault.Lost == LostLate:
		serve(lostAnswer{}, r)
		<-r.Context().Done()
		panic(http.ErrAbortHandler)
	case fault.Lost == LostRest:
		whole := &heldAnswer{header: w.Header()}
		serve(whole, r)
		w.Header().Set("Content-Length", strconv.Itoa(max(2, whole.body.Len())))
		w.WriteHeader(cmp.Or(whole.status, http.StatusOK))
		_, _ = w.Write(whole.body.Bytes()[:whole.body.Len()/2])
		panic(http.ErrAbortHandler)
	case fault.Answer != nil:
		fault.Answer(w, r)
	case fault.Held != nil:
		whole := &heldAnswer{header: w.Header()}
		serve(whole, r)
		select {
		case <-fault.Held:
		case <-r.Context().Done():
			return
		}
		w.WriteHeader(cmp.Or(whole.status, http.StatusOK))
		_, _ = w.Write(whole.body.Bytes())
	default:
		serve(w, r)
	}
}

// heldAnswer is an answer that is not sent yet.
type heldAnswer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (h *heldAnswer) Header() http.Header         { return h.header }
func (h *heldAnswer) WriteHeader(status int)      { h.status = status }
func (h *heldAnswer) Write(b []byte) (int, error) { return h.body.Write(b) }

// lostAnswer is an answer that arrives nowhere.
type lostAnswer http.Header

func (l lostAnswer) Header() http.Header       { return http.Header(l) }
func (lostAnswer) Write(b []byte) (int, error) { return len(b), nil }
func (lostAnswer) WriteHeader(int)             {}
