package imds_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/imds"
)

var deadline = time.Date(2024, 1, 1, 12, 0, 0, 0, time.UTC)

// ask sends one request straight to the handler; header is name, value pairs.
func ask(t *testing.T, s *imds.Server, method, path string, header ...string) *http.Response {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, "/"+path, nil)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w.Result()
}

func text(t *testing.T, r *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, r.StatusCode)
	return string(b)
}

func token(t *testing.T, s *imds.Server, seconds string) string {
	t.Helper()
	return text(t, ask(t, s, http.MethodPut, imds.AWSToken, "X-aws-ec2-metadata-token-ttl-seconds", seconds))
}

func TestAWSTokens(t *testing.T) {
	const tokenHeader, ttlHeader = "X-aws-ec2-metadata-token", "X-aws-ec2-metadata-token-ttl-seconds"

	t.Run("a ttl outside 1 to 21600 seconds is refused", func(t *testing.T) {
		s := imds.New(nil)
		for _, ttl := range []string{"", "0", "-1", "21601", "soon"} {
			require.Equal(t, 400, ask(t, s, http.MethodPut, imds.AWSToken, ttlHeader, ttl).StatusCode, ttl)
		}
		for _, ttl := range []string{"1", "21600"} {
			r := ask(t, s, http.MethodPut, imds.AWSToken, ttlHeader, ttl)
			require.Equal(t, 200, r.StatusCode)
			require.Equal(t, ttl, r.Header.Get(ttlHeader))
		}
	})
	t.Run("a put through a proxy is refused", func(t *testing.T) {
		r := ask(t, imds.New(nil), http.MethodPut, imds.AWSToken, ttlHeader, "60", "X-Forwarded-For", "10.0.0.1")
		require.Equal(t, 403, r.StatusCode)
	})
	t.Run("required tokens are required", func(t *testing.T) {
		s := imds.New(&imds.Options{RequireToken: true})
		require.Equal(t, 401, ask(t, s, http.MethodGet, imds.AWSLifeCycle).StatusCode)
		require.Equal(t, 401, ask(t, s, http.MethodGet, imds.AWSLifeCycle, tokenHeader, "forged").StatusCode)
		require.Equal(t, "on-demand", text(t, ask(t, s, http.MethodGet, imds.AWSLifeCycle, tokenHeader, token(t, s, "60"))))
	})
	t.Run("optional tokens must be good when presented", func(t *testing.T) {
		s := imds.New(nil)
		require.Equal(t, 200, ask(t, s, http.MethodGet, imds.AWSLifeCycle).StatusCode)
		require.Equal(t, 401, ask(t, s, http.MethodGet, imds.AWSLifeCycle, tokenHeader, "forged").StatusCode)
	})
	t.Run("a token ends with its ttl", func(t *testing.T) {
		now := deadline
		s := imds.New(&imds.Options{RequireToken: true, Now: func() time.Time { return now }})
		tok := token(t, s, "60")
		now = now.Add(59 * time.Second)
		require.Equal(t, 200, ask(t, s, http.MethodGet, imds.AWSLifeCycle, tokenHeader, tok).StatusCode)
		now = now.Add(time.Second)
		require.Equal(t, 401, ask(t, s, http.MethodGet, imds.AWSLifeCycle, tokenHeader, tok).StatusCode)
	})
	t.Run("the granted ttl is capped and said", func(t *testing.T) {
		s := imds.New(&imds.Options{MaxTokenTTL: 3 * time.Second})
		r := ask(t, s, http.MethodPut, imds.AWSToken, ttlHeader, "60")
		require.Equal(t, "3", r.Header.Get(ttlHeader))
	})
	t.Run("a restart forgets tokens", func(t *testing.T) {
		s := imds.New(&imds.Options{RequireToken: true})
		tok := token(t, s, "60")
		s.ExpireTokens()
		require.Equal(t, 401, ask(t, s, http.MethodGet, imds.AWSLifeCycle, tokenHeader, tok).StatusCode)
	})
	t.Run("the old protocol knows no put and asks for nothing", func(t *testing.T) {
		s := imds.New(&imds.Options{NoTokens: true, RequireToken: true})
		require.Equal(t, 405, ask(t, s, http.MethodPut, imds.AWSToken, ttlHeader, "60").StatusCode)
		require.Equal(t, 200, ask(t, s, http.MethodGet, imds.AWSLifeCycle, tokenHeader, "anything").StatusCode)
	})
}

func TestAWSValues(t *testing.T) {
	get := func(t *testing.T, s *imds.Server, path string) string {
		return text(t, ask(t, s, http.MethodGet, path))
	}
	t.Run("a reclaim appears and goes", func(t *testing.T) {
		s := imds.New(&imds.Options{Spot: true})
		require.Equal(t, "spot", get(t, s, imds.AWSLifeCycle))
		require.Equal(t, 404, ask(t, s, http.MethodGet, imds.AWSAction).StatusCode)
		s.Reclaim("terminate", deadline)
		require.JSONEq(t, `{"action":"terminate","time":"2024-01-01T12:00:00Z"}`, get(t, s, imds.AWSAction))
		s.Withdraw()
		require.Equal(t, 404, ask(t, s, http.MethodGet, imds.AWSAction).StatusCode)
	})
	t.Run("scheduled maintenance has its own timestamps", func(t *testing.T) {
		s := imds.New(nil)
		require.Equal(t, "[]", get(t, s, imds.AWSMaintenance))
		s.Maintenance(imds.Event{ID: "instance-event-1", Code: "system-reboot", NotBefore: deadline})
		require.JSONEq(t, `[{"EventId":"instance-event-1","Code":"system-reboot","State":"active","Description":"",
			"NotBefore":"1 Jan 2024 12:00:00 GMT","NotAfter":""}]`, get(t, s, imds.AWSMaintenance))
	})
	t.Run("rebalance and target state are absent until set", func(t *testing.T) {
		s := imds.New(nil)
		require.Equal(t, 404, ask(t, s, http.MethodGet, imds.AWSRebalance).StatusCode)
		require.Equal(t, 404, ask(t, s, http.MethodGet, imds.AWSTargetState).StatusCode)
		s.Rebalance(deadline)
		s.TargetState("Terminated")
		require.JSONEq(t, `{"noticeTime":"2024-01-01T12:00:00Z"}`, get(t, s, imds.AWSRebalance))
		require.Equal(t, "Terminated", get(t, s, imds.AWSTargetState))
	})
	t.Run("user data comes back byte for byte", func(t *testing.T) {
		s := imds.New(&imds.Options{UserData: []byte("\x00\xff{}")})
		require.Equal(t, "\x00\xff{}", get(t, s, imds.AWSUserData))
		s.SetUserData(nil)
		require.Equal(t, 404, ask(t, s, http.MethodGet, imds.AWSUserData).StatusCode)
	})
	t.Run("a directory lists its children", func(t *testing.T) {
		s := imds.New(nil)
		require.Equal(t, "meta-data/", get(t, s, "latest"))
		require.Contains(t, get(t, s, "latest/meta-data/"), "instance-id\ninstance-life-cycle\n")
		require.Equal(t, 404, ask(t, s, http.MethodGet, imds.AWSInstanceID+"/").StatusCode)
	})
}

func TestGCP(t *testing.T) {
	flavor := []string{"Metadata-Flavor", "Google"}
	get := func(t *testing.T, s *imds.Server, path string) *http.Response {
		return ask(t, s, http.MethodGet, path, flavor...)
	}
	gcp := func() *imds.Server { return imds.New(&imds.Options{Protocol: imds.GCP, Spot: true}) }

	t.Run("the flavor header is required, proxies are refused", func(t *testing.T) {
		s := gcp()
		require.Equal(t, 403, ask(t, s, http.MethodGet, imds.GCPPreempted).StatusCode)
		require.Equal(t, 403, ask(t, s, http.MethodGet, imds.GCPPreempted, append(flavor, "X-Forwarded-For", "::1")...).StatusCode)
		require.Equal(t, "TRUE", text(t, get(t, s, imds.GCPPreemptible)))
		require.Equal(t, "Google", get(t, s, imds.GCPPreemptible).Header.Get("Metadata-Flavor"))
	})
	t.Run("the tag follows the content", func(t *testing.T) {
		s := gcp()
		before := get(t, s, imds.GCPPreempted).Header.Get("Etag")
		s.Reclaim("terminate", deadline)
		after := get(t, s, imds.GCPPreempted).Header.Get("Etag")
		s.Withdraw()
		require.NotEmpty(t, before)
		require.NotEqual(t, before, after)
		require.Equal(t, before, get(t, s, imds.GCPPreempted).Header.Get("Etag"))
		require.NotEmpty(t, get(t, s, imds.GCPStopState).Header.Get("Etag"), "of a missing key too")
	})
	t.Run("a long poll with an old tag returns at once", func(t *testing.T) {
		s := gcp()
		require.Equal(t, "FALSE", text(t, get(t, s, imds.GCPPreempted+"?wait_for_change=true&last_etag=old")))
	})
	t.Run("a long poll for a missing key returns at once", func(t *testing.T) {
		require.Equal(t, 404, get(t, gcp(), imds.GCPStopState+"?wait_for_change=true").StatusCode)
	})
	t.Run("a malformed timeout is refused", func(t *testing.T) {
		require.Equal(t, 400, get(t, gcp(), imds.GCPPreempted+"?wait_for_change=true&timeout_sec=x").StatusCode)
	})
	t.Run("a long poll times out with the unchanged value", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, start := gcp(), time.Now()
			tag := get(t, s, imds.GCPPreempted).Header.Get("Etag")
			r := get(t, s, imds.GCPPreempted+"?wait_for_change=true&timeout_sec=7&last_etag="+tag)
			require.Equal(t, "FALSE", text(t, r))
			require.Equal(t, 7*time.Second, time.Since(start))
		})
	})
	t.Run("a long poll returns on the change, on a fault, and not on another key", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := gcp()
			answers := make(chan *http.Response)
			hang := func() { answers <- get(t, s, imds.GCPPreempted+"?wait_for_change=true") }
			go hang()
			synctest.Wait()
			s.StopState("PENDING_STOP")
			synctest.Wait()
			require.Empty(t, answers)
			s.Reclaim("terminate", time.Time{})
			require.Equal(t, "TRUE", text(t, <-answers))
			go hang()
			synctest.Wait()
			s.Fail(503, 1)
			require.Equal(t, 503, (<-answers).StatusCode)
		})
	})
	t.Run("maintenance shows only to guests that read the key before", func(t *testing.T) {
		s, event := gcp(), imds.Event{Code: "MIGRATE_ON_HOST_MAINTENANCE"}
		s.Maintenance(event)
		require.Equal(t, "NONE", text(t, get(t, s, imds.GCPMaintenanceEvent)))
		s.Maintenance(event)
		require.Equal(t, event.Code, text(t, get(t, s, imds.GCPMaintenanceEvent)))
		s.Maintenance()
		require.Equal(t, "NONE", text(t, get(t, s, imds.GCPMaintenanceEvent)))
		s.Maintenance(event)
		s.Maintenance()
		s.Maintenance(event)
		require.Equal(t, "NONE", text(t, get(t, s, imds.GCPMaintenanceEvent)), "unread since the last event")
	})
	t.Run("user data is an attribute", func(t *testing.T) {
		s := gcp()
		require.Equal(t, 404, get(t, s, imds.GCPUserData).StatusCode)
		s.SetUserData([]byte("x"))
		require.Equal(t, "x", text(t, get(t, s, imds.GCPUserData)))
	})
}

func TestFaults(t *testing.T) {
	t.Run("the next n requests fail", func(t *testing.T) {
		s := imds.New(nil)
		s.Fail(500, 2)
		for _, want := range []int{500, 500, 200} {
			require.Equal(t, want, ask(t, s, http.MethodGet, imds.AWSLifeCycle).StatusCode)
		}
		require.Equal(t, 3, s.Requests(imds.AWSLifeCycle))
		require.Equal(t, 3, s.Requests(""))
	})
	t.Run("one path fails until recovery", func(t *testing.T) {
		s := imds.New(nil)
		s.Fail(503, -1, imds.AWSLifeCycle)
		for range 3 {
			require.Equal(t, 503, ask(t, s, http.MethodGet, imds.AWSLifeCycle).StatusCode)
		}
		require.Equal(t, 200, ask(t, s, http.MethodGet, imds.AWSInstanceID).StatusCode)
		s.Recover()
		require.Equal(t, 200, ask(t, s, http.MethodGet, imds.AWSLifeCycle).StatusCode)
	})
	t.Run("strangers cannot fill the memory with paths", func(t *testing.T) {
		s := imds.New(nil)
		for i := range 1000 {
			ask(t, s, http.MethodGet, fmt.Sprintf("x/%d", i))
		}
		require.Equal(t, 1, s.Requests("x/0"))
		require.Zero(t, s.Requests("x/999"))
		require.Equal(t, 1000, s.Requests(""))
	})
}

func Example() {
	cloud := imds.New(&imds.Options{Spot: true})
	web := httptest.NewServer(cloud)
	defer web.Close()

	cloud.Reclaim("terminate", time.Date(2024, 1, 1, 12, 0, 0, 0, time.UTC))
	r, err := http.Get(web.URL + "/" + imds.AWSAction)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer r.Body.Close()
	b, _ := io.ReadAll(r.Body)
	fmt.Println(string(b))
	// Output: {"action":"terminate","time":"2024-01-01T12:00:00Z"}
}
