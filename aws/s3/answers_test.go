package s3_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/test/faultproxy"
	"github.com/nstance-go/nstance/internal/test/freeport"
	"github.com/nstance-go/nstance/storage"
)

// errorBody is the body of an answer with this code.
func errorBody(code string) string {
	return `<?xml version="1.0"?><Error><Code>` + code + `</Code><Message>as the test wants it</Message></Error>`
}

func TestAnswers(t *testing.T) {
	for _, c := range []struct {
		status     int
		code       string
		write, get nstance.Code
	}{
		{301, "PermanentRedirect", nstance.Invalid, nstance.Invalid},
		{302, "", nstance.Unavailable, nstance.Unavailable},
		{400, "InvalidArgument", nstance.Invalid, nstance.Invalid},
		{400, "", nstance.Unavailable, nstance.Unavailable},
		{400, "BadDigest", nstance.Ambiguous, nstance.Unavailable},
		{400, "TokenRefreshRequired", nstance.Denied, nstance.Denied},
		{400, "KMS.DisabledException", nstance.Denied, nstance.Denied},
		{400, "ExpiredToken", nstance.Denied, nstance.Denied},
		{400, "RequestTimeout", nstance.Ambiguous, nstance.Unavailable},
		{401, "Unauthorized", nstance.Denied, nstance.Denied},
		{403, "AccessDenied", nstance.Denied, nstance.Denied},
		{404, "NoSuchKey", nstance.Conflict, nstance.NotFound},
		{404, "NoSuchBucket", nstance.Unavailable, nstance.Unavailable},
		{404, "", nstance.Unavailable, nstance.Unavailable},
		{407, "", nstance.Unavailable, nstance.Unavailable},
		{409, "ConditionalRequestConflict", nstance.Ambiguous, nstance.Unavailable},
		{409, "SomethingElse", nstance.Ambiguous, nstance.Unavailable},
		{412, "PreconditionFailed", nstance.Conflict, nstance.Conflict},
		{412, "", nstance.Conflict, nstance.Conflict},
		{429, "TooManyRequests", nstance.Throttled, nstance.Throttled},
		{500, "InternalError", nstance.Ambiguous, nstance.Unavailable},
		{501, "NotImplemented", nstance.Invalid, nstance.Invalid},
		{503, "SlowDown", nstance.Throttled, nstance.Throttled},
		{503, "ServiceUnavailable", nstance.Ambiguous, nstance.Unavailable},
		{504, "", nstance.Ambiguous, nstance.Unavailable},
	} {
		t.Run(strconv.Itoa(c.status)+c.code, func(t *testing.T) {
			t.Parallel()
			p, endpoint := proxied(t, service(t))
			s := open(t, endpoint, "")
			v, err := s.PutIfAbsent(t.Context(), "a", []byte("1"))
			require.NoError(t, err)
			body := ""
			if c.code != "" {
				body = errorBody(c.code)
			}
			p.Inject(faultproxy.Fault{Mode: faultproxy.Refuse, Times: -1, Status: c.status, Body: body})
			_, err = s.PutIfMatch(t.Context(), "a", []byte("2"), v)
			require.Equal(t, c.write, nstance.CodeOf(err), "%v", err)
			_, err = s.Get(t.Context(), "a")
			require.Equal(t, c.get, nstance.CodeOf(err), "%v", err)
			for _, err = range s.List(t.Context(), "", "") {
			}
			require.Error(t, err)
		})
	}
	for _, status := range []int{302, 400, 407, 418} {
		t.Run(fmt.Sprintf("%d of a captive portal", status), func(t *testing.T) {
			t.Parallel()
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "text/html")
				w.Header().Set("Location", "https://portal.example/login")
				w.WriteHeader(status)
				fmt.Fprint(w, "<!DOCTYPE html><html><head><title>Log in<br></title></html>")
			}))
			t.Cleanup(srv.Close)
			s := open(t, srv.URL, "")
			_, err := s.PutIfAbsent(t.Context(), "a", []byte("1"))
			require.Equal(t, nstance.Unavailable, nstance.CodeOf(err), "%v", err)
			_, err = s.Get(t.Context(), "a")
			require.Equal(t, nstance.Unavailable, nstance.CodeOf(err), "%v", err)
			for _, err = range s.List(t.Context(), "", "") {
			}
			require.Equal(t, nstance.Unavailable, nstance.CodeOf(err), "%v", err)
		})
	}
	t.Run("no listener", func(t *testing.T) {
		srv, err := freeport.Address()
		require.NoError(t, err)
		_, err = open(t, "http://"+srv, "").PutIfAbsent(t.Context(), "b", nil)
		require.Equal(t, nstance.Unavailable, nstance.CodeOf(err), "nothing went out: %v", err)
	})
}

func TestOddAnswers(t *testing.T) {
	faultproxy.CheckOddAnswers(t, func(t *testing.T, addr string) storage.Store {
		t.Helper()
		return open(t, "http://"+addr, "")
	}, errorBody("InternalError"))
}

func TestWritesAreSentOnce(t *testing.T) {
	p, endpoint := proxied(t, service(t))
	s := open(t, endpoint, "")
	v, err := s.PutIfAbsent(t.Context(), "a", []byte("1"))
	require.NoError(t, err)
	for name, f := range map[string]faultproxy.Fault{
		"500":      {Mode: faultproxy.Refuse, Status: 500, Body: errorBody("InternalError")},
		"503":      {Mode: faultproxy.Refuse, Status: 503, Body: errorBody("ServiceUnavailable")},
		"slow":     {Mode: faultproxy.Refuse, Status: 503, Body: errorBody("SlowDown")},
		"cut":      {Mode: faultproxy.Cut},
		"time out": {Mode: faultproxy.Refuse, Status: 400, Body: errorBody("RequestTimeout")},
	} {
		t.Run(name, func(t *testing.T) {
			puts, deletes, heads := p.Count(http.MethodPut), p.Count(http.MethodDelete), p.Count(http.MethodHead)
			f.Times, f.Match = -1, writes
			p.Inject(f)
			_, err := s.PutIfMatch(t.Context(), "a", []byte("2"), v)
			require.Error(t, err)
			require.Equal(t, 1, p.Count(http.MethodPut)-puts, "put")
			require.Error(t, s.DeleteIfMatch(t.Context(), "a", v))
			require.Equal(t, 1, p.Count(http.MethodDelete)-deletes, "delete")
			p.ClearFaults()
			require.Equal(t, 1, p.Count(http.MethodHead)-heads, "the look before the deletion")
		})
	}
	t.Run("reads are repeated", func(t *testing.T) {
		p.Inject(faultproxy.Fault{Mode: faultproxy.Refuse, Status: 503, Body: errorBody("ServiceUnavailable"), Times: 2})
		obj, err := s.Get(t.Context(), "a")
		require.NoError(t, err)
		require.Equal(t, storage.Object{Key: "a", Data: []byte("1"), Version: v}, obj)
	})
}

func writes(r *http.Request) bool { return r.Method == http.MethodPut || r.Method == http.MethodDelete }

func TestConditionalRequestConflict(t *testing.T) {
	p, endpoint := proxied(t, service(t))
	s := open(t, endpoint, "")
	busy := faultproxy.Fault{Mode: faultproxy.Refuse, Status: 409, Body: errorBody("ConditionalRequestConflict"), Times: 2}
	p.Inject(busy)
	v, err := s.PutIfAbsent(t.Context(), "a", []byte("1"))
	require.NoError(t, err, "another write was under way, and did not land")
	p.Inject(busy)
	_, err = s.PutIfAbsent(t.Context(), "a", []byte("2"))
	require.ErrorIs(t, err, nstance.Conflict, "another write was under way, and landed")
	busy.Match = writes
	p.Inject(busy)
	require.NoError(t, s.DeleteIfMatch(t.Context(), "a", v))
}

// A listing that is out of order ends with an error.
func TestListRefusesDisorder(t *testing.T) {
	for name, c := range map[string]struct{ prefix, second string }{
		"order": {"", "a"}, "a key twice": {"", "b0999"}, "prefix": {"b", "c"},
	} {
		t.Run(name, func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Query().Has("continuation-token") {
					fmt.Fprint(w, `<ListBucketResult>`+line(c.second)+`</ListBucketResult>`)
					return
				}
				fmt.Fprint(w, `<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>`)
				for i := range 1000 {
					fmt.Fprint(w, line(fmt.Sprintf("b%04d", i)))
				}
				fmt.Fprint(w, `</ListBucketResult>`)
			}))
			defer srv.Close()
			seen, last := 0, error(nil)
			for _, err := range open(t, srv.URL, "&prefix=p").List(t.Context(), c.prefix, "") {
				if last = err; err == nil {
					seen++
				}
			}
			require.ErrorIs(t, last, nstance.Internal)
			require.Equal(t, 1000, seen)
		})
	}
}

func line(key string) string {
	return `<Contents><Key>p/` + key + `</Key><ETag>"1"</ETag><Size>1</Size><LastModified>2026-01-01T00:00:00Z</LastModified></Contents>`
}

// A listing starts after the given key, not at the prefix.
func TestListStartsAfter(t *testing.T) {
	p, endpoint := proxied(t, service(t))
	s := open(t, endpoint, "&prefix=p")
	var query url.Values
	p.Inject(faultproxy.Fault{Mode: faultproxy.Strip, Match: func(r *http.Request) bool { query = r.URL.Query(); return true }})
	for _, err := range s.List(t.Context(), "instance/", "instance/b") {
		require.NoError(t, err)
	}
	require.Equal(t, "p/instance/", query.Get("prefix"))
	require.Equal(t, "p/instance/b", query.Get("start-after"))
}
