package spottest_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/conformance"
	"github.com/nstance-go/nstance/spot"
	"github.com/nstance-go/nstance/spot/spottest"
)

// defective is a detector that breaks one promise.
type defective struct {
	nstance.SpotDetector
	alter func(n nstance.Notice, err error, yield func(nstance.Notice, error) bool) bool
}

func (s defective) Watch(ctx context.Context) iter.Seq2[nstance.Notice, error] {
	return func(yield func(nstance.Notice, error) bool) {
		for n, err := range s.SpotDetector.Watch(ctx) {
			if !s.alter(n, err, yield) {
				return
			}
		}
	}
}

func repeats(n nstance.Notice, err error, yield func(nstance.Notice, error) bool) bool {
	for range 2 {
		if !yield(n, err) {
			return false
		}
	}
	return true
}

func renames(n nstance.Notice, err error, yield func(nstance.Notice, error) bool) bool {
	n.EventID = fmt.Sprint(n.EventID, time.Now().UnixNano())
	return yield(n, err)
}

func quits(n nstance.Notice, err error, yield func(nstance.Notice, error) bool) bool {
	return yield(n, err) && err == nil
}

func forgets(n nstance.Notice, err error, yield func(nstance.Notice, error) bool) bool {
	if err != nil && !yield(n, err) {
		return false
	}
	n.Cancelled = n.Cancelled || err != nil
	return yield(n, nil)
}

func invents(n nstance.Notice, err error, yield func(nstance.Notice, error) bool) bool {
	if n.Deadline.IsZero() {
		n.Deadline = time.Now().Add(30 * time.Second)
	}
	n.Deadline = n.Deadline.Add(-time.Second)
	return yield(n, err)
}

// errorAsNo is a detector that returns no after an error.
type errorAsNo struct{ nstance.SpotDetector }

func (s errorAsNo) Interruptible(ctx context.Context) (bool, error) {
	yes, _ := s.SpotDetector.Interruptible(ctx)
	return yes, nil
}

var defects = []struct {
	promise string
	alter   func(nstance.SpotDetector) nstance.SpotDetector
}{
	{"interruptible:_an_error_is_not_a_no", func(d nstance.SpotDetector) nstance.SpotDetector { return errorAsNo{d} }},
	{"a_notice_is_yielded_as_it_appears", func(d nstance.SpotDetector) nstance.SpotDetector { return defective{d, invents} }},
	{"an_announcement_is_yielded_once", func(d nstance.SpotDetector) nstance.SpotDetector { return defective{d, repeats} }},
	{"an_announcement_has_one_identity_whenever_it_is_seen", func(d nstance.SpotDetector) nstance.SpotDetector { return defective{d, renames} }},
	{"an_announcement_has_one_identity_for_every_detector", func(d nstance.SpotDetector) nstance.SpotDetector { return named{d, rand.Text()} }},
	{"a_watch_goes_on_after_an_error", func(d nstance.SpotDetector) nstance.SpotDetector { return defective{d, quits} }},
	{"an_error_never_withdraws_a_notice", func(d nstance.SpotDetector) nstance.SpotDetector { return defective{d, forgets} }},
	{"a_deadline_past_when_the_watch_begins_is_not_yielded", func(d nstance.SpotDetector) nstance.SpotDetector { return defective{d, staleAtSecondPoll()} }},
	{"a_deadline_past_when_it_appears_is_yielded", func(d nstance.SpotDetector) nstance.SpotDetector { return defective{d, lateAtSecondPoll()} }},
}

type alteration = func(n nstance.Notice, err error, yield func(nstance.Notice, error) bool) bool

// staleAtSecondPoll takes a stale notice for new when it is read again.
func staleAtSecondPoll() alteration {
	stale := false
	return func(n nstance.Notice, err error, yield func(nstance.Notice, error) bool) bool {
		if stale {
			stale = false
			old := nstance.Notice{Kind: nstance.Reclaim, Action: "terminate", Source: "aws/spot", EventID: "old", Deadline: time.Now().Add(-time.Hour)}
			if !yield(old, nil) {
				return false
			}
		}
		stale = err != nil && strings.Contains(err.Error(), "past when the watch began")
		return yield(n, err)
	}
}

// lateAtSecondPoll yields a notice that is past its deadline again when it is read again.
func lateAtSecondPoll() alteration {
	var late *nstance.Notice
	return func(n nstance.Notice, err error, yield func(nstance.Notice, error) bool) bool {
		if again := late; again != nil {
			late = nil
			if !yield(*again, nil) {
				return false
			}
		}
		if err == nil && !n.Cancelled && n.Deadline.Before(time.Now()) {
			late = &n
		}
		return yield(n, err)
	}
}

// replaced is a detector with other methods.
type replaced struct {
	nstance.SpotDetector
	interruptible func() (bool, error)
	watch         func(ctx context.Context, yield func(nstance.Notice, error) bool)
}

func (r replaced) Interruptible(ctx context.Context) (bool, error) {
	if r.interruptible != nil {
		return r.interruptible()
	}
	return r.SpotDetector.Interruptible(ctx)
}

func (r replaced) Watch(ctx context.Context) iter.Seq2[nstance.Notice, error] {
	if r.watch == nil {
		return r.SpotDetector.Watch(ctx)
	}
	return func(yield func(nstance.Notice, error) bool) { r.watch(ctx, yield) }
}

// Each of these cannot do the least: the smoke test must fail with this message.
var smoking = map[string]struct {
	replaced
	message string
}{
	"takes spot for on-demand": {replaced{interruptible: func() (bool, error) { return false, nil }}, "Interruptible() answered false: true was due"},
	"cannot be asked":          {replaced{interruptible: func() (bool, error) { return false, errors.New("sorry") }}, "Interruptible() answered internal (sorry): true was due"},
	"hangs in Interruptible":   {replaced{interruptible: func() (bool, error) { select {} }}, "Interruptible() hangs: it has not returned after 1s"},
	"sees nothing": {replaced{watch: func(ctx context.Context, _ func(nstance.Notice, error) bool) { <-ctx.Done() }},
		`Watch has yielded no notice within 1s; the call before: Cloud.Reclaim("terminate", `},
	"ends at once":   {replaced{watch: func(context.Context, func(nstance.Notice, error) bool) {}}, "Watch has returned while its context lasts and a notice was due"},
	"hangs in Watch": {replaced{watch: func(context.Context, func(nstance.Notice, error) bool) { select {} }}, "Watch hangs: it has not returned 1s after its context ended"},
}

// hangsInOutage hangs in many subtests, and not in the smoke test.
type hangsInOutage struct{ nstance.SpotDetector }

func (h hangsInOutage) Watch(ctx context.Context) iter.Seq2[nstance.Notice, error] {
	return func(yield func(nstance.Notice, error) bool) {
		for n, err := range h.SpotDetector.Watch(ctx) {
			if err != nil {
				select {}
			}
			if !yield(n, err) {
				return
			}
		}
	}
}

// The suite must fail for a defective detector.
func TestSuiteFindsDefects(t *testing.T) {
	for _, d := range defects {
		t.Run(d.promise, func(t *testing.T) {
			t.Parallel()
			conformance.RequireFailure(t, "TestDefective", "/^"+d.promise+"$", d.promise, "--- FAIL: TestDefective/"+d.promise)
		})
	}
	for name, d := range smoking {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conformance.RequireSmokeFailure(t, "TestDefective", name, d.message)
		})
	}
	t.Run("hangs in an outage", func(t *testing.T) {
		conformance.RequireFailure(t, "TestDefective", "", "hangs in an outage", "--- PASS: TestDefective/smoke ",
			"Watch has yielded no error within 1s; the call before: Cloud.Break() answered nil", "in vain; repair them first")
	})
}

func TestDefective(t *testing.T) {
	alter, limit := func(d nstance.SpotDetector) nstance.SpotDetector { return d }, 10*time.Second
	name := conformance.Defect()
	for _, d := range defects {
		if d.promise == name {
			alter = d.alter
		}
	}
	if s, ok := smoking[name]; ok {
		alter = func(d nstance.SpotDetector) nstance.SpotDetector {
			s.SpotDetector = d
			return s.replaced
		}
	}
	if name == "hangs in an outage" {
		alter = func(d nstance.SpotDetector) nstance.SpotDetector { return hangsInOutage{d} }
	}
	if name != "" { // it fails anyway: no need to wait
		limit = time.Second
	}
	spottest.RunWithin(t, func(t *testing.T) (nstance.SpotDetector, spottest.Cloud) {
		s := spottest.NewServer(t, &spottest.Options{Spot: true})
		detect := func(t *testing.T) nstance.SpotDetector {
			d, err := spot.NewAWS(&spot.Options{BaseURL: s.URL, PollInterval: 10 * time.Millisecond})
			require.NoError(t, err)
			return alter(d)
		}
		return detect(t), spottest.Restartable(s, detect)
	}, limit)
}

func TestServerEndsWithItsTest(t *testing.T) {
	var url string
	t.Run("while the test runs", func(t *testing.T) {
		url = spottest.NewServer(t, nil).URL
		require.Equal(t, http.StatusOK, status(t, url))
	})
	_, err := get(t, url)
	require.Error(t, err)
}

func status(t *testing.T, url string) int {
	t.Helper()
	r, err := get(t, url)
	require.NoError(t, err)
	require.NoError(t, r.Body.Close())
	return r.StatusCode
}

func get(t *testing.T, url string) (*http.Response, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/latest/", nil)
	require.NoError(t, err)
	return http.DefaultClient.Do(r)
}

// A detector's own test is this long.
func ExampleRun() {
	_ = func(t *testing.T) {
		spottest.Run(t, func(t *testing.T) (nstance.SpotDetector, spottest.Cloud) {
			cloud := spottest.NewServer(t, &spottest.Options{Protocol: "gcp", Spot: true})
			d, err := spot.NewGCP(&spot.Options{BaseURL: cloud.URL, PollInterval: 10 * time.Millisecond})
			require.NoError(t, err)
			return d, cloud
		})
	}
	fmt.Println("ok")
	// Output: ok
}

// TestSecondEventHasItsOwnID: sources with IDs give a second announcement another one,
// also if it is the same to the letter.
func TestSecondEventHasItsOwnID(t *testing.T) {
	spottest.Run(t, func(t *testing.T) (nstance.SpotDetector, spottest.Cloud) {
		s := spottest.NewServer(t, &spottest.Options{Spot: true})
		d, err := spot.NewAWS(&spot.Options{BaseURL: s.URL, PollInterval: 10 * time.Millisecond})
		require.NoError(t, err)
		return numbered{d}, s
	})
}

// numbered is a detector of a source that numbers its events.
type numbered struct{ nstance.SpotDetector }

func (d numbered) Watch(ctx context.Context) iter.Seq2[nstance.Notice, error] {
	return func(yield func(nstance.Notice, error) bool) {
		withdrawn := 0
		for n, err := range d.SpotDetector.Watch(ctx) {
			n.EventID = fmt.Sprintf("%s-%d", n.EventID, withdrawn)
			if !yield(n, err) {
				return
			}
			if n.Cancelled {
				withdrawn++
			}
		}
	}
}

// named is a detector whose event IDs have a part that is random for each process.
type named struct {
	nstance.SpotDetector
	process string
}

func (d named) Watch(ctx context.Context) iter.Seq2[nstance.Notice, error] {
	return func(yield func(nstance.Notice, error) bool) {
		for n, err := range d.SpotDetector.Watch(ctx) {
			n.EventID += "-" + d.process
			if !yield(n, err) {
				return
			}
		}
	}
}
