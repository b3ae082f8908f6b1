package agents

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/internal/files"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/loop"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// TestRivalry: takeovers between two sources count together within ten minutes. A reconnect from
// the same source, and one after the session has ended, is none.
func TestRivalry(t *testing.T) {
	a, b, c := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")
	type step struct {
		source netip.Addr
		after  time.Duration
		count  int
	}
	for name, steps := range map[string][]step{
		"in turns":                    {{a, 0, 0}, {b, 0, 1}, {a, 1, 2}, {b, 1, 3}, {a, 1, 4}},
		"it reconnects in between":    {{a, 0, 0}, {b, 0, 1}, {b, 1, 0}, {a, 1, 2}, {a, 1, 0}, {b, 1, 3}},
		"it moves":                    {{a, 0, 0}, {b, 0, 1}, {c, 1, 1}, {a, 1, 1}},
		"with long pauses":            {{a, 0, 0}, {b, 0, 1}, {a, 5 * time.Minute, 2}, {b, 5 * time.Minute, 1}, {a, 1, 2}},
		"the first is the one to end": {{a, 0, 0}, {b, 0, 1}, {a, takeoverTime - 1, 2}, {b, 0, 3}},
	} {
		var old *session
		now := time.Now()
		for i, step := range steps {
			now = now.Add(step.after)
			s := &session{source: step.source}
			require.Equal(t, step.count, s.takeOver(old, now), "%s, step %d", name, i)
			old = s
		}
	}
}

// TestContestedSession: two sources that take a session from each other are reported at the third
// takeover, with both addresses; the session goes on.
func TestContestedSession(t *testing.T) {
	var reasons []string
	l := newSessions(func(nstance.Fact) {})
	l.contested = func(_ nstance.InstanceID, reason string) { reasons = append(reasons, reason) }
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	var open []*session
	for i := range 4 {
		s := &session{id: "web1", source: []netip.Addr{a, b}[i%2]}
		s.ctx, s.cancel = context.WithCancelCause(t.Context())
		require.NoError(t, l.begin(s))
		open = append(open, s)
	}
	require.Equal(t, []string{"sessions come from 10.0.0.1 and 10.0.0.2 in turns: two parties hold its key"}, reasons)
	require.ErrorIs(t, context.Cause(open[2].ctx), errReplaced)
	require.NoError(t, open[3].ctx.Err())
	require.Same(t, open[3], l.get("web1"))
}

// TestSessionFacts: a session that was replaced ends without a fact, and none begins after the
// close.
func TestSessionFacts(t *testing.T) {
	var facts []nstance.Fact
	l := newSessions(func(f nstance.Fact) { facts = append(facts, f) })
	open := func() *session {
		s := &session{id: "web1"}
		s.ctx, s.cancel = context.WithCancelCause(t.Context())
		return s
	}
	first, second := open(), open()
	require.NoError(t, l.begin(first))
	require.NoError(t, l.begin(second))
	l.end(first, false)
	l.end(second, true)
	l.end(second, false)
	require.Equal(t, []nstance.Fact{nstance.Connected{ID: "web1"}, nstance.Connected{ID: "web1"}, nstance.Disconnected{ID: "web1", Clean: true}}, facts)
	over := errors.New("over")
	l.close(over)
	require.ErrorIs(t, l.begin(open()), over)
	require.Len(t, facts, 3)
	require.Zero(t, l.count())
}

// TestVisible counts the sessions of the tenants that a caller sees.
func TestVisible(t *testing.T) {
	l := newSessions(func(nstance.Fact) {})
	for i, tenant := range []nstance.TenantID{"blue", "red", "red"} {
		s := &session{id: nstance.InstanceID(fmt.Sprint("i", i)), group: nstance.GroupKey{Tenant: tenant, Group: nstance.GroupID(fmt.Sprint("g", i))}}
		s.ctx, s.cancel = context.WithCancelCause(t.Context())
		require.NoError(t, l.begin(s))
	}
	require.Equal(t, 2, l.visible(func(t nstance.TenantID) bool { return t == "red" }))
	require.Zero(t, l.visible(func(t nstance.TenantID) bool { return t == "green" }))
	require.Equal(t, 3, l.count())
}

// TestReconnect: agents with another interval are asked to come back, one after another within a
// minute, until the caller gives up.
func TestReconnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &Agents{sessions: newSessions(func(nstance.Fact) {})}
		var asked []*slowAgent
		for i := range 3 {
			s, d := newSlowAgent(t)
			close(d.Read)
			s.id, s.reportInterval = nstance.InstanceID(fmt.Sprint("i", i)), time.Minute
			if i == 0 {
				s.reportInterval = time.Hour
			}
			require.NoError(t, a.sessions.begin(s))
			asked = append(asked, d)
		}
		goAways := func() (n int) {
			synctest.Wait()
			for _, d := range asked {
				for _, m := range d.Sent {
					if m.GetGoAway() != nil {
						n++
					}
				}
			}
			return n
		}
		require.False(t, a.Reconnect(time.Hour, func(time.Duration) bool { return false }))
		require.Equal(t, 1, goAways())
		var pauses []time.Duration
		require.True(t, a.Reconnect(time.Hour, func(d time.Duration) bool { pauses = append(pauses, d); return true }))
		require.Equal(t, []time.Duration{maxReconnectPause, closeGrace}, pauses, "the last one has time to end its session")
		require.Empty(t, asked[0].Sent, "its interval is right")
		require.True(t, a.Reconnect(time.Minute, func(time.Duration) bool { return true }))
		require.Equal(t, 4, goAways())
		require.NotEmpty(t, asked[0].Sent)
		<-time.After(2 * closeGrace)
		for _, s := range a.sessions.all() {
			require.ErrorIs(t, context.Cause(s.ctx), errInterval)
		}
	})
}

// TestRenewalSpread: twenty agents a second, within bounds.
func TestRenewalSpread(t *testing.T) {
	a := &Agents{sessions: newSessions(func(nstance.Fact) {})}
	for n, want := range map[int]time.Duration{0: 5 * time.Second, 100: 5 * time.Second, 400: 20 * time.Second, 20_000: 15 * time.Minute} {
		clear(a.sessions.byID)
		for i := range n {
			a.sessions.byID[nstance.InstanceID(fmt.Sprint(i))] = nil
		}
		require.Equal(t, want, a.RenewalSpread(), n)
	}
}

// TestEventIDs: an event that its provider gives no ID of its own is named by the time of its
// detection, unless it is in effect.
func TestEventIDs(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6_000_000, time.FixedZone("", 3600))
	n := nstance.Notice{Kind: nstance.Terminate, EventID: "node1", DetectedAt: at}
	const named = "node1@2026-01-02T02:04:05.006Z"
	change := func(f func(*nstance.Notice)) nstance.Notice {
		other := n
		f(&other)
		return other
	}
	for _, c := range []struct {
		want     string
		inEffect []nstance.Notice
	}{
		{named, nil},
		{named, []nstance.Notice{{EventID: "node10@2026-01-01T00:00:00.000Z"}, {EventID: "other"}}},
		{"node1@2026-01-01T00:00:00Z", []nstance.Notice{{EventID: "other"}, {EventID: "node1@2026-01-01T00:00:00Z"}}},
		{"node1", []nstance.Notice{{EventID: "node1"}}},
	} {
		require.Equal(t, c.want, EventID(c.inEffect, n))
	}
	for name, known := range map[string]nstance.Notice{
		"withdrawn": change(func(n *nstance.Notice) { n.Cancelled = true }), "dooms nothing": change(func(n *nstance.Notice) { n.Kind = nstance.Rebalance }),
		"has a deadline": change(func(n *nstance.Notice) { n.Deadline = at }),
	} {
		require.Equal(t, "node1", EventID(nil, known), name)
	}
}

// TestNoticesOfAnInstance: the oldest is forgotten, a change is new, and what another source has
// announced was journalled with it unless that is withdrawn.
func TestNoticesOfAnInstance(t *testing.T) {
	var b noticeBook
	d := b.of("web1")
	require.Same(t, d, b.of("web1"))
	n := nstance.Notice{Kind: nstance.Rebalance, Source: "aws/rebalance", EventID: "e0"}
	first, isNew := d.receive(n)
	require.True(t, isNew)
	require.False(t, first.journalled.Load())
	first.settled.Store(true)
	again, isNew := d.receive(n)
	require.False(t, isNew)
	require.Same(t, first, again)

	bus := n
	bus.EventID, bus.Source = "bus", "aws/rebalance/eventbridge"
	state, isNew := d.receive(bus)
	require.True(t, isNew)
	require.True(t, state.journalled.Load(), "its event is known")
	for _, id := range []string{"e0", "bus"} {
		withdrawn := n
		withdrawn.EventID, withdrawn.Cancelled = id, true
		state, isNew = d.receive(withdrawn)
		require.True(t, isNew)
		require.False(t, state.settled.Load())
	}
	third := bus
	third.EventID, third.Source = "third", "aws/rebalance/other"
	state, _ = d.receive(third)
	require.False(t, state.journalled.Load(), "the others are withdrawn")

	for i := range maxNotices {
		n.EventID = fmt.Sprint("more", i)
		d.put(&noticeState{notice: n})
	}
	require.Len(t, d.byEvent, maxNotices)
	require.Len(t, d.order, maxNotices)
	require.False(t, d.knows("e0"), "the oldest")
	require.True(t, d.knows("more0"))
	a := &Agents{}
	d = a.notices.of("web1")
	a.Forget("web1")
	require.NotSame(t, d, a.notices.of("web1"))
}

// TestRelease: of machines that share an event, the last one acknowledges it, whatever the
// provider makes of their names.
func TestRelease(t *testing.T) {
	var b noticeBook
	shared := nstance.Notice{Kind: nstance.Reclaim, Source: "azure/preempt", EventID: "e1", Machines: []string{"WEB1", "web2"}}
	for _, id := range []nstance.InstanceID{"web1", "web2", "web3"} {
		b.of(id).receive(shared)
		b.of(id).receive(nstance.Notice{Kind: nstance.Reclaim, Source: "azure/preempt", EventID: "own-" + string(id), Machines: []string{string(id)}})
	}
	require.Empty(t, b.release("web3", b.of("web3")), "it is not among them")
	require.Empty(t, b.release("web1", b.of("web1")))
	require.Empty(t, b.release("web1", b.of("web1")), "it alone, twice")
	changed := shared
	changed.Deadline = time.Now().Add(time.Minute)
	b.of("web2").receive(changed)
	require.Equal(t, []string{"e1"}, b.release("web2", b.of("web2")), "a change of the event forgets no release")
	withdrawn := changed
	withdrawn.Cancelled = true
	b.of("web2").receive(withdrawn)
	require.Empty(t, b.release("web2", b.of("web2")), "it is withdrawn")
}

// TestReleaseWhileNoticesCome: an agent that sends notices while its machine is released has the oldest
// forgotten meanwhile.
func TestReleaseWhileNoticesCome(t *testing.T) {
	for range 200 {
		var b noticeBook
		d := b.of("web1")
		put := func(kind nstance.NoticeKind, event string) {
			d.receive(nstance.Notice{EventID: event, Kind: kind, Machines: []string{"web1", "web2"}})
		}
		for i := range maxNotices {
			put(nstance.Reclaim, fmt.Sprint("reclaim", i))
		}
		var sending sync.WaitGroup
		sending.Go(func() {
			for i := range noticeBurst {
				put(nstance.Rebalance, fmt.Sprint("rebalance", i))
			}
		})
		b.release("web2", b.of("web2"))
		b.release("web1", d)
		sending.Wait()
	}
}

// TestReleased: a machine is released once its deletion is durable, unless its drain was cut short
// or failed.
func TestReleased(t *testing.T) {
	drained := func(o nstance.Outcome) *records.End { return &records.End{Drained: &records.DrainEnd{Outcome: o}} }
	deleting := &records.Deletion{At: time.Now()}
	for name, c := range map[string]struct {
		rec  records.Instance
		want bool
	}{
		"it stays":                {records.Instance{End: drained(nstance.OutcomeDrained)}, false},
		"without a drain":         {records.Instance{Deleting: deleting, End: &records.End{}}, true},
		"of an older version":     {records.Instance{Deleting: deleting}, true},
		"drained":                 {records.Instance{Deleting: deleting, End: drained(nstance.OutcomeDrained)}, true},
		"its drain failed":        {records.Instance{Deleting: deleting, End: drained(nstance.OutcomeFailed)}, false},
		"its drain was cut short": {records.Instance{Deleting: deleting, CutShort: true, End: &records.End{}}, false},
	} {
		recs := records.New(storage.NewMemory(), "s1", nil)
		c.rec.ID, c.rec.Tenant, c.rec.Group = testID(t), "default", "web"
		_, err := recs.Create(t.Context(), c.rec)
		require.NoError(t, err)
		a := &Agents{shard: recordShard{&fakeShard{}, recs}}
		require.Equal(t, c.want, a.isReleased(c.rec.ID), name)
		require.False(t, a.isReleased("unknown"))
	}
}

func testID(t *testing.T) nstance.InstanceID {
	t.Helper()
	id, err := nstance.NewInstanceID("web", time.Now())
	require.NoError(t, err)
	return id
}

// A recordShard has records.
type recordShard struct {
	*fakeShard
	recs *records.Records
}

func (s recordShard) Records() *records.Records { return s.recs }

// TestLastExpiryInCertificateLog: of the certificates of one key, in whatever object they are.
func TestLastExpiryInCertificateLog(t *testing.T) {
	t.Parallel()
	now := time.Now().UTC().Truncate(time.Second)
	l := &certlog{store: storage.NewMemory(), shard: "s1", check: func() error { return nil }, bound: context.WithCancel}
	for _, c := range []struct {
		issuer string
		days   int
	}{{"old", 1}, {"old", 90}, {"old", 30}, {"new", 91}} {
		require.NoError(t, l.append(t.Context(), issuedCertificate{Issuer: c.issuer, NotAfter: now.AddDate(0, 0, c.days)}))
	}
	for issuer, want := range map[string]int{"old": 90, "new": 91, "unknown": 2} {
		last, err := l.lastExpiry(t.Context(), issuer, now.AddDate(0, 0, 2))
		require.NoError(t, err)
		require.Equal(t, now.AddDate(0, 0, want), last, issuer)
	}
	last, err := l.lastExpiry(t.Context(), "old", now.AddDate(0, 0, 100))
	require.NoError(t, err)
	require.Equal(t, now.AddDate(0, 0, 100), last)
}

// TestCertificateLog: a certificate is durable before it is handed out, in an object that is kept
// until the last certificate in it has long expired; those that come meanwhile are written together.
func TestCertificateLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		store := storagetest.NewFaulty(storage.NewMemory())
		var over error
		l := &certlog{store: store, shard: "s1", check: func() error { return over }, bound: context.WithCancel, mayPrune: func() error { return nil }}
		var wg sync.WaitGroup
		var mu sync.Mutex
		var failed []error
		issue := func(ctx context.Context, days ...int) {
			for _, n := range days {
				wg.Go(func() {
					err := l.append(ctx, issuedCertificate{Serial: fmt.Sprint(n), NotAfter: now.AddDate(0, 0, n)})
					mu.Lock()
					failed = append(failed, err)
					mu.Unlock()
				})
			}
			synctest.Wait()
		}
		release := make(chan struct{})
		store.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Pass: true, Do: func() { <-release }})
		issue(t.Context(), 1)
		hasty, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		issue(hasty, 2)
		issue(t.Context(), 5)
		issue(t.Context(), 3)
		<-time.After(time.Minute)
		synctest.Wait()
		require.Len(t, failed, 1, "that whose caller has left")
		require.ErrorIs(t, failed[0], nstance.Unavailable)
		close(release)
		wg.Wait()
		require.Equal(t, []error{nil, nil, nil}, failed[1:])
		var keys []string
		for e, err := range store.List(t.Context(), layout.CertLogPrefix("s1"), "") {
			require.NoError(t, err)
			obj, err := store.Get(t.Context(), e.Key)
			require.NoError(t, err)
			keys = append(keys, fmt.Sprint(e.Key[:len("certlog/s1/2006-01-02")], " ", strings.Count(string(obj.Data), "\n")))
		}
		date := func(days int) string { return "certlog/s1/" + now.UTC().AddDate(0, 0, days).Format(time.DateOnly) }
		require.Equal(t, []string{date(1) + " 1", date(5) + " 3"}, keys)

		failed, over = nil, errors.New("over")
		issue(t.Context(), 1)
		require.ErrorIs(t, failed[0], over)
		over = nil
		store.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Err: nstance.Denied})
		issue(t.Context(), 1)
		require.ErrorIs(t, failed[1], nstance.Denied)
		issue(t.Context(), 1)
		require.NoError(t, failed[2], "a failure is that of its batch")

		left := func() (n int) {
			for range store.List(t.Context(), layout.CertLogPrefix("s1"), "") {
				n++
			}
			return n
		}
		require.NoError(t, l.prune(t.Context(), now.AddDate(0, 0, 31)))
		require.Equal(t, 3, left(), "thirty days after their expiry they stay")
		l.mayPrune = func() error { return over }
		over = errors.New("the clock is not trusted")
		require.ErrorIs(t, l.prune(t.Context(), now.AddDate(0, 0, 32)), over)
		require.Equal(t, 3, left())
		over = nil
		require.NoError(t, l.prune(t.Context(), now.AddDate(0, 0, 32)))
		require.Equal(t, 1, left(), "that which expires later stays")
		store.Inject(storagetest.Fault{Op: storagetest.Delete, Err: nstance.NotFound})
		require.NoError(t, l.prune(t.Context(), now.AddDate(1, 0, 0)), "another leader has deleted it")
		store.Inject(storagetest.Fault{Op: storagetest.Delete, Err: nstance.Denied})
		require.ErrorIs(t, l.prune(t.Context(), now.AddDate(1, 0, 0)), nstance.Denied)
	})
}

// TestCertificateLogIsPrunedAgain: an hour after it failed, a day after it did not.
func TestCertificateLogIsPrunedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var checks int
		var failure error
		store := storage.NewMemory()
		l := &certlog{store: store, shard: "s1", check: func() error { return nil }, bound: context.WithCancel, mayPrune: func() error { checks++; return failure }}
		for range 2 {
			require.NoError(t, l.append(t.Context(), issuedCertificate{NotAfter: time.Now().AddDate(-1, 0, 0)}))
		}
		k, _, _ := newTestKeeper()
		k.certs, k.agents.sessions = l, newSessions(nil)
		k.agents.Config = func() *config.Config { return &config.Config{} }
		failure = errors.New("the clock is not trusted")
		pass := func(after time.Duration) int {
			before := checks
			<-time.After(after)
			k.pass(t.Context())
			return checks - before
		}
		require.Equal(t, 1, pass(0))
		require.Zero(t, pass(time.Hour))
		failure = nil
		require.Equal(t, 2, pass(time.Second))
		require.NoError(t, l.append(t.Context(), issuedCertificate{NotAfter: time.Now().AddDate(-1, 0, 0)}))
		require.Zero(t, pass(24*time.Hour))
		require.Equal(t, 1, pass(time.Second))
	})
}

// TestMachineOf: what templates say of a machine is as the provider says, as the machine does where
// the provider says nothing, and nothing where none does.
func TestMachineOf(t *testing.T) {
	addr := netip.MustParseAddr
	rec := records.Instance{
		ID: testID(t), Tenant: "blue", Image: "ami-1", Hostname: "web1.example.org", Shape: records.Shape{InstanceType: "small"},
		Addresses: []netip.Addr{addr("10.0.0.9"), addr("fd00::9")},
	}
	v := loop.Runtime{Definition: nstance.Definition{Arch: "arm64", GivenVars: []string{"x"}}, Machine: nstance.Machine{Addresses: []netip.Addr{addr("fd00::1"), addr("::ffff:10.0.0.1"), addr("10.0.0.2")}}}
	m := machineOf(rec, v)
	require.Equal(t, files.Machine{
		Instance: files.Instance{ID: rec.ID, Kind: "web", Arch: "arm64", Type: "small", Hostname: "web1", FQDN: "web1.example.org", IP4: "10.0.0.1", IP6: "fd00::1"},
		Image:    "ami-1", Tenant: "blue", Addresses: v.Machine.Addresses, GivenVars: []string{"x"},
	}, m)
	v.Machine.Addresses, rec.Hostname = nil, "web1"
	m = machineOf(rec, v)
	require.Equal(t, []string{"10.0.0.9", "fd00::9", "web1", ""}, []string{m.Instance.IP4, m.Instance.IP6, m.Instance.Hostname, m.Instance.FQDN})
	require.Empty(t, m.Addresses, "no certificate is for what only the machine says")
	rec.Addresses, rec.Hostname = nil, ""
	m = machineOf(rec, v)
	require.Equal(t, []string{"", "", "", ""}, []string{m.Instance.IP4, m.Instance.IP6, m.Instance.Hostname, m.Instance.FQDN})
}

// TestFileDeadlines: each phase of a transfer has its time. An agent that takes no pieces is left;
// one that gives no answer is asked again, later each time.
func TestFileDeadlines(t *testing.T) {
	for name, c := range map[string]struct {
		phase filePhase
		limit time.Duration
		left  bool
	}{
		"keys": {filesAsked, answerTimeout, false}, "contents": {filesBegun, answerTimeout, false},
		"outcome": {filesApplying, applyTimeout, false}, "pieces": {filesSending, pieceTimeout, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k, _, _ := newTestKeeper()
				s := newFileSession(t, k, "web1")
				set := &files.Set{Hash: "h"}
				begin := func() { s.files.phase, s.files.since, s.files.set = c.phase, time.Now(), set }
				begin()
				<-time.After(c.limit)
				require.Same(t, s.files.slot, s.checkFileDeadlines())
				require.Equal(t, c.phase, s.files.phase)
				require.NoError(t, s.ctx.Err())
				<-time.After(time.Nanosecond)
				s.checkFileDeadlines()
				if c.left {
					require.ErrorIs(t, context.Cause(s.ctx), errSlow)
					return
				}
				require.NoError(t, s.ctx.Err())
				require.Equal(t, filesIdle, s.files.phase)
				require.Nil(t, s.files.set)
				require.Equal(t, time.Now().Add(firstRetry), s.files.retryAt)
				s.checkFileDeadlines()
				require.Empty(t, k.dirty, "not before its time")
				<-time.After(firstRetry)
				s.checkFileDeadlines()
				require.Equal(t, []*session{s}, k.dirty)
				begin()
				<-time.After(c.limit + 1)
				s.checkFileDeadlines()
				require.Equal(t, time.Now().Add(2*firstRetry), s.files.retryAt)
			})
		})
	}
}

// TestReportsOfFiles: a report is compared with the set. The first one after a set was applied may
// be older than it; one that says something else after that counts.
func TestReportsOfFiles(t *testing.T) {
	k, _, _ := newTestKeeper()
	s := newFileSession(t, k, "web1")
	s.files.known = false
	have := []nstance.FileStatus{{Path: "a", Digest: "da"}}
	s.files.set, s.files.phase = &files.Set{Hash: "new", Files: []files.File{{Path: "a", Digest: "da"}}}, filesApplying
	s.handleFilesApplied(&apiv1.FilesApplied{Hash: "new", Files: []*apiv1.FileStatus{{Path: "a", Digest: "da"}}})
	old := nstance.Report{ConfigHash: "old", Files: []nstance.FileStatus{{Path: "a", Digest: "older"}}}
	got := s.filesReported(old)
	require.Equal(t, []any{"new", have}, []any{got.ConfigHash, got.Files})
	require.Empty(t, k.dirty)
	require.Equal(t, old, s.filesReported(old), "it has changed on the machine")
	require.Equal(t, []*session{s}, k.dirty)
	require.True(t, s.files.queued)
	s.filesReported(old)
	require.Len(t, k.dirty, 1, "once")
}

// TestTransferOrder: an answer to an older announcement begins nothing, each content is sent once, in
// pieces, and the commit comes last.
func TestTransferOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, _, _ := newTestKeeper()
		s, d := newSlowAgent(t)
		close(d.Read)
		s.agents = k.agents
		s.files.phase, s.files.set = filesBegun, &files.Set{Hash: "h"}
		s.handleFilesWanted(&apiv1.FilesWanted{Hash: "older"})
		synctest.Wait()
		require.Empty(t, d.Sent)
		require.Equal(t, filesBegun, s.files.phase)
		s.handleFilesWanted(&apiv1.FilesWanted{Hash: "h", Digests: []string{"unknown"}})
		synctest.Wait()
		require.Len(t, d.Sent, 1)
		require.Equal(t, "h", d.Sent[0].GetFilesCommit().GetHash())
		require.Equal(t, filesApplying, s.files.phase)
		s.handleFilesWanted(&apiv1.FilesWanted{Hash: "h"})
		synctest.Wait()
		require.Len(t, d.Sent, 1, "it was sent")
		s.cancel(nil)
		s.wg.Wait()
	})
}

// TestKeysThatWereNotAskedFor are not taken, and of those that were no more than a machine may have.
func TestKeysThatWereNotAskedFor(t *testing.T) {
	k, _, _ := newTestKeeper()
	s := newFileSession(t, k, "web1")
	keys := &apiv1.FileKeys{Keys: []*apiv1.FileKey{{Name: "a", Error: "no disk"}}}
	s.handleFileKeys(keys)
	require.Empty(t, s.files.keys)
	s.files.phase = filesAsked
	s.handleFileKeys(keys)
	require.Len(t, s.files.keys, 1)
	require.Equal(t, []*session{s}, k.dirty)
	require.False(t, s.files.knowsKeys([]string{"a"}), "it has none")
	require.False(t, s.files.knowsKeys([]string{"b"}))
	require.True(t, s.files.knowsKeys(nil))
}
