package webhook_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/notice"
	"github.com/nstance-go/nstance/internal/test/freeport"
	"github.com/nstance-go/nstance/internal/webhook"
)

const eventually = time.Minute

// A received is one request.
type received struct {
	header http.Header
	body   string
}

// A receiver is an endpoint over TLS.
type receiver struct {
	*httptest.Server
	requests chan received
	answer   func(n int, w http.ResponseWriter) // to the nth request, from 1 on; nil: 200
}

func newReceiver(t *testing.T, answer func(n int, w http.ResponseWriter)) *receiver {
	t.Helper()
	r := &receiver{requests: make(chan received, 10_000), answer: answer}
	var mu sync.Mutex
	n := 0
	r.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		mu.Lock()
		n++
		count := n
		mu.Unlock()
		select {
		case r.requests <- received{req.Header.Clone(), string(body)}:
		default: // a test that expects one request fails, and does not hang
		}
		if r.answer != nil {
			r.answer(count, w)
		}
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) endpoint() webhook.Endpoint {
	return webhook.Endpoint{
		URL: r.URL, Kinds: webhook.Kinds(),
		Type: "application/json", Timeout: 2 * time.Second,
	}
}

func (r *receiver) next(t *testing.T) received {
	t.Helper()
	select {
	case got := <-r.requests:
		return got
	case <-time.After(eventually):
		require.FailNow(t, "nothing was sent")
		return received{}
	}
}

// A rig runs a sender.
type rig struct {
	*testing.T
	sender  *webhook.Sender
	results chan string
	stop    func()
	log     *strings.Builder
}

func newRig(t *testing.T, endpoints map[string]webhook.Endpoint, r *receiver) *rig {
	t.Helper()
	g := &rig{T: t, results: make(chan string, 100_000), log: &strings.Builder{}}
	g.sender = webhook.NewSender(&webhook.Options{
		Term:      webhook.Term{Cluster: "prod", Shard: "eu1a", Epoch: 7},
		Endpoints: func() map[string]webhook.Endpoint { return endpoints },
		Secret: func(_ context.Context, name string) ([]byte, error) {
			if name == "missing" {
				return nil, nstance.Errorf(nstance.NotFound, "there is no secret %s", name)
			}
			return []byte("key of " + name), nil
		},
		Pool: func(id nstance.InstanceID) *webhook.Pool {
			if id != "web1" {
				return nil
			}
			return &webhook.Pool{InstanceType: "large", Zone: "a", Market: nstance.Spot}
		},
		Observe: func(name string, result webhook.Result) { g.results <- name + " " + string(result) },
		Log:     slog.New(slog.NewTextHandler(g.log, nil)), Client: r.Client(), Now: time.Now, Pause: time.Millisecond,
	})
	return g
}

// run runs the sender until stop, which waits for it.
func (g *rig) run() {
	ctx, cancel := context.WithCancel(g.Context())
	var wg sync.WaitGroup
	wg.Go(func() { g.sender.Run(ctx) })
	g.stop = func() { cancel(); wg.Wait() }
	g.Cleanup(g.stop)
}

func (g *rig) result() string {
	g.Helper()
	select {
	case r := <-g.results:
		return r
	case <-time.After(eventually):
		require.FailNow(g, "no result", g.log.String())
		return ""
	}
}

func noticed(seq int) nstance.Event {
	return nstance.Event{
		Seq: nstance.Seq(seq), Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Type: nstance.EventNoticeReceived, Tenant: "default", Group: "web", Instance: "web1",
		Notice: &nstance.Notice{Kind: nstance.Reclaim, Action: "terminate", Source: "aws/spot", EventID: "e1", Deadline: time.Date(2026, 1, 2, 3, 6, 5, 0, time.UTC)},
	}
}

func TestMessage(t *testing.T) {
	r := newReceiver(t, nil)
	g := newRig(t, map[string]webhook.Endpoint{"pager": r.endpoint()}, r)
	g.run()
	g.sender.Event(nstance.Event{Type: nstance.EventCreated}) // of no kind that webhooks have
	g.sender.Event(noticed(9))
	got := r.next(t)
	require.Equal(t, "application/json", got.header.Get("Content-Type"))
	require.Equal(t, "prod/eu1a/7/9", got.header.Get(webhook.IDHeader))
	require.Empty(t, got.header.Get(webhook.SignatureHeader), "without a secret")
	var m webhook.Message
	require.NoError(t, json.Unmarshal([]byte(got.body), &m))
	require.Equal(t, webhook.Notice, m.Kind)
	require.Equal(t, []string{"prod", "eu1a", "default", "web", "web1", "e1", "notice_received"},
		[]string{string(m.Cluster), string(m.Shard), string(m.Tenant), string(m.Group), string(m.Instance), m.Notice.EventID, string(m.Event)})
	require.Equal(t, &webhook.Pool{InstanceType: "large", Zone: "a", Market: nstance.Spot}, m.Pool)
	require.False(t, m.Rehearsal)
	require.Equal(t, "pager sent", g.result())
	g.sender.Event(nstance.Event{Type: nstance.EventDrainStarted, Instance: "ended"})
	require.NotContains(t, r.next(t).body, `"pool"`)
}

func TestKinds(t *testing.T) {
	rehearsal := noticed(5)
	rehearsal.Notice.Source = notice.RehearsalSource + "admin"
	for _, c := range []struct {
		event     nstance.Event
		kind      webhook.Kind
		rehearsal bool
	}{
		{noticed(1), webhook.Notice, false},
		{rehearsal, webhook.Notice, true},
		{nstance.Event{Type: nstance.EventNoticeIgnored, Notice: &nstance.Notice{Kind: nstance.Rebalance}}, webhook.Rebalance, false},
		{nstance.Event{Type: nstance.EventNoticeIgnored, Notice: &nstance.Notice{Kind: nstance.Maintenance}}, webhook.Maintenance, false},
		{nstance.Event{Type: nstance.EventMachineGone}, webhook.Loss, false},
		{nstance.Event{Type: nstance.EventDrainStarted, Drain: &nstance.Drain{Causes: []nstance.Cause{{Message: "rehearsal/admin terminate"}}}}, webhook.DrainStarted, true},
		{nstance.Event{Type: nstance.EventDrainAcknowledged, Reason: "drained"}, webhook.DrainEnded, false},
		{nstance.Event{Type: nstance.EventDrainCancelled}, webhook.DrainEnded, false},
		{nstance.Event{Type: nstance.EventDrainCutShort, Drain: &nstance.Drain{Causes: []nstance.Cause{{Message: "aws/spot terminate"}}}}, webhook.MissedDeadline, false},
	} {
		r := newReceiver(t, nil)
		only := r.endpoint()
		only.Kinds = []webhook.Kind{c.kind}
		others := r.endpoint()
		others.Kinds = nil
		for _, k := range r.endpoint().Kinds {
			if k != c.kind {
				others.Kinds = append(others.Kinds, k)
			}
		}
		g := newRig(t, map[string]webhook.Endpoint{"only": only, "others": others}, r)
		g.run()
		g.sender.Event(c.event)
		var m webhook.Message
		require.NoError(t, json.Unmarshal([]byte(r.next(t).body), &m))
		require.Equal(t, c.kind, m.Kind)
		require.Equal(t, c.rehearsal, m.Rehearsal, c.event.Type)
		require.Equal(t, "only sent", g.result())
		require.Empty(t, g.results)
	}
}

// TestNoMessage: what a message told before, or takes nothing, is told no other way.
func TestNoMessage(t *testing.T) {
	r := newReceiver(t, nil)
	g := newRig(t, map[string]webhook.Endpoint{"all": r.endpoint()}, r)
	g.run()
	g.sender.Event(nstance.Event{Type: nstance.EventMachineGone, Notice: noticed(1).Notice})
	g.sender.Event(nstance.Event{Type: nstance.EventNoticeIgnored, Notice: noticed(1).Notice})
	g.sender.Event(nstance.Event{Type: nstance.EventNoticeIgnored, Notice: &nstance.Notice{Kind: nstance.Rebalance, Cancelled: true}})
	g.sender.Event(noticed(7))
	require.Equal(t, "prod/eu1a/7/7", r.next(t).header.Get(webhook.IDHeader))
}

func TestSignature(t *testing.T) {
	r := newReceiver(t, nil)
	signed, missing := r.endpoint(), r.endpoint()
	signed.Secret, missing.Secret = "pager", "missing"
	g := newRig(t, map[string]webhook.Endpoint{"signed": signed}, r)
	g.run()
	g.sender.Event(noticed(1))
	got := r.next(t)
	at := got.header.Get(webhook.TimestampHeader)
	seconds, err := strconv.ParseInt(at, 10, 64)
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), time.Unix(seconds, 0), time.Minute)
	require.Equal(t, webhook.Sign([]byte("key of pager"), at, []byte(got.body)), got.header.Get(webhook.SignatureHeader))
	require.Equal(t, "v1=292a0faf7eb94d6ea4289fd2ce293e93e4e5aaf64a9bf947f097de480e9b13d4",
		webhook.Sign([]byte("secret"), "1700000000", []byte(`{"kind":"notice"}`)), "as openssl signs it")

	g = newRig(t, map[string]webhook.Endpoint{"missing": missing}, r)
	g.run()
	g.sender.Event(noticed(1))
	require.Equal(t, "missing failed", g.result())
	require.Empty(t, r.requests, "nothing goes unsigned where it is to be signed")
	g.stop()
	require.Contains(t, g.log.String(), "there is no secret missing")
}

func TestTemplate(t *testing.T) {
	r := newReceiver(t, nil)
	e := r.endpoint()
	e.Template, e.Type = `{"text": {{json (printf "%s: %s of %s" .Kind .Instance .Group)}}}`, "application/vnd.chat+json"
	g := newRig(t, map[string]webhook.Endpoint{"chat": e}, r)
	g.run()
	g.sender.Event(noticed(1))
	got := r.next(t)
	require.Equal(t, `{"text": "notice: web1 of web"}`, got.body)
	require.Equal(t, "application/vnd.chat+json", got.header.Get("Content-Type"))

	require.NoError(t, webhook.Try(e.Template))
	require.NoError(t, webhook.Try(""))
	require.ErrorContains(t, webhook.Try("{{.Nothing}}"), "Nothing")
	require.ErrorContains(t, webhook.Try("{{"), "template")
	require.ErrorContains(t, webhook.Try(`{{range 300}}{{printf "%256d" 1}}{{end}}`), "larger than")
	require.NoError(t, webhook.Try(`{{.Time.Format "15:04"}} {{(.Notice.Deadline.Sub .Time).Seconds}}`), "methods of times")
}

// TestEndlessTemplate: a template that writes nothing ends too, when it is tried and when a
// message is sent.
func TestEndlessTemplate(t *testing.T) {
	require.ErrorContains(t, webhook.Try(`{{range 100000000000}}{{end}}`), "steps")
	r := newReceiver(t, nil)
	e := r.endpoint()
	e.Template = `{{if .Group}}{{range 100000000000}}{{end}}{{end}}` // which Try does not reach
	require.NoError(t, webhook.Try(e.Template))
	g := newRig(t, map[string]webhook.Endpoint{"chat": e}, r)
	g.run()
	g.sender.Event(noticed(1))
	require.Equal(t, "chat failed", g.result())
	require.Empty(t, r.requests)
}

// TestAttempts: what may pass is tried again, with another timestamp; what will not is
// given up at once.
func TestAttempts(t *testing.T) {
	t.Run("it passes", func(t *testing.T) {
		r := newReceiver(t, func(n int, w http.ResponseWriter) {
			if n < 3 {
				w.WriteHeader([]int{0, http.StatusInternalServerError, http.StatusTooManyRequests}[n])
			}
		})
		g := newRig(t, map[string]webhook.Endpoint{"pager": r.endpoint()}, r)
		g.run()
		g.sender.Event(noticed(1))
		require.Equal(t, "pager sent", g.result())
		require.Len(t, r.requests, 3)
		require.Equal(t, r.next(t).header.Get(webhook.IDHeader), r.next(t).header.Get(webhook.IDHeader))
	})
	for name, header := range map[string]func() string{
		"it asks for a second":   func() string { return "1" },
		"it asks for a date":     func() string { return time.Now().Add(2500 * time.Millisecond).UTC().Format(http.TimeFormat) },
		"it asks for the past":   func() string { return "-5" },
		"it asks for no sense":   func() string { return "soon" },
		"it asks for before now": func() string { return time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat) },
	} {
		t.Run(name, func(t *testing.T) {
			var asked time.Time
			r := newReceiver(t, func(n int, w http.ResponseWriter) {
				if n == 1 {
					asked = time.Now()
					w.Header().Set("Retry-After", header())
					w.WriteHeader(http.StatusServiceUnavailable)
				}
			})
			g := newRig(t, map[string]webhook.Endpoint{"pager": r.endpoint()}, r)
			g.run()
			g.sender.Event(noticed(1))
			require.Equal(t, "pager sent", g.result())
			if strings.HasSuffix(name, "second") || strings.HasSuffix(name, "date") {
				require.GreaterOrEqual(t, time.Since(asked), time.Second)
			}
		})
	}
	for name, answer := range map[string]func(int, http.ResponseWriter){
		"it is refused": func(_ int, w http.ResponseWriter) { w.WriteHeader(http.StatusForbidden) },
		"a redirect is not followed": func(_ int, w http.ResponseWriter) {
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(http.StatusTemporaryRedirect)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReceiver(t, answer)
			g := newRig(t, map[string]webhook.Endpoint{"pager": r.endpoint()}, r)
			g.run()
			g.sender.Event(noticed(1))
			require.Equal(t, "pager failed", g.result())
			require.Len(t, r.requests, 1)
			g.stop()
			require.NotContains(t, g.log.String(), r.URL, "the URL may be secret")
		})
	}
}

// TestSlowEndpoint: it delays no other, and no end.
func TestSlowEndpoint(t *testing.T) {
	blocked := make(chan struct{})
	slow := newReceiver(t, func(int, http.ResponseWriter) { <-blocked })
	quick := newReceiver(t, nil)
	endpoints := map[string]webhook.Endpoint{"slow": slow.endpoint(), "quick": quick.endpoint()}
	g := newRig(t, endpoints, quick)
	t.Cleanup(func() { close(blocked) })
	g.run()
	for i := range 20 {
		g.sender.Event(noticed(i))
	}
	for i := range 20 {
		require.Equal(t, fmt.Sprintf("prod/eu1a/7/%d", i), quick.next(t).header.Get(webhook.IDHeader), "in order")
	}
	slow.next(t)
	g.stop()
}

// TestLesserNewsIsDropped: notices stay while anything else waits.
func TestLesserNewsIsDropped(t *testing.T) {
	r := newReceiver(t, nil)
	g := newRig(t, map[string]webhook.Endpoint{"pager": r.endpoint()}, r)
	g.sender.Event(noticed(1)) // before it runs
	for i := range 999 {
		g.sender.Event(nstance.Event{Seq: nstance.Seq(10 + i), Type: nstance.EventDrainStarted})
	}
	g.sender.Event(noticed(2))
	g.sender.Event(nstance.Event{Seq: 3, Type: nstance.EventDrainAcknowledged})
	require.Len(t, g.results, 2)
	g.run()
	for _, id := range []string{"1", "12", "13"} {
		require.Equal(t, "prod/eu1a/7/"+id, r.next(t).header.Get(webhook.IDHeader))
	}
}

// TestDrops: what waits is bounded, and the oldest goes first.
func TestDrops(t *testing.T) {
	r := newReceiver(t, nil)
	g := newRig(t, map[string]webhook.Endpoint{"pager": r.endpoint()}, r)
	for i := range 1010 { // before it runs
		g.sender.Event(noticed(i))
	}
	require.Len(t, g.results, 10)
	require.Equal(t, "pager dropped", g.result())
	g.run()
	require.Equal(t, "prod/eu1a/7/10", r.next(t).header.Get(webhook.IDHeader))
}

func ExampleSign() {
	fmt.Println(webhook.Sign([]byte("secret"), "1700000000", []byte(`{"kind":"notice"}`))[:11])
	// Output: v1=292a0faf
}

// TestErrorsHideTheURL: who knows the URL of a webhook may post there, so no log quotes it,
// whatever fails.
func TestErrorsHideTheURL(t *testing.T) {
	closed, err := freeport.Address()
	require.NoError(t, err)
	slow := newReceiver(t, func(_ int, w http.ResponseWriter) { <-t.Context().Done() })
	broken := newReceiver(t, func(_ int, w http.ResponseWriter) {
		conn, _, err := w.(http.Hijacker).Hijack()
		require.NoError(t, err)
		_ = conn.Close()
	})
	redirects := newReceiver(t, func(_ int, w http.ResponseWriter) {
		w.Header().Set("Location", "http://[bad/S3CRET")
		w.WriteHeader(http.StatusFound)
	})
	for name, at := range map[string]string{
		"nothing listens":         "http://" + closed,
		"it does not answer":      slow.URL,
		"it breaks off":           broken.URL,
		"it redirects":            redirects.URL,
		"its scheme is unknown":   "gopher://hooks.example",
		"its host does not exist": "http://nothing.invalid",
		"it is no URL":            "http://[bad",
		"it has a password":       "http://user:S3CRET@127.0.0.1:1",
	} {
		t.Run(name, func(t *testing.T) {
			e := webhook.Endpoint{URL: at + "/services/S3CRET?token=S3CRET", Kinds: []webhook.Kind{webhook.Notice}, Timeout: 50 * time.Millisecond}
			g := newRig(t, map[string]webhook.Endpoint{"chat": e}, slow)
			g.run()
			g.sender.Event(noticed(1))
			require.Equal(t, "chat failed", g.result())
			g.stop()
			require.Contains(t, g.log.String(), "a webhook was not told")
			require.NotContains(t, g.log.String(), "S3CRET")
		})
	}
}
