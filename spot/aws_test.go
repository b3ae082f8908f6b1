package spot_test

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/imds"
	"github.com/nstance-go/nstance/internal/test/freeport"
	"github.com/nstance-go/nstance/spot"
	"github.com/nstance-go/nstance/spot/spottest"
)

// slowRefusal is a service whose first refusal is delivered late.
type slowRefusal struct {
	http.Handler
	refusals  atomic.Int64
	delivered chan struct{}
}

func (s *slowRefusal) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer := httptest.NewRecorder()
	s.Handler.ServeHTTP(answer, r)
	if answer.Code == http.StatusUnauthorized && s.refusals.Add(1) == 1 {
		<-s.delivered
	}
	maps.Copy(w.Header(), answer.Header())
	w.WriteHeader(answer.Code)
	_, _ = w.Write(answer.Body.Bytes())
}

func TestAWSSession(t *testing.T) {
	bubble(t, "one token serves all reads and is renewed before it ends", func(t *testing.T) {
		s := aws()
		o := options(s)
		o.PollInterval = 20 * time.Second
		d, err := spot.NewAWS(o)
		require.NoError(t, err)
		r := follow(t, d)
		require.Equal(t, 1, s.Requests(imds.AWSToken))
		_, errs := r.after(t, 13*time.Hour)
		require.Empty(t, errs)
		require.Equal(t, 3, s.Requests(imds.AWSToken))
	})
	bubble(t, "the granted ttl counts, not the one asked for", func(t *testing.T) {
		s := imds.New(&imds.Options{RequireToken: true, MaxTokenTTL: 100 * time.Second})
		r := follow(t, newAWS(t, s))
		r.after(t, 89*time.Second)
		require.Equal(t, 1, s.Requests(imds.AWSToken))
		r.after(t, 5*time.Second)
		require.Equal(t, 2, s.Requests(imds.AWSToken), "renewed when a tenth is left")
	})
	bubble(t, "a token that is refused is replaced within the same read", func(t *testing.T) {
		s := aws()
		d := newAWS(t, s)
		for range 3 {
			s.ExpireTokens()
			yes, err := d.Interruptible(t.Context())
			require.NoError(t, err)
			require.True(t, yes)
		}
		require.Equal(t, 3+2, s.Requests(imds.AWSLifeCycle), "the first read had no old token")
	})
	bubble(t, "two reads refused for the same token cost one new token", func(t *testing.T) {
		s := aws()
		slow := &slowRefusal{Handler: s, delivered: make(chan struct{})}
		d := newAWS(t, slow)
		_, err := d.Interruptible(t.Context())
		require.NoError(t, err)
		s.ExpireTokens()
		late := make(chan error, 1)
		go func() {
			_, err := d.Interruptible(t.Context())
			late <- err
		}()
		synctest.Wait() // refused, answer in flight
		_, err = d.Interruptible(t.Context())
		require.NoError(t, err)
		require.Equal(t, 2, s.Requests(imds.AWSToken))
		close(slow.delivered)
		require.NoError(t, <-late)
		require.Equal(t, 2, s.Requests(imds.AWSToken))
	})
	bubble(t, "a refusal is repeated once, not for ever", func(t *testing.T) {
		s := aws()
		s.Fail(401, -1, imds.AWSLifeCycle)
		_, err := newAWS(t, s).Interruptible(t.Context())
		require.ErrorIs(t, err, nstance.Denied)
		require.Equal(t, 2, s.Requests(imds.AWSLifeCycle))
	})
	bubble(t, "a good token outlives a broken renewal", func(t *testing.T) {
		s := imds.New(&imds.Options{RequireToken: true, MaxTokenTTL: 100 * time.Second})
		r := follow(t, newAWS(t, s))
		s.Fail(500, -1, imds.AWSToken)
		_, errs := r.after(t, 99*time.Second)
		require.Empty(t, errs)
		_, errs = r.after(t, 5*time.Second)
		require.NotEmpty(t, errs)
	})
	bubble(t, "version 1 is used where version 2 does not exist", func(t *testing.T) {
		for _, status := range []int{404, 405} {
			s := imds.New(&imds.Options{Spot: true, NoTokens: true})
			s.Fail(status, -1, imds.AWSToken)
			d := newAWS(t, s)
			for range 3 {
				yes, err := d.Interruptible(t.Context())
				require.NoError(t, err)
				require.True(t, yes)
			}
			require.Equal(t, 1, s.Requests(imds.AWSToken), "and is remembered")
		}
	})
	bubble(t, "version 1 is not used because version 2 is in trouble", func(t *testing.T) {
		for _, status := range []int{400, 403, 429, 500, 503} {
			s := imds.New(&imds.Options{Spot: true}) // would answer without a token
			s.Fail(status, -1, imds.AWSToken)
			_, err := newAWS(t, s).Interruptible(t.Context())
			require.Error(t, err, "status %d", status)
			require.Zero(t, s.Requests(imds.AWSLifeCycle))
		}
	})
	bubble(t, "a silent token service is an error with a remedy, not version 1", func(t *testing.T) {
		s := imds.New(&imds.Options{Spot: true})
		h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPut {
				hung(w, r)
			}
			s.ServeHTTP(w, r)
		})
		_, err := newAWS(t, h).Interruptible(t.Context())
		require.ErrorIs(t, err, nstance.Unavailable)
		require.ErrorContains(t, err, "HttpPutResponseHopLimit")
		require.Zero(t, s.Requests(imds.AWSLifeCycle))
	})
	t.Run("a refused connection is an error without the hint at the hop limit", func(t *testing.T) {
		gone, err := freeport.Address()
		require.NoError(t, err)
		d, err := spot.NewAWS(&spot.Options{BaseURL: "http://" + gone})
		require.NoError(t, err)
		_, err = d.Interruptible(t.Context())
		require.ErrorIs(t, err, nstance.Unavailable)
		require.ErrorContains(t, err, "connection refused")
		require.NotContains(t, err.Error(), "HopLimit")
	})
	bubble(t, "tokens that become required are found out", func(t *testing.T) {
		old := imds.New(&imds.Options{Spot: true, NoTokens: true})
		var now http.Handler = old
		d := newAWS(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { now.ServeHTTP(w, r) }))
		_, err := d.Interruptible(t.Context())
		require.NoError(t, err)
		now = aws()
		yes, err := d.Interruptible(t.Context())
		require.NoError(t, err)
		require.True(t, yes)
	})
	bubble(t, "an answer that is no token is not sent back", func(t *testing.T) {
		for _, body := range []string{"", "two words", "a\nb", strings.Repeat("x", 2000)} {
			reads := 0
			h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodGet {
					reads++
				}
				_, _ = w.Write([]byte(body))
			})
			_, err := newAWS(t, h).Interruptible(t.Context())
			require.ErrorIs(t, err, nstance.Internal)
			require.Zero(t, reads)
		}
	})
}

func TestAWSInterruptible(t *testing.T) {
	bubble(t, "only the cloud's word counts", func(t *testing.T) {
		s := aws()
		d := newAWS(t, s)
		for _, body := range []string{"", " ", "<html>spot</html>", strings.Repeat("x", 100)} {
			s.SetRaw(imds.AWSLifeCycle, body)
			_, err := d.Interruptible(t.Context())
			require.Error(t, err, body)
		}
		s.Remove(imds.AWSLifeCycle)
		_, err := d.Interruptible(t.Context())
		require.ErrorIs(t, err, nstance.NotFound)
		s.SetRaw(imds.AWSLifeCycle, "scheduled\n")
		yes, err := d.Interruptible(t.Context())
		require.NoError(t, err)
		require.False(t, yes)
	})
}

// The kinds of notice and their identities.
func TestAWSNotices(t *testing.T) {
	base := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // start of a bubble's clock

	bubble(t, "a reclaim has action, deadline and a stable identity", func(t *testing.T) {
		s := aws()
		r := follow(t, newAWS(t, s))
		wait(t, 3*time.Second)
		s.Reclaim("hibernate", base.Add(2*time.Minute))
		notices, errs := r.after(t, 3*time.Second)
		require.Empty(t, errs)
		require.Equal(t, []nstance.Notice{{
			Kind:       nstance.Reclaim,
			Action:     "hibernate",
			Deadline:   base.Add(2 * time.Minute),
			Source:     "aws/spot",
			EventID:    "aws/spot/hibernate@2000-01-01T00:02:00Z",
			DetectedAt: base.Add(4 * time.Second),
		}}, notices)
	})
	bubble(t, "a reclaim without a time is believed", func(t *testing.T) {
		s := aws()
		s.SetRaw(imds.AWSAction, `{"action":"terminate"}`)
		notices, errs := follow(t, newAWS(t, s)).after(t, time.Second)
		require.Empty(t, errs)
		require.Len(t, notices, 1)
		require.Zero(t, notices[0].Deadline)
	})
	bubble(t, "a reclaim of which something cannot be read is believed", func(t *testing.T) {
		for _, doc := range []string{
			`{"action":"terminate","time":"soon"}`, `{"action":"terminate","time":"2100-01-01 00:00:00"}`, `{"action":"terminate","time":7}`,
			`{"action":"terminate now!","time":"2100-01-01T00:00:00Z"}`, `{"action":"","time":"2100-01-01T00:00:00Z"}`, `{"action":{},"time":[]}`, `{"action":7}`,
		} {
			s := aws()
			s.SetRaw(imds.AWSAction, doc)
			r := follow(t, newAWS(t, s))
			notices, errs := r.after(t, time.Minute)
			require.Len(t, notices, 1, doc)
			require.Equal(t, nstance.Reclaim, notices[0].Kind)
			require.Len(t, errs, 1)
			require.ErrorIs(t, errs[0], nstance.Internal)
			s.Remove(imds.AWSAction)
			notices, _ = r.after(t, time.Minute)
			require.Len(t, notices, 2)
			require.True(t, notices[1].Cancelled)
		}
	})
	bubble(t, "a reclaim that becomes unreadable stays what it was", func(t *testing.T) {
		s := aws()
		s.Reclaim("terminate", time.Now().Add(2*time.Minute))
		r := follow(t, newAWS(t, s))
		notices, _ := r.after(t, 10*time.Second)
		require.Len(t, notices, 1)
		for _, doc := range []string{`{"action":"terminate","time":"soon"}`, `{"action":7,"time":7}`, `{}`, `{"action":`} {
			s.SetRaw(imds.AWSAction, doc)
			notices, _ = r.after(t, 10*time.Second)
			require.Len(t, notices, 1, doc)
		}
	})
	bubble(t, "a deadline in the past at the start of the watch is yielded once as an error", func(t *testing.T) {
		s := aws()
		wait(t, time.Hour)
		s.Reclaim("terminate", base.Add(time.Hour))
		r := follow(t, newAWS(t, s))
		notices, errs := r.after(t, time.Minute)
		require.Empty(t, notices)
		require.Len(t, errs, 1)
		require.ErrorContains(t, errs[0], "aws/spot/terminate@2000-01-01T01:00:00Z")
		s.Withdraw()
		notices, errs = r.after(t, time.Minute)
		require.Empty(t, notices, "no withdrawal without a notice")
		require.Len(t, errs, 1)
	})
	bubble(t, "a deadline past when it appears is late, not stale", func(t *testing.T) {
		s := aws()
		wait(t, time.Hour)
		r := follow(t, newAWS(t, s))
		wait(t, time.Minute)
		s.Reclaim("terminate", base.Add(time.Hour))
		notices, errs := r.after(t, time.Minute)
		require.Empty(t, errs)
		require.Len(t, notices, 1)
		require.Equal(t, base.Add(time.Hour), notices[0].Deadline)
	})
	bubble(t, "no reading, no beginning: a broken service makes nothing new", func(t *testing.T) {
		s := aws()
		wait(t, time.Hour)
		s.Reclaim("terminate", base.Add(time.Minute))
		s.Fail(503, -1)
		r := follow(t, newAWS(t, s))
		wait(t, time.Minute)
		s.Recover()
		notices, errs := r.after(t, time.Minute)
		require.Empty(t, notices)
		require.ErrorContains(t, errs[len(errs)-1], "past when the watch began")
	})
	bubble(t, "a deadline that passes while it stands changes nothing", func(t *testing.T) {
		s := aws()
		s.Reclaim("terminate", time.Now().Add(2*time.Minute))
		notices, errs := follow(t, newAWS(t, s)).after(t, time.Hour)
		require.Len(t, notices, 1)
		require.Empty(t, errs)
	})
	bubble(t, "a new interruption takes the place of the old one without a gap", func(t *testing.T) {
		s := aws()
		r := follow(t, newAWS(t, s))
		s.Reclaim("terminate", base.Add(time.Hour))
		wait(t, 2*time.Hour)
		s.Reclaim("terminate", base.Add(3*time.Hour))
		notices, _ := r.after(t, time.Minute)
		require.Len(t, notices, 3)
		require.Equal(t, base.Add(3*time.Hour), notices[1].Deadline)
		require.False(t, notices[1].Cancelled)
		require.Equal(t, notices[0].EventID, notices[2].EventID)
		require.True(t, notices[2].Cancelled)
	})
	bubble(t, "another action is another announcement", func(t *testing.T) {
		s := aws()
		r := follow(t, newAWS(t, s))
		s.Reclaim("terminate", base.Add(time.Hour))
		wait(t, time.Minute)
		s.Reclaim("hibernate", base.Add(time.Hour))
		notices, _ := r.after(t, time.Minute)
		require.Len(t, notices, 3)
		require.Equal(t, "hibernate", notices[1].Action)
		require.True(t, notices[2].Cancelled)
	})
	bubble(t, "a deadline that tightens is the same announcement, changed", func(t *testing.T) {
		s := aws()
		s.SetRaw(imds.AWSAction, `{"action":"terminate"}`)
		r := follow(t, newAWS(t, s))
		s.Reclaim("terminate", base.Add(time.Hour))
		wait(t, time.Minute)
		s.Reclaim("terminate", base.Add(30*time.Minute))
		notices, _ := r.after(t, time.Minute)
		require.Len(t, notices, 3)
		for _, n := range notices {
			require.Equal(t, "aws/spot/terminate", n.EventID)
			require.False(t, n.Cancelled)
		}
		require.Equal(t, base.Add(30*time.Minute), notices[2].Deadline)
	})
	bubble(t, "a deadline that recedes with every read is yielded once", func(t *testing.T) {
		s := aws()
		r := follow(t, newAWS(t, s))
		for range 100 {
			s.Reclaim("terminate", time.Now().Add(2*time.Minute))
			s.Rebalance(time.Now())
			wait(t, time.Second)
		}
		notices, errs := r.after(t, 0)
		require.Empty(t, errs)
		require.Len(t, notices, 2, "a reclaim and a rebalance")
		s.Withdraw()
		notices, _ = r.after(t, time.Minute)
		require.Len(t, notices, 3)
		require.True(t, notices[2].Cancelled)
	})
	bubble(t, "what comes after a withdrawal is another announcement", func(t *testing.T) {
		s := aws()
		r := follow(t, newAWS(t, s))
		s.Reclaim("terminate", base.Add(time.Hour))
		wait(t, time.Minute)
		s.Withdraw()
		wait(t, time.Minute)
		s.Reclaim("terminate", base.Add(2*time.Hour))
		notices, _ := r.after(t, time.Minute)
		require.Len(t, notices, 3)
		require.NotEqual(t, notices[0].EventID, notices[2].EventID)
		require.Equal(t, base.Add(2*time.Hour), notices[2].Deadline)
	})
	bubble(t, "a stale deadline does not hide the next interruption", func(t *testing.T) {
		s := aws()
		wait(t, time.Hour)
		s.Reclaim("terminate", base.Add(time.Minute))
		r := follow(t, newAWS(t, s))
		s.Reclaim("terminate", base.Add(2*time.Hour))
		notices, _ := r.after(t, time.Minute)
		require.Len(t, notices, 1)
		require.Equal(t, base.Add(2*time.Hour), notices[0].Deadline)
	})
	bubble(t, "a rebalance recommendation is named by the time that the cloud gives it", func(t *testing.T) {
		s := aws()
		s.Rebalance(base.Add(-time.Minute))
		d := newAWS(t, s)
		r := follow(t, d)
		wait(t, 10*time.Minute)
		later := follow(t, d)
		notices, errs := later.after(t, time.Minute)
		require.Empty(t, errs)
		require.Equal(t, []nstance.Notice{{
			Kind:       nstance.Rebalance,
			Source:     "aws/rebalance",
			EventID:    "aws/rebalance@1999-12-31T23:59:00Z",
			DetectedAt: base.Add(10 * time.Minute),
		}}, notices)
		notices, errs = r.after(t, 0)
		require.Empty(t, errs)
		require.Len(t, notices, 1)
		require.Equal(t, "aws/rebalance@1999-12-31T23:59:00Z", notices[0].EventID)
	})
	bubble(t, "a second rebalance recommendation is a second event", func(t *testing.T) {
		s := aws()
		r := follow(t, newAWS(t, s))
		s.Rebalance(base)
		wait(t, 10*time.Second)
		s.Rebalance(base.Add(10 * time.Second))
		notices, errs := r.after(t, time.Minute)
		require.Empty(t, errs)
		require.Len(t, notices, 3)
		require.Equal(t, "aws/rebalance@2000-01-01T00:00:10Z", notices[1].EventID)
		require.False(t, notices[1].Cancelled)
		require.Equal(t, notices[0].EventID, notices[2].EventID, "the first one is withdrawn, after the second one is there")
		require.True(t, notices[2].Cancelled)
	})
	bubble(t, "auto scaling announces termination only", func(t *testing.T) {
		s := aws()
		r := follow(t, newAWS(t, s))
		for _, state := range []string{"InService", "Standby", "Detached", "Warmed:Stopped"} {
			s.TargetState(state)
			notices, errs := r.after(t, time.Minute)
			require.Empty(t, notices)
			require.Empty(t, errs)
		}
		s.TargetState("Terminated")
		notices, _ := r.after(t, time.Minute)
		require.Len(t, notices, 1, "though seen thirty times")
		require.Equal(t, nstance.Terminate, notices[0].Kind)
		require.Equal(t, "aws/autoscaling/terminated", notices[0].EventID)
		s.TargetState("InService")
		notices, _ = r.after(t, time.Minute)
		require.True(t, notices[1].Cancelled)
	})
}

func TestAWSMaintenance(t *testing.T) {
	base := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	reboot := imds.Event{ID: "instance-event-1", Code: "system-reboot", NotBefore: base.Add(72 * time.Hour)}
	retire := imds.Event{ID: "instance-event-2", Code: "instance-retirement", NotBefore: base.Add(240 * time.Hour)}

	bubble(t, "events carry their own identity, code and start", func(t *testing.T) {
		s := aws()
		s.Maintenance(reboot, retire)
		notices, errs := follow(t, newAWS(t, s)).after(t, time.Minute)
		require.Empty(t, errs)
		require.Equal(t, []nstance.Notice{
			{
				Kind: nstance.Maintenance, Action: "system-reboot", NotBefore: reboot.NotBefore,
				Source: "aws/maintenance", EventID: "aws/maintenance/instance-event-1", DetectedAt: base,
			},
			{
				Kind: nstance.Maintenance, Action: "instance-retirement", NotBefore: retire.NotBefore,
				Source: "aws/maintenance", EventID: "aws/maintenance/instance-event-2", DetectedAt: base,
			},
		}, notices)
	})
	bubble(t, "a rescheduled event is the same event", func(t *testing.T) {
		s := aws()
		s.Maintenance(reboot)
		r := follow(t, newAWS(t, s))
		later := reboot
		later.NotBefore = base.Add(100 * time.Hour)
		s.Maintenance(later)
		notices, _ := r.after(t, time.Minute)
		require.Len(t, notices, 2)
		require.Equal(t, notices[0].EventID, notices[1].EventID)
		require.Equal(t, later.NotBefore, notices[1].NotBefore)
		require.Equal(t, notices[0].DetectedAt, notices[1].DetectedAt)
	})
	for _, state := range []string{"canceled", "completed"} {
		bubble(t, "an event that is "+state+" is cancelled once", func(t *testing.T) {
			s := aws()
			s.Maintenance(reboot, retire)
			r := follow(t, newAWS(t, s))
			over := reboot
			over.State = state
			s.Maintenance(over, retire)
			wait(t, time.Minute)
			s.Maintenance(retire)
			notices, _ := r.after(t, time.Minute)
			require.Len(t, notices, 3)
			require.True(t, notices[2].Cancelled)
			require.Equal(t, "aws/maintenance/instance-event-1", notices[2].EventID)
		})
	}
	bubble(t, "an event that was cancelled between two watches is yielded as cancelled", func(t *testing.T) {
		s := aws()
		over := reboot
		over.State = "canceled"
		s.Maintenance(over)
		notices, _ := follow(t, newAWS(t, s)).after(t, time.Minute)
		require.Len(t, notices, 1)
		require.True(t, notices[0].Cancelled)
	})
	bubble(t, "an event that disappears is cancelled", func(t *testing.T) {
		s := aws()
		s.Maintenance(reboot)
		r := follow(t, newAWS(t, s))
		s.Maintenance()
		notices, _ := r.after(t, time.Minute)
		require.Len(t, notices, 2)
		require.True(t, notices[1].Cancelled)
	})
	bubble(t, "one bad entry hides no other and withdraws none", func(t *testing.T) {
		s := aws()
		s.Maintenance(reboot)
		r := follow(t, newAWS(t, s))
		s.SetRaw(imds.AWSMaintenance, `[{"EventId":"x","Code":"instance-stop","NotBefore":"tomorrow"},
			{"EventId":"instance-event-2","Code":"instance-retirement","State":"active","NotBefore":"11 Jan 2000 00:00:00 GMT"}]`)
		notices, errs := r.after(t, time.Minute)
		require.Len(t, errs, 1)
		require.ErrorContains(t, errs[0], "event 0: NotBefore: not a time")
		require.Len(t, notices, 2)
		require.Equal(t, "aws/maintenance/instance-event-2", notices[1].EventID)
	})
	bubble(t, "null is not the empty list", func(t *testing.T) {
		s := aws()
		s.Maintenance(reboot)
		r := follow(t, newAWS(t, s))
		s.SetRaw(imds.AWSMaintenance, "null")
		notices, errs := r.after(t, time.Minute)
		require.Len(t, notices, 1)
		require.Len(t, errs, 1)
	})
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	elsewhere := spottest.NewServer(t, &spottest.Options{Protocol: imds.GCP, Spot: true})
	web := httptest.NewServer(http.RedirectHandler(elsewhere.URL+"/"+imds.GCPPreemptible, http.StatusFound))
	defer web.Close()
	d, err := spot.NewGCP(&spot.Options{BaseURL: web.URL})
	require.NoError(t, err)
	_, err = d.Interruptible(t.Context())
	require.ErrorIs(t, err, nstance.Internal)
	require.Zero(t, elsewhere.Requests(""))
}

func TestOptions(t *testing.T) {
	for name, o := range map[string]*spot.Options{
		"no scheme":         {BaseURL: "metadata:80"},
		"no host":           {BaseURL: "http://"},
		"not a web server":  {BaseURL: "ftp://metadata"},
		"not a URL":         {BaseURL: "http://a b"},
		"credentials":       {BaseURL: "http://user:secret@metadata"},
		"a query":           {BaseURL: "http://metadata?x"},
		"negative interval": {PollInterval: -time.Second},
		"hasty interval":    {PollInterval: time.Microsecond},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := spot.NewAWS(o)
			require.ErrorIs(t, err, nstance.Invalid)
			require.NotContains(t, err.Error(), "secret")
			_, err = spot.NewGCP(o)
			require.ErrorIs(t, err, nstance.Invalid)
		})
	}
	t.Run("nil is allowed", func(t *testing.T) {
		_, err := spot.NewAWS(nil)
		require.NoError(t, err)
		_, err = spot.NewGCP(nil)
		require.NoError(t, err)
	})
	t.Run("a trailing slash is accepted", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			o := options(aws())
			o.BaseURL += "/"
			d, err := spot.NewAWS(o)
			require.NoError(t, err)
			yes, err := d.Interruptible(t.Context())
			require.NoError(t, err)
			require.True(t, yes)
		})
	})
}
