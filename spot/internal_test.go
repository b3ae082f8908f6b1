package spot

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
)

// The environment's proxies are read once in a process and never used for
// 127.0.0.1, so no request can show this.
func TestDirectClientHasNoProxy(t *testing.T) {
	transport, ok := directClient().Transport.(*http.Transport)
	require.True(t, ok)
	require.Nil(t, transport.Proxy)
}

func TestNoticeDedupIsBounded(t *testing.T) {
	l := newNoticeDedup()
	now := at(time.Unix(1e9, 0))
	for i := range 10 * maxStanding {
		n := nstance.Notice{EventID: fmt.Sprint(i)}
		if i%2 == 0 {
			n.Deadline = now.cloud
		}
		l.update([]nstance.Notice{n}, false, now)
	}
	require.LessOrEqual(t, len(l.standing)+len(l.ignored), maxStanding)
	l.update(nil, true, now)
	require.Empty(t, l.standing)
	require.Empty(t, l.ignored, "what is no longer announced is forgotten")
}

func TestNoticeDedupKeepsFirstOfSameIdentity(t *testing.T) {
	l := newNoticeDedup()
	twice := []nstance.Notice{{EventID: "x", Action: "a"}, {EventID: "x", Action: "b"}}
	for range 3 {
		l.update(twice, true, at(time.Unix(1e9, 0)))
	}
	news, _ := l.update(twice, true, at(time.Unix(1e9, 0)))
	require.Empty(t, news, "two entries must not take turns")
}

// at is a time at which both clocks are right.
func at(t time.Time) instant { return instant{t, t} }

func TestInstants(t *testing.T) {
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	date := noon.Format(http.TimeFormat)
	cases := map[string]struct {
		date  string
		local time.Duration // of the machine's clock, after noon
		took  time.Duration
		cloud time.Duration // of the cloud's clock, after noon
	}{
		"no date: the machine's":               {"", time.Hour, 0, time.Hour},
		"no date that can be read: likewise":   {"noon", time.Hour, 0, time.Hour},
		"right to the second":                  {date, 0, 0, 0},
		"right, as far as whole seconds tell":  {date, 900 * time.Millisecond, 0, 900 * time.Millisecond},
		"right, as far as a slow answer tells": {date, 2500 * time.Millisecond, 1500 * time.Millisecond, 2500 * time.Millisecond},
		"slow":                                 {date, -45 * time.Second, 0, 0},
		"fast":                                 {date, 3 * time.Minute, 100 * time.Millisecond, 1100 * time.Millisecond},
		"fast, by a long poll":                 {date, 3 * time.Minute, 10 * time.Second, 3 * time.Second},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			at := instantOf(c.date, noon.Add(c.local), c.took)
			require.Equal(t, noon.Add(c.cloud), at.cloud)
			require.Equal(t, noon.Add(c.local), at.local)
			require.Equal(t, c.local+time.Minute, at.localOf(at.cloud.Add(time.Minute)).Sub(noon))
			require.Zero(t, at.localOf(time.Time{}))
		})
	}
}

// FuzzNoticeDedup applies readings to a model of a reader: after each update the reader
// has what the cloud announces, except late ones.
func FuzzNoticeDedup(f *testing.F) {
	f.Add([]byte{0x01, 0x03, 0x82, 0x00, 0xff})
	f.Fuzz(func(t *testing.T, steps []byte) {
		l, now := newNoticeDedup(), time.Unix(1e9, 0)
		held := map[string]nstance.Notice{}
		for i, step := range steps {
			complete := step&0x80 == 0
			var seen []nstance.Notice
			for bit := range 4 {
				if step&(1<<bit) != 0 {
					seen = append(seen, nstance.Notice{EventID: fmt.Sprint(bit), Action: fmt.Sprint(step >> 4 & 1)})
				}
			}
			news, late := l.update(seen, complete, at(now.Add(time.Duration(i))))
			require.Empty(t, late)
			for _, n := range news {
				if !n.Cancelled {
					require.NotEqual(t, held[n.EventID], n, "yielded twice")
					held[n.EventID] = n
					continue
				}
				require.Contains(t, held, n.EventID, "withdrawn without having been yielded")
				require.True(t, complete, "withdrawn by an incomplete reading")
				delete(held, n.EventID)
			}
			for _, n := range seen {
				require.Equal(t, n.Action, held[n.EventID].Action)
			}
			if complete {
				require.Len(t, held, len(seen))
			}
		}
	})
}

// FuzzParse feeds every parser. For any output of a service, a resulting notice is
// complete, bounded, and the same when read again.
func FuzzParse(f *testing.F) {
	parsers := map[string]func([]byte) ([]nstance.Notice, error){
		"aws/spot":                 parseInstanceAction,
		"aws/rebalance":            parseRebalance,
		"aws/maintenance":          parseMaintenance,
		"aws/autoscaling":          parseTargetState,
		"gcp/preempted":            parsePreempted,
		"gcp/maintenance":          parseMaintenanceEvent,
		"gcp/shutdown":             parseStopState,
		"gcp/upcoming-maintenance": parseUpcoming,
	}
	for _, seed := range []string{
		"", "null", "[]", "{}", "[null]", "TRUE", "FALSE", "NONE", "Terminated", "PENDING_STOP",
		"MIGRATE_ON_HOST_MAINTENANCE", "<html>", `{"action":"terminate","time":"2024-01-01T12:00:00Z"}`,
		`{"action":"stop","time":"2024-01-01T12:00:00+25:00"}`, `{"action":"stop","time":"0000-01-01T00:00:00Z"}`,
		`{"noticeTime":"2024-01-01T12:00:00.123Z"}`,
		`[{"EventId":"e","Code":"system-reboot","State":"active","NotBefore":"21 Jan 2019 09:00:43 GMT"}]`,
		`[{"EventId":"e","Code":"system-reboot","State":"active","NotBefore":"21 Jan 2019 09:00:43 CET"}]`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for source, parse := range parsers {
			found, err := parse(body)
			again, errAgain := parse(body)
			require.Equal(t, found, again)
			require.Equal(t, err, errAgain)
			require.LessOrEqual(t, len(found), maxStanding)
			for _, n := range found {
				checkParsed(t, source, n)
			}
		}
	})
}

func checkParsed(t *testing.T, source string, n nstance.Notice) {
	require.Equal(t, source, n.Source)
	require.True(t, strings.HasPrefix(n.EventID, "aws/") || strings.HasPrefix(n.EventID, "gcp/"))
	require.Less(t, len(n.EventID), 256)
	require.LessOrEqual(t, len(n.Action), maxWordLen)
	require.NotEmpty(t, n.Kind)
	require.Zero(t, n.DetectedAt)
	for _, at := range []time.Time{n.Deadline, n.NotBefore} {
		require.True(t, at.IsZero() || at.Unix() > 0)
		require.Equal(t, time.UTC, at.Location())
	}
}

func TestParseTime(t *testing.T) {
	want := time.Date(2019, 1, 21, 9, 0, 43, 0, time.UTC)
	for _, s := range []string{"21 Jan 2019 09:00:43 GMT", "2019-01-21T09:00:43Z", "2019-01-21T10:00:43+01:00"} {
		got, err := parseTime(s)
		require.NoError(t, err, s)
		require.Equal(t, want, got)
	}
	for _, s := range []string{"", "21 Jan 2019 09:00:43", "21 Jan 2019 09:00:43 CET", "2019-01-21 09:00:43", "0001-01-01T00:00:00Z"} {
		_, err := parseTime(s)
		require.Error(t, err, s)
	}
}

// TestDue: every poller will have read again an interval after the one that read first, and
// the time that a reading takes.
func TestDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r lastReads
		require.Zero(t, r.due(time.Second), "there is no watch")
		first, second := &poller{}, &poller{}
		began := time.Now()
		r.done(first, nil)
		<-time.After(time.Second)
		r.done(second, errors.New("it failed, and was made"))
		require.Equal(t, began.Add(5*time.Second+readLimit), r.due(5*time.Second))
		<-time.After(time.Second)
		r.done(first, nil)
		require.Equal(t, began.Add(time.Second+5*time.Second+readLimit), r.due(5*time.Second))
		r.leave(second)
		require.Equal(t, began.Add(2*time.Second+5*time.Second+readLimit), r.due(5*time.Second))
	})
}

// TestResumedNotices: those of the source that stand, once, and no more than may.
func TestResumedNotices(t *testing.T) {
	var h history
	given := []nstance.Notice{
		{EventID: "a", Source: "aws/spot"}, {EventID: "b", Source: "aws/spot", Cancelled: true}, {EventID: "c", Source: "aws/maintenance"},
	}
	h.resume(given)
	given[0].EventID = "changed by the caller"
	standing := h.take()
	require.Empty(t, h.take(), "for the next watch only")
	l := newNoticeDedup()
	l.resume(standing, "aws/spot")
	require.Len(t, l.standing, 1)
	require.Equal(t, "a", l.standing["a"].yielded.EventID)
	var many []nstance.Notice
	for i := range 2 * maxStanding {
		many = append(many, nstance.Notice{EventID: fmt.Sprint(i), Source: "aws/spot"})
	}
	l.resume(many, "aws/spot")
	require.Len(t, l.standing, maxStanding)
}

func TestMachineName(t *testing.T) {
	got, err := machineName("aws", "instance-id", []byte(" i-0123\n"))
	require.NoError(t, err)
	require.Equal(t, "aws/i-0123", got)
	got, err = machineName("gcp", "name", bytes.Repeat([]byte("x"), maxIDLen))
	require.NoError(t, err)
	require.Len(t, got, len("gcp/")+maxIDLen)
	for _, bad := range []string{"", "\n", "two words", strings.Repeat("x", maxIDLen+1)} {
		_, err := machineName("aws", "instance-id", []byte(bad))
		require.ErrorIs(t, err, nstance.Internal, bad)
	}
}
