package local

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"iter"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
)

// A Remote is a [Cloud] of another process, which serves it by [Serve]: its
// machines outlive their server. Answers and the codes of errors are the cloud's
// own. Without an answer, the error is Ambiguous if a create may have reached the
// cloud, otherwise Unavailable. It is safe for concurrent use.
type Remote struct {
	client http.Client
}

var (
	_ nstance.Provider = (*Remote)(nil)
	_ nstance.Parker   = (*Remote)(nil)
)

// Dial returns the cloud that is served at the socket path. It connects at the
// first call, so the serving process may start later, or restart. Close the Remote
// when done. Fails with Invalid for a path that a socket cannot have.
func Dial(path string) (*Remote, error) {
	if err := checkPath(path); err != nil {
		return nil, err
	}
	return &Remote{http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		},
		MaxIdleConnsPerHost:    32,
		MaxResponseHeaderBytes: 16 << 10,
		DisableCompression:     true,
	}}}, nil
}

// Close closes the connections that are not in use.
func (r *Remote) Close() error {
	r.client.CloseIdleConnections()
	return nil
}

// Create implements [nstance.Provider].
func (r *Remote) Create(ctx context.Context, spec nstance.MachineSpec) (nstance.Machine, error) {
	if err := provider.ValidateSpec(spec, maxUserData); err != nil {
		return nstance.Machine{}, err
	}
	args := spec.Args
	spec.Args = nil
	a, sent, err := r.call(ctx, pathCreate, request{Spec: &spec, Args: args})
	switch {
	case err == nil && a.Machine != nil:
		return *a.Machine, nil
	case err == nil && a.Error != nil:
		return nstance.Machine{}, a.Error.err()
	case err == nil:
		err = errGarbled
	}
	return nstance.Machine{}, unanswered(sent, err)
}

// unanswered returns the error of a create without an answer.
func unanswered(sent bool, err error) error {
	if !sent {
		return err
	}
	return nstance.Errorf(nstance.Ambiguous, "the machine may have been created: %w", err)
}

// Get implements [nstance.Provider].
func (r *Remote) Get(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
	a, _, err := r.call(ctx, pathGet, request{ID: id})
	switch {
	case err != nil:
		return nstance.Machine{}, err
	case a.Error != nil:
		return nstance.Machine{}, a.Error.err()
	case a.Machine == nil:
		return nstance.Machine{}, errGarbled
	}
	return *a.Machine, nil
}

// Delete implements [nstance.Provider].
func (r *Remote) Delete(ctx context.Context, m nstance.Machine) error {
	return r.act(ctx, pathDelete, request{Machine: &m})
}

// ParkModes implements [nstance.Parker]: it returns the modes of a [Cloud] on this
// system, without a call. Where the served provider is no Parker, Park and Wake fail
// with Invalid.
func (r *Remote) ParkModes() []nstance.ParkMode { return parkModes() }

// Park implements [nstance.Parker].
func (r *Remote) Park(ctx context.Context, m nstance.Machine, mode nstance.ParkMode) error {
	return r.act(ctx, pathPark, request{Machine: &m, Mode: mode})
}

// Wake implements [nstance.Parker].
func (r *Remote) Wake(ctx context.Context, m nstance.Machine) error {
	return r.act(ctx, pathWake, request{Machine: &m})
}

// act makes a call that is answered with Done.
func (r *Remote) act(ctx context.Context, path string, req request) error {
	a, _, err := r.call(ctx, path, req)
	switch {
	case err != nil:
		return err
	case a.Error != nil:
		return a.Error.err()
	case !a.Done:
		return errGarbled
	}
	return nil
}

// List implements [nstance.Provider].
func (r *Remote) List(ctx context.Context, owner nstance.Owner) iter.Seq2[nstance.Machine, error] {
	return func(yield func(nstance.Machine, error) bool) {
		body, _, err := r.send(ctx, pathList, request{Owner: owner})
		if err != nil {
			yield(nstance.Machine{}, err)
			return
		}
		defer body.Close()
		lines := bufio.NewScanner(body)
		lines.Buffer(nil, maxAnswer)
		for {
			a, err := next(ctx, lines)
			switch {
			case err != nil:
				yield(nstance.Machine{}, err)
				return
			case a.Done:
				return
			case !yield(*a.Machine, nil):
				return
			}
		}
	}
}

// next reads one line of a listing.
func next(ctx context.Context, lines *bufio.Scanner) (a answer, err error) {
	if ctx.Err() != nil {
		return a, nstance.Errorf(nstance.Unavailable, "the listing is incomplete: %w", ctx.Err())
	}
	if !lines.Scan() {
		err := lines.Err()
		if err == nil {
			err = io.ErrUnexpectedEOF
		}
		return a, nstance.Errorf(nstance.Unavailable, "the listing is incomplete: %w", err)
	}
	if json.Unmarshal(lines.Bytes(), &a) != nil {
		return a, errGarbled
	}
	switch {
	case a.Error != nil:
		return a, a.Error.err()
	case a.Machine == nil && !a.Done:
		return a, errGarbled
	}
	return a, nil
}

// errGarbled is the error for an unreadable answer.
var errGarbled error = &nstance.Error{Code: nstance.Unavailable, Msg: "the local cloud's answer cannot be read"}

// call makes a call with one answer. sent says whether the call may have
// reached the cloud; without an answer the error is Unavailable.
func (r *Remote) call(ctx context.Context, path string, req request) (a answer, sent bool, err error) {
	body, sent, err := r.send(ctx, path, req)
	if err != nil {
		return a, sent, err
	}
	defer body.Close()
	data, err := io.ReadAll(io.LimitReader(body, maxAnswer)) // what is longer cannot be read
	if err != nil {
		return a, true, nstance.Errorf(nstance.Unavailable, "the local cloud's answer: %w", err)
	}
	if json.Unmarshal(data, &a) != nil {
		return a, true, errGarbled
	}
	return a, true, nil
}

// send makes a call and returns the body of its answer, to be closed.
func (r *Remote) send(ctx context.Context, path string, req request) (body io.ReadCloser, sent bool, err error) {
	data, err := json.Marshal(req)
	if err != nil {
		return nil, false, nstance.Errorf(nstance.Invalid, "%w", err)
	}
	if len(data) > maxRequest {
		return nil, false, nstance.FieldError("args", "shorten them", "%d bytes are more than a call may have", len(data))
	}
	var connected atomic.Bool
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }})
	call, err := http.NewRequestWithContext(traced, http.MethodPost, "http://cloud"+path, bytes.NewReader(data))
	if err != nil {
		return nil, false, nstance.Errorf(nstance.Internal, "%w", err)
	}
	resp, err := r.client.Do(call)
	if err != nil {
		return nil, connected.Load(), nstance.Errorf(nstance.Unavailable, "the local cloud: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		_ = resp.Body.Close() // the status is enough
		return nil, true, nstance.Errorf(nstance.Unavailable, "the local cloud answers %s", resp.Status)
	}
	return resp.Body, true, nil
}
