package local

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
)

const (
	// maxPath is the longest path of a socket: sun_path of macOS has 104 bytes
	// with the final zero, that of Linux 108 (unix(4), unix(7)).
	maxPath = 103

	// maxCalls is how many calls are answered at the same time.
	maxCalls = 512

	// shutdownGrace is how long calls have to end when Serve does.
	shutdownGrace = time.Second
)

// Listen opens a socket at path for [Serve], for the owner only, and replaces a
// stale socket. Closing the listener removes it. Fails with Invalid when the path
// is too long or cannot be used, Conflict when another process listens there.
func Listen(ctx context.Context, path string) (net.Listener, error) {
	if err := checkPath(path); err != nil {
		return nil, err
	}
	if err := removeStaleSocket(ctx, path); err != nil {
		return nil, err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	if err != nil {
		return nil, nstance.FieldError("endpoint", "name a file in a folder that can be written to", "%v", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(nstance.FieldError("endpoint", "name a file in a folder of your own", "%v", err), l.Close())
	}
	return l, nil
}

func checkPath(path string) error {
	switch {
	case path == "":
		return nstance.FieldError("endpoint", "name the socket's file", "is empty")
	case len(path) > maxPath:
		return nstance.FieldError("endpoint", "use a folder with a shorter path", "%d bytes are more than the %d that a socket's path may have", len(path), maxPath)
	}
	return nil
}

// removeStaleSocket removes a socket without a listener.
func removeStaleSocket(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || info.Mode()&fs.ModeSocket == 0 {
		return nstance.FieldError("endpoint", "name a file that does not exist", "%s is no socket", path)
	}
	if conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path); err == nil {
		return errors.Join(nstance.Errorf(nstance.Conflict, "another process listens on %s", path), conn.Close())
	}
	if err := os.Remove(path); err != nil {
		return nstance.FieldError("endpoint", "name a file in a folder of your own", "%v", err)
	}
	return nil
}

// Serve serves p, usually a [Cloud], to the [Remote]s of other processes until ctx
// ends; they park machines if p is an [nstance.Parker]. Then it waits up to a second for calls in progress, cancels the others,
// whose callers get Ambiguous or Unavailable, and returns nil. When a caller
// disconnects, the context of its call ends. There is no authentication: every
// process that can connect to l may do everything, so use [Listen]. Serve closes l.
func Serve(ctx context.Context, l net.Listener, p nstance.Provider) error {
	f := &frontend{p: p, parker: provider.AbilitiesOf(p).Parking, slots: make(chan struct{}, maxCalls)}
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+pathCreate, f.single(f.create))
	mux.HandleFunc("POST "+pathGet, f.single(f.get))
	mux.HandleFunc("POST "+pathDelete, f.single(f.delete))
	mux.HandleFunc("POST "+pathPark, f.single(f.park))
	mux.HandleFunc("POST "+pathWake, f.single(f.wake))
	mux.HandleFunc("POST "+pathList, f.list)
	s := &http.Server{
		Handler:           f.limit(mux),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       time.Minute, // and no ReadTimeout: it would end the context of a call that takes longer
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          log.New(io.Discard, "", 0), // a caller may exit during a call
	}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
		defer cancel()
		if s.Shutdown(limited) != nil {
			_ = s.Close() // the listener is closed in any case
		}
	})
	err := s.Serve(l)
	if stop() { // ctx has not ended: it ended by itself
		return nstance.Errorf(nstance.Unavailable, "the local cloud's socket: %w", err)
	}
	<-stopped
	f.waitForCalls() // also for the cancelled ones
	return nil
}

// A frontend serves the calls of a provider.
type frontend struct {
	p      nstance.Provider
	parker nstance.Parker // nil if p is none
	slots  chan struct{}  // one for each call in progress
}

// waitForCalls waits until no call is in progress, and admits no other.
func (f *frontend) waitForCalls() {
	for range maxCalls {
		f.slots <- struct{}{}
	}
}

func (f *frontend) limit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case f.slots <- struct{}{}:
			defer func() { <-f.slots }()
			next.ServeHTTP(w, r)
		default:
			reply(w, answer{Error: failureOf(nstance.Errorf(nstance.Throttled, "%d calls are in progress", maxCalls))})
		}
	})
}

// single serves a call that has one answer.
func (f *frontend) single(call func(context.Context, request) (answer, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		req, err := read(w, r)
		var a answer
		if err == nil {
			a, err = call(r.Context(), req)
		}
		if err != nil {
			a = answer{Error: failureOf(err)}
		}
		reply(w, a)
	}
}

func (f *frontend) create(ctx context.Context, req request) (answer, error) {
	if req.Spec == nil {
		return answer{}, nstance.FieldError("spec", "", "is missing")
	}
	spec := *req.Spec
	spec.Args = req.Args
	m, err := f.p.Create(ctx, spec)
	return answer{Machine: &m}, err
}

func (f *frontend) get(ctx context.Context, req request) (answer, error) {
	m, err := f.p.Get(ctx, req.ID)
	return answer{Machine: &m}, err
}

func (f *frontend) delete(ctx context.Context, req request) (answer, error) {
	if req.Machine == nil {
		return answer{}, errNoMachine
	}
	return answer{Done: true}, f.p.Delete(ctx, *req.Machine)
}

func (f *frontend) park(ctx context.Context, req request) (answer, error) {
	if err := f.checkParking(req); err != nil {
		return answer{}, err
	}
	return answer{Done: true}, f.parker.Park(ctx, *req.Machine, req.Mode)
}

func (f *frontend) wake(ctx context.Context, req request) (answer, error) {
	if err := f.checkParking(req); err != nil {
		return answer{}, err
	}
	return answer{Done: true}, f.parker.Wake(ctx, *req.Machine)
}

func (f *frontend) checkParking(req request) error {
	switch {
	case req.Machine == nil:
		return errNoMachine
	case f.parker == nil:
		return nstance.Errorf(nstance.Invalid, "this cloud parks no machines")
	}
	return nil
}

var errNoMachine = nstance.FieldError("machine", "", "is missing")

func (f *frontend) list(w http.ResponseWriter, r *http.Request) {
	req, err := read(w, r)
	if err != nil {
		reply(w, answer{Error: failureOf(err)})
		return
	}
	for m, err := range f.p.List(r.Context(), req.Owner) {
		if err != nil {
			reply(w, answer{Error: failureOf(err)})
			return
		}
		if !reply(w, answer{Machine: &m}) {
			return
		}
	}
	reply(w, answer{Done: true})
}

func read(w http.ResponseWriter, r *http.Request) (request, error) {
	var req request
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest)) // to its end: only then is a disconnect of the caller detected
	if err == nil {
		err = json.Unmarshal(data, &req)
	}
	if err != nil {
		return req, nstance.Errorf(nstance.Invalid, "the call cannot be read: %w", err)
	}
	return req, nil
}

// reply writes one line, and reports whether that succeeded.
func reply(w http.ResponseWriter, a answer) bool {
	return json.NewEncoder(w).Encode(a) == nil
}
