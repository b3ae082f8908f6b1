package webhook_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/notice"
	"github.com/nstance-go/nstance/internal/webhook"
)

// A bubble is a sender in virtual time, with one endpoint.
type bubble struct {
	sender  *webhook.Sender
	results []string
	log     strings.Builder
	stop    func()

	mu       sync.Mutex
	began    time.Time
	requests []time.Duration // when each was sent
	bodies   []string
	headers  []http.Header
	answer   func(n int) (*http.Response, error) // to the nth request, from 1 on
}

// RoundTrip implements http.RoundTripper.
func (b *bubble) RoundTrip(req *http.Request) (*http.Response, error) {
	text, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.requests = append(b.requests, time.Since(b.began))
	b.bodies, b.headers = append(b.bodies, string(text)), append(b.headers, req.Header.Clone())
	return b.answer(len(b.requests))
}

// answered is an answer with a status and what it asks for.
func answered(code int, retryAfter string) (*http.Response, error) {
	return &http.Response{StatusCode: code, Header: http.Header{"Retry-After": {retryAfter}}, Body: http.NoBody}, nil
}

// inBubble runs a test with a sender that runs.
func inBubble(t *testing.T, endpoint webhook.Endpoint, answer func(n int) (*http.Response, error), test func(t *testing.T, b *bubble)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bubble{answer: answer, began: time.Now()}
		endpoint.URL, endpoint.Timeout = "https://hooks.example", 10*time.Second
		endpoint.Kinds = webhook.Kinds()
		b.sender = webhook.NewSender(&webhook.Options{
			Term:      webhook.Term{Cluster: "prod", Shard: "eu1a", Epoch: 7},
			Endpoints: func() map[string]webhook.Endpoint { return map[string]webhook.Endpoint{"pager": endpoint} },
			Secret:    func(context.Context, string) ([]byte, error) { return []byte("from a file\n"), nil },
			Pool:      func(id nstance.InstanceID) *webhook.Pool { return &webhook.Pool{InstanceType: string(id)} },
			Observe:   func(name string, result webhook.Result) { b.results = append(b.results, name+" "+string(result)) },
			Log:       slog.New(slog.NewTextHandler(&b.log, nil)), Client: &http.Client{Transport: b}, Now: time.Now,
		})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { b.sender.Run(ctx) })
		b.stop = func() { cancel(); wg.Wait() }
		defer b.stop()
		test(t, b)
	})
}

// pass lets time pass: the bubble's clock goes on when all else waits.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// TestPace: a message is sent five times at most, each time after twice the pause, or after
// the time that the endpoint asks for if that is longer; a minute is the longest it gets.
func TestPace(t *testing.T) {
	const s = time.Second
	for name, c := range map[string]struct {
		code  int
		asked string
		at    []time.Duration
	}{
		"success":                 {204, "", []time.Duration{0}},
		"refused":                 {400, "", []time.Duration{0}},
		"moved":                   {308, "", []time.Duration{0}},
		"it took too long":        {408, "", []time.Duration{0, s, 3 * s, 7 * s, 15 * s}},
		"too many":                {429, "", []time.Duration{0, s, 3 * s, 7 * s, 15 * s}},
		"it has failed":           {500, "", []time.Duration{0, s, 3 * s, 7 * s, 15 * s}},
		"an unlisted failure":     {599, "", []time.Duration{0, s, 3 * s, 7 * s, 15 * s}},
		"asks for three seconds":  {503, "3", []time.Duration{0, 3 * s, 6 * s, 10 * s, 18 * s}},
		"asks for the past":       {503, "-3", []time.Duration{0, s, 3 * s, 7 * s, 15 * s}},
		"asks for a day":          {503, "86400", []time.Duration{0, 60 * s, 120 * s, 180 * s, 240 * s}},
		"asks for ages":           {503, "9223372036854775807", []time.Duration{0, 60 * s, 120 * s, 180 * s, 240 * s}},
		"asks for a distant date": {503, "Fri, 31 Dec 2077 23:59:59 GMT", []time.Duration{0, 60 * s, 120 * s, 180 * s, 240 * s}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, webhook.Endpoint{}, func(int) (*http.Response, error) { return answered(c.code, c.asked) }, func(t *testing.T, b *bubble) {
				b.sender.Event(noticed(1))
				pass(time.Hour)
				require.Equal(t, c.at, b.requests)
				want := "pager failed"
				if c.code == 204 {
					want = "pager sent"
				}
				require.Equal(t, []string{want}, b.results, "one result, whatever the attempts")
			})
		})
	}
}

// TestEndOfTheTerm: a message that is cut off by the end of the term was not refused, and
// the sender does not wait for what is gathered or tried again later.
func TestEndOfTheTerm(t *testing.T) {
	for name, c := range map[string]struct {
		gather time.Duration
		answer func(ended <-chan struct{}) (*http.Response, error)
	}{
		"between two attempts": {0, func(<-chan struct{}) (*http.Response, error) { return answered(503, "60") }},
		"in an attempt":        {0, func(ended <-chan struct{}) (*http.Response, error) { <-ended; return nil, context.Canceled }},
		"while it gathers":     {time.Minute, func(<-chan struct{}) (*http.Response, error) { return answered(200, "") }},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, webhook.Endpoint{Gather: c.gather}, nil, func(t *testing.T, b *bubble) {
				ended := make(chan struct{})
				b.answer = func(int) (*http.Response, error) { return c.answer(ended) }
				b.sender.Event(noticed(1))
				pass(time.Second / 2)
				began := time.Now()
				time.AfterFunc(time.Second, func() { close(ended) })
				b.stop()
				require.LessOrEqual(t, time.Since(began), time.Second)
				require.Empty(t, b.results)
				require.Empty(t, b.log.String())
			})
		})
	}
}

// TestEveryField: a message has all that its event has, and nothing else.
func TestEveryField(t *testing.T) {
	drain := &nstance.Drain{Generation: 3, Causes: []nstance.Cause{{Kind: nstance.CauseNotice, Message: "aws/spot terminate"}}}
	e := noticed(9)
	e.Type, e.Drain, e.Reason = nstance.EventDrainStarted, drain, "aws/spot"
	inBubble(t, webhook.Endpoint{SecretHeaders: map[string]string{"Authorization": "token"}}, func(int) (*http.Response, error) { return answered(200, "") }, func(t *testing.T, b *bubble) {
		b.sender.Event(e)
		pass(time.Second)
		want, err := json.Marshal(webhook.Message{
			ID: "prod/eu1a/7/9", Kind: webhook.DrainStarted, Time: e.Time, Cluster: "prod", Shard: "eu1a", Tenant: e.Tenant, Group: e.Group, Instance: e.Instance,
			Pool: &webhook.Pool{InstanceType: "web1"}, Event: e.Type, Reason: "aws/spot", Notice: e.Notice, Drain: drain,
		})
		require.NoError(t, err)
		require.Equal(t, []string{string(want)}, b.bodies)
		require.Equal(t, "from a file", b.headers[0].Get("Authorization"), "without the end of the line")
	})
}

// TestStanding: notices that stood when the term began have IDs that no event of the term
// has, and each its own: receivers drop what they have seen.
func TestStanding(t *testing.T) {
	inBubble(t, webhook.Endpoint{}, func(int) (*http.Response, error) { return answered(200, "") }, func(t *testing.T, b *bubble) {
		b.sender.Standing([]nstance.Event{noticed(0), {Type: nstance.EventCreated}, noticed(0)})
		b.sender.Event(noticed(1))
		pass(time.Second)
		var ids []string
		for i := range b.headers {
			ids = append(ids, b.headers[i].Get(webhook.IDHeader))
		}
		require.Equal(t, []string{"prod/eu1a/7/standing-1", "prod/eu1a/7/standing-3", "prod/eu1a/7/1"}, ids)
		require.Equal(t, []string{"pager sent", "pager sent", "pager sent"}, b.results)
	})
}

// TestRehearsedDrains: a drain is a rehearsal when every cause is one.
func TestRehearsedDrains(t *testing.T) {
	rehearsed, cloud := nstance.Cause{Message: notice.RehearsalSource + "ann terminate"}, nstance.Cause{Message: "aws/spot terminate"}
	inBubble(t, webhook.Endpoint{}, func(int) (*http.Response, error) { return answered(200, "") }, func(t *testing.T, b *bubble) {
		for _, causes := range [][]nstance.Cause{{rehearsed, rehearsed}, {rehearsed, cloud}, {cloud, rehearsed}, {}} {
			b.sender.Event(nstance.Event{Type: nstance.EventDrainStarted, Drain: &nstance.Drain{Causes: causes}})
		}
		pass(time.Second)
		var got []bool
		for _, text := range b.bodies {
			var m webhook.Message
			require.NoError(t, json.Unmarshal([]byte(text), &m))
			got = append(got, m.Rehearsal)
		}
		require.Equal(t, []bool{true, false, false, false}, got)
	})
}

// TestCountsAreInOrder: what a wave counts is in an order that depends on nothing else.
func TestCountsAreInOrder(t *testing.T) {
	inBubble(t, webhook.Endpoint{Gather: time.Minute}, func(int) (*http.Response, error) { return answered(200, "") }, func(t *testing.T, b *bubble) {
		send := func(tenant nstance.TenantID, group nstance.GroupID, id nstance.InstanceID) {
			e := noticed(1)
			e.Tenant, e.Group, e.Instance = tenant, group, id
			b.sender.Event(e)
		}
		send("b", "a", "type-c")
		send("a", "c", "type-b")
		send("c", "x", "type-a")
		send("c", "x", "type-d")
		send("a", "b", "type-d")
		pass(time.Hour)
		require.Equal(t, []time.Duration{time.Minute}, b.requests)
		var m webhook.Message
		require.NoError(t, json.Unmarshal([]byte(b.bodies[0]), &m))
		var groups, pools []string
		for _, g := range m.Wave.Groups {
			groups = append(groups, string(g.Tenant)+"/"+string(g.Group))
		}
		for _, p := range m.Wave.Pools {
			pools = append(pools, p.InstanceType)
		}
		require.Equal(t, []string{"c/x", "a/b", "a/c", "b/a"}, groups)
		require.Equal(t, []string{"type-d", "type-a", "type-b", "type-c"}, pools)
	})
}

// TestTriedTemplates: a template is tried with messages of one event and of several.
func TestTriedTemplates(t *testing.T) {
	require.Error(t, webhook.Try(`{{with .Wave}}{{.Nothing}}{{end}}`))
	require.Error(t, webhook.Try(`{{.Wave.Count}}`), "one event has no wave")
	require.Error(t, webhook.Try(`{{if eq .Kind "drain_started"}}{{.Nothing}}{{end}}`))
}
