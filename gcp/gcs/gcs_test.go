package gcs_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"hash/crc32"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	gcstorage "cloud.google.com/go/storage"
	"github.com/googleapis/gax-go/v2"
	"github.com/stretchr/testify/require"
	"google.golang.org/api/option"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/gcp/gcs"
	"github.com/nstance-go/nstance/gcp/internal/adc/adctest"
	"github.com/nstance-go/nstance/internal/bucket"
	"github.com/nstance-go/nstance/internal/test/faultproxy"
	"github.com/nstance-go/nstance/storage"
)

// The whole contract is checked against a server in integration/storage, by make test-storage.
// These tests check requests and the meaning of each answer, where the emulators are
// imprecise.

func open(t *testing.T, answer http.HandlerFunc) (*faultproxy.Recorder, storage.Store) {
	t.Helper()
	srv := &faultproxy.Recorder{Answer: answer}
	h := httptest.NewServer(srv)
	t.Cleanup(h.Close)
	client, err := gcstorage.NewClient(t.Context(), option.WithoutAuthentication(), option.WithEndpoint(h.URL+"/storage/v1/"))
	require.NoError(t, err)
	client.SetRetry(gcstorage.WithMaxAttempts(2), gcstorage.WithBackoff(gax.Backoff{Initial: time.Millisecond}))
	s, err := gcs.New(client, "bucket", &gcs.Options{Prefix: "p", Timeout: 5 * time.Second})
	require.NoError(t, err)
	return srv, s
}

func refuse(status int, reason string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"error":{"code":%d,"message":"no","errors":[{"reason":%q,"message":"no"}]}}`, status, reason)
	}
}

func accept(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if r.Method == http.MethodDelete {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	fmt.Fprintf(w, `{"name":"p/a","generation":"1700000000000042","crc32c":%q}`, checksum(r))
}

// checksum is that of the second part of an upload; the client compares it.
func checksum(r *http.Request) string {
	_, params, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	parts := multipart.NewReader(r.Body, params["boundary"])
	if _, err := parts.NextPart(); err != nil {
		return ""
	}
	part, err := parts.NextPart()
	if err != nil {
		return ""
	}
	sum := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	_, _ = io.Copy(sum, part)
	return base64.StdEncoding.EncodeToString(sum.Sum(nil))
}

func TestConditionsGoOut(t *testing.T) {
	srv, s := open(t, accept)
	v, err := s.PutIfAbsent(t.Context(), "a", []byte("1"))
	require.NoError(t, err)
	require.Equal(t, storage.Version("1700000000000042"), v, "the generation in the write's own answer")
	put := srv.Requests()
	require.Len(t, put, 1)
	require.Equal(t, "0", put[0].URL.Query().Get("ifGenerationMatch"))

	_, err = s.PutIfMatch(t.Context(), "a", []byte("2"), v)
	require.NoError(t, err)
	put = srv.Requests()
	require.Len(t, put, 1)
	require.Equal(t, string(v), put[0].URL.Query().Get("ifGenerationMatch"))

	require.NoError(t, s.DeleteIfMatch(t.Context(), "a", v))
	del := srv.Requests()
	require.Len(t, del, 1, "no look before")
	require.Equal(t, http.MethodDelete, del[0].Method)
	require.Equal(t, string(v), del[0].URL.Query().Get("ifGenerationMatch"))

	for range s.List(t.Context(), "instance/", "instance/b") {
	}
	list := srv.Requests()[0].URL.Query()
	require.Equal(t, "p/instance/", list.Get("prefix"))
	require.Equal(t, "p/instance/b", list.Get("startOffset"))
}

func TestInvalidVersions(t *testing.T) {
	srv, s := open(t, accept)
	for _, v := range []storage.Version{"", "0", "-1", "1x", "01", "*", "\n"} {
		_, err := s.PutIfMatch(t.Context(), "a", []byte("2"), v)
		require.ErrorIs(t, err, nstance.Conflict, "%q", v)
	}
	require.Empty(t, srv.Requests(), "nothing goes out without a condition")
}

func TestAnswers(t *testing.T) {
	for _, c := range []struct {
		status      int
		reason      string
		write, read nstance.Code
	}{
		{400, "invalid", nstance.Invalid, nstance.Unavailable}, // a read has no reason
		{302, "", nstance.Unavailable, nstance.Unavailable},
		{407, "", nstance.Unavailable, nstance.Unavailable},
		{401, "required", nstance.Denied, nstance.Denied},
		{403, "forbidden", nstance.Denied, nstance.Denied},
		{404, "notFound", nstance.Unavailable, nstance.Unavailable}, // the bucket's listing is not found either
		{409, "conflict", nstance.Ambiguous, nstance.Unavailable},
		{412, "conditionNotMet", nstance.Conflict, nstance.Conflict},
		{429, "rateLimitExceeded", nstance.Throttled, nstance.Throttled},
		{500, "backendError", nstance.Ambiguous, nstance.Unavailable},
		{503, "backendError", nstance.Ambiguous, nstance.Unavailable},
	} {
		t.Run(strconv.Itoa(c.status), func(t *testing.T) {
			t.Parallel()
			srv, s := open(t, refuse(c.status, c.reason))
			_, err := s.PutIfAbsent(t.Context(), "a", []byte("1"))
			require.Equal(t, c.write, nstance.CodeOf(err), "%v", err)
			require.Len(t, srv.Requests(), 1, "a write is sent once")
			err = s.DeleteIfMatch(t.Context(), "a", "7")
			require.Equal(t, c.write, nstance.CodeOf(err), "%v", err)
			deletes := slices.DeleteFunc(srv.Requests(), func(r *http.Request) bool { return r.Method != http.MethodDelete })
			require.Len(t, deletes, 1, "and so is a deletion")
			_, err = s.Get(t.Context(), "a")
			require.Equal(t, c.read, nstance.CodeOf(err), "%v", err)
			for _, err = range s.List(t.Context(), "", "") {
			}
			require.Error(t, err)
		})
	}
	t.Run("404 of a key", func(t *testing.T) {
		_, s := open(t, func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/o") && r.Method == http.MethodGet {
				accept(w, r) // the bucket can be listed
				return
			}
			refuse(404, "notFound")(w, r)
		})
		_, err := s.Get(t.Context(), "a")
		require.ErrorIs(t, err, nstance.NotFound)
		require.ErrorIs(t, s.DeleteIfMatch(t.Context(), "a", "7"), nstance.NotFound)
	})
	t.Run("an answer without generation", func(t *testing.T) {
		_, s := open(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{}`) })
		_, err := s.PutIfAbsent(t.Context(), "a", []byte("1"))
		require.ErrorIs(t, err, nstance.Ambiguous)
	})
	t.Run("a connection that ends", func(t *testing.T) {
		srv, s := open(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
		_, err := s.PutIfAbsent(t.Context(), "a", []byte("1"))
		require.ErrorIs(t, err, nstance.Ambiguous)
		require.Len(t, srv.Requests(), 1)
	})
	t.Run("no answer in time", func(t *testing.T) {
		_, s := open(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := s.PutIfAbsent(ctx, "a", []byte("1"))
		require.ErrorIs(t, err, nstance.Ambiguous)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

func TestOddAnswers(t *testing.T) {
	faultproxy.CheckOddAnswers(t, openAt, `{"kind": "storage#object"}`, `{"error": {"code": 500}}`)
}

// openAt opens the store at an emulator's address.
func openAt(t *testing.T, addr string) storage.Store {
	t.Helper()
	t.Setenv("STORAGE_EMULATOR_HOST", addr)
	s, err := gcs.Open(t.Context(), "gs://bucket", &gcs.Options{Timeout: 5 * time.Second})
	require.NoError(t, err)
	return s
}

// TestMissingBucket: a 404 is about the key only if the bucket's listing is one.
func TestMissingBucket(t *testing.T) {
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/o") && r.Method == http.MethodGet {
			fmt.Fprint(w, "{}")
			return
		}
		refuse(404, "notFound")(w, r)
	}))
	t.Cleanup(h.Close)
	_, err := openAt(t, h.Listener.Addr().String()).Get(t.Context(), "a")
	require.ErrorIs(t, err, nstance.Unavailable)
}

// TestListingGoesOnWithItself: the client requests pages until one has entries, or is the last.
func TestListingGoesOnWithItself(t *testing.T) {
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"kind": "storage#objects", "nextPageToken": "t"}`)
	}))
	t.Cleanup(h.Close)
	var err error
	for _, err = range openAt(t, h.Listener.Addr().String()).List(t.Context(), "", "") {
	}
	require.ErrorIs(t, err, bucket.ErrNoListing)
}

// TestReplacedWhileRead: where the connection breaks within the content, the client
// requests the rest of that generation, which is gone when the object was replaced. That
// is no statement about the key.
func TestReplacedWhileRead(t *testing.T) {
	srv, s := open(t, func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("generation") != "" || r.Header.Get("Range") != "" {
			refuse(http.StatusNotFound, "notFound")(w, r)
			return
		}
		w.Header().Set("X-Goog-Generation", "42")
		w.Header().Set("Content-Length", "10")
		fmt.Fprint(w, "12345")
	})
	_, err := s.Get(t.Context(), "a")
	require.ErrorIs(t, err, nstance.Unavailable)
	require.NotErrorIs(t, err, nstance.NotFound)
	require.Len(t, srv.Requests(), 2)
}

func ExampleNew() {
	h := httptest.NewServer(http.HandlerFunc(accept)) // in place of the service
	defer h.Close()
	ctx := context.Background()
	client, err := gcstorage.NewClient(ctx, option.WithoutAuthentication(), option.WithEndpoint(h.URL+"/storage/v1/"))
	if err != nil {
		fmt.Println(err)
		return
	}
	store, err := gcs.New(client, "prod", &gcs.Options{Prefix: "nstance"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(store.PutIfAbsent(ctx, "lease/eu1a.json", []byte("{}")))
	// Output: 1700000000000042 <nil>
}

func TestOpen(t *testing.T) {
	t.Run("without credentials", func(t *testing.T) {
		t.Setenv("STORAGE_EMULATOR_HOST", "")
		t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/credentials.json")
		_, err := gcs.Open(t.Context(), "gs://bucket", nil)
		require.ErrorIs(t, err, nstance.Denied)
	})
	t.Run("an emulator's objects are read before deletion", func(t *testing.T) {
		srv := &faultproxy.Recorder{Answer: accept}
		h := httptest.NewServer(srv)
		defer h.Close()
		t.Setenv("STORAGE_EMULATOR_HOST", h.Listener.Addr().String())
		s, err := gcs.Open(t.Context(), "gs://bucket?prefix=p", nil)
		require.NoError(t, err)
		require.Error(t, s.DeleteIfMatch(t.Context(), "a", "7"))
		for _, r := range srv.Requests() {
			require.Equal(t, http.MethodGet, r.Method)
		}
	})
}

func TestNoToken(t *testing.T) {
	adctest.CheckNoToken(t, func(file string) func(context.Context) error {
		t.Setenv("STORAGE_EMULATOR_HOST", "")
		t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", file)
		s, err := gcs.Open(t.Context(), "gs://bucket", nil)
		require.NoError(t, err)
		return func(ctx context.Context) error {
			_, err := s.Get(ctx, "a")
			return err
		}
	})
}
