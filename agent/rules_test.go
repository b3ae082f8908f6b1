package agent // tests rules that need no session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
)

// TestOverdueWithoutSession: an acknowledged notice waits for a server for a quarter of the time
// that is left, within 5 and 15 s, from the end of the session on; one that no server acknowledged
// waits no longer because there was none.
func TestOverdueWithoutSession(t *testing.T) {
	t.Parallel()
	const second = time.Second
	for name, c := range map[string]struct {
		left                time.Duration // until the cloud's deadline, at the end of the session; 0: it names none
		waits, notYet, then time.Duration
	}{
		"much time":   {time.Hour, 15 * second, 14 * second, 15 * second},
		"a minute":    {58 * second, 12 * second, 9 * second, 10 * second}, // of which the drain has 48 s, and less as time goes on
		"little time": {20 * second, 5 * second, 4 * second, 5 * second},
		"none":        {-time.Minute, 5 * second, 4 * second, 5 * second},
		"no deadline": {0, 5 * second, 4 * second, 5 * second}, // 20 s, as the shortest warning of any cloud leaves
	} {
		var o outbox
		n := reclaimNotice("a")
		n.Deadline = noon.Add(time.Minute + c.left)
		if c.left == 0 {
			n.Deadline = time.Time{}
		}
		o.observe(n, noon)
		o.ackNotices(1)
		due, wait := o.overdue(noon.Add(time.Hour), nil)
		require.Nil(t, due, name)
		require.Zero(t, wait, name)
		ended := noon.Add(time.Minute)
		o.end(ended)
		o.end(ended.Add(time.Second)) // no second one
		due, wait = o.overdue(ended, nil)
		require.Nil(t, due, name)
		require.InDelta(t, c.waits, wait, float64(500*time.Millisecond), name)
		due, _ = o.overdue(ended.Add(c.notYet), nil)
		require.Nil(t, due, name)
		o.begin()
		due, _ = o.overdue(ended.Add(time.Hour), nil)
		require.Nil(t, due, "%s: a server is back", name)
		o.end(ended)
		due, _ = o.overdue(ended.Add(c.then), nil)
		require.NotNil(t, due, name)
		due, _ = o.overdue(ended.Add(time.Hour), []string{"a"})
		require.Nil(t, due, "%s: a drain answers it", name)
	}
	var o outbox
	o.end(noon)
	o.observe(reclaimNotice("late"), noon.Add(time.Second))
	o.observe(reclaimNotice("b"), noon)
	withdrawn := reclaimNotice("c")
	withdrawn.Cancelled = true
	o.observe(withdrawn, noon.Add(-time.Hour))
	due, wait := o.overdue(noon.Add(4*time.Second), nil)
	require.Nil(t, due, "a withdrawn one dooms nothing")
	require.Equal(t, time.Second, wait, "until the first is")
	due, _ = o.overdue(noon.Add(5*time.Second), nil)
	require.Equal(t, "b", due.EventID)
}

// TestSoonerWait: of several messages that wait, the first one due decides.
func TestSoonerWait(t *testing.T) {
	t.Parallel()
	var o outbox
	for g := range uint64(3) {
		o.result(&apiv1.DrainResult{Generation: g + 1})
		m, _ := o.next(noon.Add(time.Duration(g) * time.Second))
		require.Equal(t, g+1, m.GetDrainResult().GetGeneration())
	}
	m, wait := o.next(noon.Add(3 * time.Second))
	require.Nil(t, m)
	require.Equal(t, 2*time.Second, wait)
	o.observe(reclaimNotice("a"), noon)
	m, _ = o.next(noon.Add(3 * time.Second))
	require.NotNil(t, m.GetNotices())
	_, wait = o.next(noon.Add(4 * time.Second))
	require.Equal(t, time.Second, wait)
}

// TestNoticeFile: a file that this version does not understand, of another machine, or damaged, is
// not used. What is printed of it later has no control characters.
func TestNoticeFile(t *testing.T) {
	t.Parallel()
	file := func(change func(f *noticeFile)) string {
		f := noticeFile{Version: noticeFileVersion, Instance: "web1", Notices: []savedNotice{{Notice: reclaimNotice("a"), Acknowledged: true, EverAcked: true}, {Notice: reclaimNotice("b")}}}
		change(&f)
		data, err := json.Marshal(f)
		require.NoError(t, err)
		return string(data)
	}
	good := file(func(*noticeFile) {})
	notices, err := parseNotices([]byte(good), "web1")
	require.NoError(t, err)
	require.Equal(t, []savedNotice{{Notice: reclaimNotice("a"), Acknowledged: true, EverAcked: true}, {Notice: reclaimNotice("b")}}, notices)
	for name, text := range map[string]string{
		"damaged": good[:len(good)-1], "empty": "", "another version": file(func(f *noticeFile) { f.Version++ }), "no version": file(func(f *noticeFile) { f.Version = 0 }),
		"another machine": file(func(f *noticeFile) { f.Instance = "web2" }), "no event ID": file(func(f *noticeFile) { f.Notices[1].EventID = "" }),
		"one event twice": file(func(f *noticeFile) { f.Notices[1].EventID = "a" }),
		"too many": file(func(f *noticeFile) {
			f.Notices = nil
			for i := range wire.MaxNotices + 1 {
				f.Notices = append(f.Notices, savedNotice{Notice: reclaimNotice(fmt.Sprint(i))})
			}
		}),
	} {
		_, err := parseNotices([]byte(text), "web1")
		require.ErrorIs(t, err, nstance.Invalid, name)
	}
	notices, err = parseNotices([]byte(file(func(f *noticeFile) {
		f.Notices[0].EventID, f.Notices[0].Action, f.Notices[0].Source = "e\x1b[2J", "a\x00", "s\x07"
	})), "web1")
	require.NoError(t, err)
	for _, text := range []string{notices[0].EventID, notices[0].Action, notices[0].Source} {
		require.NotContains(t, strings.ToValidUTF8(text, ""), "\x1b")
		require.NotContains(t, text, "\x00")
		require.NotContains(t, text, "\x07")
	}
}

// An unreadable detector says since when it cannot read the metadata service.
type unreadable struct {
	nstance.SpotDetector
	since time.Time
	err   error
}

func (u unreadable) Unreadable() (time.Time, error) { return u.since, u.err }

// TestMetadataProblem: it is reported two minutes after it began, whatever was tried meanwhile, and
// until a detector is there that can read.
func TestMetadataProblem(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var p metadataProblem
		require.Empty(t, p.text())
		p.set(nil, errors.New("no route"), time.Now())
		<-time.After(metadataGrace - 1)
		require.Empty(t, p.text())
		p.set(nil, errors.New("refused"), time.Now())
		<-time.After(1)
		require.Equal(t, "refused", p.text(), "since the first")
		p.set(unreadable{}, nil, time.Now())
		require.Empty(t, p.text())
		p.set(nil, errors.New("again"), time.Now())
		require.Empty(t, p.text(), "it begins anew")
		p.set(unreadable{since: time.Now(), err: errors.New("403")}, nil, time.Now())
		require.Empty(t, p.text())
		<-time.After(metadataGrace)
		require.Equal(t, "403", p.text(), "as the detector says")
	})
}

// TestHashOfFiles: what reports could not carry is no hash of files, and is not written.
func TestHashOfFiles(t *testing.T) {
	t.Parallel()
	v := identityDir{dir: t.TempDir(), mode: 0o600}
	require.NoError(t, v.record("h1"))
	for name, hash := range map[string]string{"empty": "", "long": strings.Repeat("h", 257), "two words": "h 2", "two lines": "h\n2"} {
		require.ErrorIs(t, v.record(hash), nstance.Invalid, name)
		require.Equal(t, "h1", v.configHash(), name)
	}
}

// A failingNamer fails with err until ctx ends, and counts.
type failingNamer struct {
	nstance.SpotDetector
	err   error
	calls int
}

func (n *failingNamer) Machine(context.Context) (string, error) { n.calls++; return "", n.err }

// TestSessionsDoNotWaitForAMetadataServiceThatFails: a first session goes without the name once it
// could not be read. An imitation of a service is not asked again.
func TestSessionsDoNotWaitForAMetadataServiceThatFails(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		code  nstance.Code
		again bool
	}{{nstance.Unavailable, true}, {nstance.NotFound, false}, {nstance.Internal, false}} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			n, d, ended := newMachineName(), &failingNamer{err: nstance.Errorf(c.code, "no name")}, make(chan struct{})
			began := time.Now()
			go func() { defer close(ended); n.learn(ctx, d) }()
			require.Empty(t, n.wait(ctx))
			require.Zero(t, time.Since(began), c.code)
			<-ended
			require.Equal(t, c.again, d.calls > 1, c.code)
		})
	}
}

// TestLateUserData: user data that comes hours late is noticed within seconds. No server was asked
// meanwhile, so that none needs sparing.
func TestLateUserData(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := &Agent{o: (&Options{}).withDefaults()}
		r := &route{addrs: []string{"server:8992"}}
		for range 100 {
			a.obtain(t.Context(), r, "registered", func(string) error {
				return &noUserData{nstance.Errorf(nstance.Invalid, "half a nonce")}
			})
			require.LessOrEqual(t, outageBackoff(r.failures), maxBackoff)
			require.False(t, r.refused)
		}
	})
}
