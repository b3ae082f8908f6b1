package webhook

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/nstance-go/nstance"
)

const (
	// maxQueue is how many messages wait for one endpoint. One more drops one.
	maxQueue = 1000
	// maxAttempts is how often one message is sent.
	maxAttempts = 5
	// maxRetryAfter is how long an endpoint may ask to wait.
	maxRetryAfter = time.Minute
	// maxAnswer is how much of an answer is read, so that the connection can be used again.
	maxAnswer = 4 << 10
)

// The headers of each request. The signature is "v1=" and HMAC-SHA256, in hexadecimal,
// over the timestamp, a full stop and the body, by the secret of the endpoint. A receiver
// refuses a timestamp that is minutes old, and an ID that it has seen.
const (
	IDHeader        = "Nstance-Message-Id"
	TimestampHeader = "Nstance-Timestamp" // seconds since 1970; of the attempt
	SignatureHeader = "Nstance-Signature"
)

// Reserved returns the headers, in canonical form, that the sender or its connection sets.
func Reserved() []string {
	return []string{IDHeader, TimestampHeader, SignatureHeader, "Content-Length", "Transfer-Encoding", "Connection", "Host", "Trailer", "Te", "Upgrade"}
}

// An Endpoint is where messages go.
type Endpoint struct {
	URL      string
	Kinds    []Kind        // what about
	Secret   string        // name of what signs; empty: nothing does
	Template string        // of the body; empty: JSON
	Type     string        // of the body, as in Content-Type
	Timeout  time.Duration // of one attempt
	Gather   time.Duration // how long events of one kind are gathered into one message; zero: each has its own

	Headers       map[string]string // more headers of each request
	SecretHeaders map[string]string // by header, the names of the secrets that are the values of further ones
}

// Options configure a Sender.
type Options struct {
	Term      Term
	Endpoints func() map[string]Endpoint                             // by name, as configured now; not changed afterwards
	Secret    func(ctx context.Context, name string) ([]byte, error) // that signs, or is the value of a header
	Pool      func(nstance.InstanceID) *Pool                         // nil: not known; called when a message is sent
	Observe   func(endpoint string, result Result)                   // called for each message in the end
	Log       *slog.Logger
	Client    *http.Client // nil: one of its own
	Now       func() time.Time
	Pause     time.Duration // after the first attempt, and twice as long after each further one; zero: a second
}

// A Result is what became of a message.
type Result string

// The results.
const (
	Sent    Result = "sent"
	Failed  Result = "failed"  // it was refused, or every attempt failed
	Dropped Result = "dropped" // too many waited
)

// A Sender sends messages to each endpoint in the order of the events, and to each by
// itself: one that is slow delays no other. Run must be running; messages wait until it is.
type Sender struct {
	o    Options
	wake chan struct{} // has room for one

	mu     sync.Mutex
	queues map[string]*queue // endpoints that have messages, or a worker
}

type queue struct {
	waiting []task
	working bool // a worker empties it
}

type task struct {
	endpoint Endpoint
	message  Message   // of the first event
	events   *gathered // all of them
	due      time.Time // when it is sent; until then events may join
}

// join adds the event of a message to a task that still gathers, if both say the same.
func (t *task) join(endpoint Endpoint, m Message) bool {
	if endpoint.Gather == 0 || t.message.Kind != m.Kind || t.message.Rehearsal != m.Rehearsal {
		return false
	}
	t.events.add(m)
	return true
}

// NewSender returns a sender.
func NewSender(o *Options) *Sender {
	s := &Sender{o: *o, wake: make(chan struct{}, 1), queues: map[string]*queue{}}
	if s.o.Client == nil {
		transport := http.DefaultTransport.(*http.Transport).Clone()
		transport.MaxIdleConnsPerHost = 1
		s.o.Client = &http.Client{Transport: transport}
	}
	client := *s.o.Client
	client.Transport = noRedirects{client.Transport}
	s.o.Client = &client
	return s
}

// noRedirects is a transport whose answers lead nowhere else: the signed body is for the
// configured endpoint. Where they would lead may hold the secret too, and is not quoted.
type noRedirects struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t noRedirects) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := cmp.Or(t.next, http.DefaultTransport).RoundTrip(req)
	if err == nil {
		resp.Header.Del("Location")
	}
	return resp, err
}

// CloseIdleConnections is for http.Client.
func (t noRedirects) CloseIdleConnections() {
	(&http.Client{Transport: t.next}).CloseIdleConnections()
}

// Event takes an event to be told, if it is one of those. It does not block, and may be
// called concurrently.
func (s *Sender) Event(e nstance.Event) {
	if m, told := s.o.Term.message(e); told {
		s.enqueue(m)
	}
}

// Standing takes the notices that stood when the term began. It is called once. Receivers
// may have had them from the leader before.
func (s *Sender) Standing(notices []nstance.Event) {
	for i, e := range notices {
		if m, told := s.o.Term.message(e); told {
			m.ID = s.o.Term.messageID(fmt.Sprintf("standing-%d", i+1)) // they have no number in the journal
			s.enqueue(m)
		}
	}
}

func (s *Sender) enqueue(m Message) {
	for name, endpoint := range s.o.Endpoints() {
		if slices.Contains(endpoint.Kinds, m.Kind) {
			s.add(name, endpoint, m)
		}
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *Sender) add(name string, endpoint Endpoint, m Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.queues[name]
	if q == nil {
		q = &queue{}
		s.queues[name] = q
	}
	for i := range q.waiting {
		if q.waiting[i].join(endpoint, m) {
			return
		}
	}
	t := task{endpoint, m, &gathered{}, time.Now().Add(endpoint.Gather)}
	t.events.add(m)
	if q.waiting = append(q.waiting, t); len(q.waiting) > maxQueue {
		q.waiting = slices.Delete(q.waiting, leastOf(q.waiting), leastOf(q.waiting)+1)
		s.o.Observe(name, Dropped)
	}
}

// leastOf returns the oldest of those that say least.
func leastOf(waiting []task) (least int) {
	rank := -1
	for i, t := range waiting {
		if r := slices.Index(Kinds(), t.message.Kind); r > rank {
			least, rank = i, r
		}
	}
	return least
}

// Run sends until ctx ends. Messages that wait then are lost.
func (s *Sender) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer s.o.Client.CloseIdleConnections()
	for {
		s.mu.Lock()
		for name, q := range s.queues {
			if !q.working {
				q.working = true
				wg.Go(func() { s.work(ctx, name, q) })
			}
		}
		s.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		}
	}
}

// work sends what waits for one endpoint, and ends when that is nothing.
func (s *Sender) work(ctx context.Context, name string, q *queue) {
	for {
		s.mu.Lock()
		if len(q.waiting) == 0 {
			delete(s.queues, name)
			s.mu.Unlock()
			return
		}
		next := q.waiting[0]
		early := time.Until(next.due)
		if early <= 0 {
			q.waiting = slices.Delete(q.waiting, 0, 1)
		}
		s.mu.Unlock()
		if early > 0 {
			if pause(ctx, early) != nil {
				return
			}
			continue
		}
		err := s.send(ctx, next)
		if ctx.Err() != nil {
			return
		}
		result := Sent
		if err != nil {
			result = Failed
			s.o.Log.Warn("a webhook was not told", "webhook", name, "message", next.message.ID, "err", err)
		}
		s.o.Observe(name, result)
	}
}

// errFinal marks an answer after which no attempt is made.
var errFinal = errors.New("refused")

// send makes attempts until one succeeds. Its errors do not have the URL, which may be
// secret.
func (s *Sender) send(ctx context.Context, t task) error {
	t.message.Pool, t.message.Wave = s.o.Pool(t.message.Instance), t.events.wave(s.o.Pool)
	text, err := body(ctx, t.endpoint.Template, t.message)
	if err != nil {
		return err
	}
	for attempt, wait := 1, cmp.Or(s.o.Pause, time.Second); ; attempt, wait = attempt+1, 2*wait {
		err := s.attempt(ctx, t, text)
		if err == nil || errors.Is(err, errFinal) || attempt == maxAttempts {
			return err
		}
		asked := time.Duration(0)
		if busy, ok := errors.AsType[*busyError](err); ok {
			asked = busy.after
		}
		if err := pause(ctx, max(wait, asked)); err != nil {
			return err
		}
	}
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

func (s *Sender) attempt(ctx context.Context, t task, text []byte) error {
	ctx, cancel := context.WithTimeout(ctx, t.endpoint.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.endpoint.URL, bytes.NewReader(text))
	if err != nil {
		return errors.New("its URL is not one")
	}
	if err := s.writeHeader(ctx, req.Header, t, text); err != nil {
		return err
	}
	resp, err := s.o.Client.Do(req)
	if err != nil {
		return withoutURL(err)
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, maxAnswer) // the status says it all
	switch code := resp.StatusCode; {
	case code/100 == 2:
		return nil
	case code >= 500, code == http.StatusTooManyRequests, code == http.StatusRequestTimeout:
		return &busyError{code, retryAfter(resp.Header, s.o.Now())}
	default:
		return fmt.Errorf("answered %d: %w", code, errFinal)
	}
}

func (s *Sender) writeHeader(ctx context.Context, h http.Header, t task, text []byte) error {
	for name, value := range t.endpoint.Headers {
		h.Set(name, value)
	}
	for name, secret := range t.endpoint.SecretHeaders {
		value, err := s.secret(ctx, secret)
		if err != nil {
			return err
		}
		line := strings.TrimSpace(string(value)) // such as the end of the line that a file has
		if !httpguts.ValidHeaderFieldValue(line) {
			return fmt.Errorf("secret %s cannot be the value of a header: %w", secret, errFinal)
		}
		h.Set(name, line)
	}
	at := strconv.FormatInt(s.o.Now().Unix(), 10)
	h.Set("Content-Type", t.endpoint.Type)
	h.Set(IDHeader, t.message.ID)
	h.Set(TimestampHeader, at)
	if name := t.endpoint.Secret; name != "" {
		secret, err := s.secret(ctx, name)
		if err != nil {
			return err
		}
		h.Set(SignatureHeader, Sign(secret, at, text))
	}
	return nil
}

func (s *Sender) secret(ctx context.Context, name string) ([]byte, error) {
	value, err := s.o.Secret(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("its secret: %w", err)
	}
	return value, nil
}

// A busyError is an answer after which another attempt is made.
type busyError struct {
	code  int
	after time.Duration // that it asked for, at most maxRetryAfter
}

// Error implements error.
func (e *busyError) Error() string { return fmt.Sprintf("answered %d", e.code) }

// retryAfter reads the header Retry-After, which has seconds or a date.
func retryAfter(h http.Header, now time.Time) time.Duration {
	text := h.Get("Retry-After")
	after := time.Duration(0)
	if seconds, err := strconv.Atoi(text); err == nil {
		after = time.Duration(min(max(0, seconds), int(maxRetryAfter/time.Second))) * time.Second
	} else if at, err := http.ParseTime(text); err == nil {
		after = at.Sub(now)
	}
	return min(max(0, after), maxRetryAfter)
}

// withoutURL returns the cause of a client's error, without any URL in it.
func withoutURL(err error) error {
	for {
		e, ok := errors.AsType[*url.Error](err)
		if !ok {
			return err
		}
		err = e.Err
	}
}

// Sign returns the signature of a body that is sent at timestamp.
func Sign(secret []byte, timestamp string, body []byte) string {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(timestamp + "."))
	mac.Write(body)
	return "v1=" + hex.EncodeToString(mac.Sum(nil))
}
