package spottest_test

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
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
	{"a_watch_goes_on_after_an_error", func(d nstance.SpotDetector) nstance.SpotDetector { return defective{d, quits} }},
	{"an_error_never_withdraws_a_notice", func(d nstance.SpotDetector) nstance.SpotDetector { return defective{d, forgets} }},
}

// The suite must fail for a defective detector. Since that fails the
// process too, each defective detector is checked in a process of its own: this
// test binary again, running TestDefective.
func TestSuiteFindsDefects(t *testing.T) {
	for _, d := range defects {
		t.Run(d.promise, func(t *testing.T) {
			child := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestDefective$/^"+d.promise+"$")
			child.Env = append(os.Environ(), "SPOTTEST_DEFECT="+d.promise)
			out, err := child.CombinedOutput()
			require.Error(t, err, "the suite found no defect: %s", out)
			require.Contains(t, string(out), "--- FAIL: TestDefective/"+d.promise)
		})
	}
}

func TestDefective(t *testing.T) {
	alter := func(d nstance.SpotDetector) nstance.SpotDetector { return d }
	for _, d := range defects {
		if d.promise == os.Getenv("SPOTTEST_DEFECT") {
			alter = d.alter
		}
	}
	spottest.Run(t, func(t *testing.T) (nstance.SpotDetector, spottest.Cloud) {
		s := spottest.NewServer(t, &spottest.Options{Spot: true})
		d, err := spot.NewAWS(&spot.Options{BaseURL: s.URL, PollInterval: 10 * time.Millisecond})
		require.NoError(t, err)
		return alter(d), s
	})
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
