package spot

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
)

const (
	requestTimeout = 2 * time.Second // a metadata service answers from the host, in a millisecond
	maxBody        = 64 << 10        // bytes; all but Azure's events are far shorter
)

// refusedRemedy is what to do about a service that refuses.
const refusedRemedy = "enable the machine's metadata service, and permit this program to reach it: look at the machine's metadata options, firewalls and proxies"

// unknownService is the error of a service that finds nothing, not even what a cloud's always
// has.
func unknownService(cloud string) error {
	return &nstance.Error{Code: nstance.Unavailable, Msg: "what answers is not the metadata service of " + cloud + ": it finds nothing", Remedy: refusedRemedy}
}

// A request names one read, or sends a body. Path has no leading slash and may have a
// query.
type request struct {
	method  string
	path    string
	header  map[string]string
	body    string
	timeout time.Duration
	limit   int64 // bytes of the answer; 0: maxBody
}

// An answer is the response of the service, with any status.
type answer struct {
	status int
	header http.Header
	body   []byte
	at     instant // of arrival
}

// A noAnswer is the cause of an error without any response.
type noAnswer struct {
	reason   string
	timedOut bool
}

func (s *noAnswer) Error() string { return s.reason }

// do sends r and returns the answer. An error means that there was no answer. Its
// text has no ports and no timings, so that the same failure has the same text.
func (o *Options) do(ctx context.Context, r request) (answer, error) {
	within, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(within, r.method, o.BaseURL+"/"+r.path, strings.NewReader(r.body))
	if err != nil {
		return answer{}, nstance.Errorf(nstance.Invalid, "metadata request: %w", err)
	}
	for name, value := range r.header {
		req.Header.Set(name, value)
	}
	a, err := o.exchange(req, cmp.Or(r.limit, maxBody))
	switch {
	case err == nil:
		return a, nil
	case ctx.Err() != nil:
		return answer{}, fmt.Errorf("%s: %w", req.URL.Path, ctx.Err())
	case errors.Is(err, nstance.Internal):
		return answer{}, err
	}
	cause := &noAnswer{reason: reason(err), timedOut: isTimeout(err)}
	if cause.timedOut {
		cause.reason = fmt.Sprintf("no answer within %v", r.timeout)
	}
	return answer{}, nstance.Errorf(nstance.Unavailable, "%s: %w", req.URL.Path, cause)
}

func (o *Options) exchange(req *http.Request, limit int64) (answer, error) {
	sent := time.Now()
	resp, err := o.Client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err != nil {
		return answer{}, err
	}
	if int64(len(body)) > limit {
		return answer{}, nstance.Errorf(nstance.Internal, "%s: answer exceeds %d bytes", req.URL.Path, limit)
	}
	at := instantOf(resp.Header.Get("Date"), o.Now(), time.Since(sent))
	return answer{resp.StatusCode, resp.Header, body, at}, nil
}

// machineName returns the name of a machine that a service of that kind says.
func machineName(kind, path string, body []byte) (string, error) {
	name := bytes.TrimSpace(body)
	if len(name) == 0 || len(name) > maxIDLen || !tokenLike(name) {
		return "", nstance.Errorf(nstance.Internal, "/%s: no name of a machine", path)
	}
	return kind + "/" + string(name), nil
}

func isTimeout(err error) bool {
	t, ok := errors.AsType[net.Error](err)
	return ok && t.Timeout()
}

// reason returns a transport error without addresses and ports, which would make
// each repetition look like a new error.
func reason(err error) string {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Op + ": " + op.Err.Error()
	}
	return err.Error()
}

// check returns nil for a 200 and a classified error for anything else.
func (a answer) check(path string) error {
	switch a.status {
	case http.StatusOK:
		return nil
	case http.StatusNotFound:
		return nstance.Errorf(nstance.NotFound, "/%s: not found", path)
	case http.StatusUnauthorized, http.StatusForbidden:
		return &nstance.Error{Code: nstance.Denied, Msg: fmt.Sprintf("/%s: refused with status %d", path, a.status), Remedy: refusedRemedy}
	case http.StatusTooManyRequests:
		return nstance.Errorf(nstance.Throttled, "/%s: too many requests", path)
	}
	if a.status >= http.StatusInternalServerError {
		return nstance.Errorf(nstance.Unavailable, "/%s: status %d", path, a.status)
	}
	return nstance.Errorf(nstance.Internal, "/%s: unexpected status %d", path, a.status)
}
