package blob_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/azure/blob"
	"github.com/nstance-go/nstance/internal/test/faultproxy"
	"github.com/nstance-go/nstance/storage"
)

// The whole contract is checked against a server in integration/storage, by make test-storage.
// These tests check requests and the meaning of each answer.

func open(t *testing.T, answer http.HandlerFunc) (*faultproxy.Recorder, storage.Store) {
	t.Helper()
	srv := &faultproxy.Recorder{Answer: answer}
	h := httptest.NewServer(srv)
	t.Cleanup(h.Close)
	return srv, openAt(t, h.URL)
}

func openAt(t *testing.T, endpoint string) storage.Store {
	t.Helper()
	client, err := container.NewClientWithNoCredential(endpoint+"/account/box?sig=topsecret", nil)
	require.NoError(t, err)
	s, err := blob.New(client, &blob.Options{Prefix: "p", Timeout: 3 * time.Second})
	require.NoError(t, err)
	return s
}

func refuse(status int, code string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("x-ms-error-code", code)
		w.WriteHeader(status)
	}
}

func accept(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("ETag", `"0x8DC0FFEE"`)
	switch {
	case r.Method == http.MethodDelete:
		w.WriteHeader(http.StatusAccepted)
	case r.Method == http.MethodPut:
		w.WriteHeader(http.StatusCreated)
	case r.URL.Query().Get("comp") == "list":
		w.Header().Set("Content-Type", "application/xml")
		fmt.Fprint(w, `<EnumerationResults><Blobs><Blob><Name>p/instance/c</Name><Properties>`+
			`<Etag>0x8DC0FFEE</Etag><Content-Length>3</Content-Length><Last-Modified>Fri, 20 Nov 2026 10:00:00 GMT</Last-Modified>`+
			`</Properties></Blob></Blobs><NextMarker/></EnumerationResults>`)
	default:
		w.Header().Set("Last-Modified", "Fri, 20 Nov 2026 10:00:00 GMT")
		fmt.Fprint(w, "abc")
	}
}

func TestConditionsGoOut(t *testing.T) {
	srv, s := open(t, accept)
	v, err := s.PutIfAbsent(t.Context(), "a", []byte("1"))
	require.NoError(t, err)
	require.Equal(t, storage.Version("0x8DC0FFEE"), v, "the tag in the write's own answer")
	put := srv.Requests()
	require.Len(t, put, 1)
	require.Equal(t, "*", put[0].Header.Get("If-None-Match"))

	_, err = s.PutIfMatch(t.Context(), "a", []byte("2"), v)
	require.NoError(t, err)
	put = srv.Requests()
	require.Len(t, put, 1)
	require.Equal(t, `"0x8DC0FFEE"`, put[0].Header.Get("If-Match"))

	require.NoError(t, s.DeleteIfMatch(t.Context(), "a", v))
	del := srv.Requests()
	require.Len(t, del, 1, "no look before")
	require.Equal(t, `"0x8DC0FFEE"`, del[0].Header.Get("If-Match"))

	obj, err := s.Get(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, storage.Object{Key: "a", Data: []byte("abc"), Version: v}, obj)
	for e, err := range s.List(t.Context(), "instance/", "instance/b") {
		require.NoError(t, err)
		require.Equal(t, storage.Entry{Key: "instance/c", Version: v, Size: 3}, e, "listings have the tag without quotes")
	}
	for e := range s.List(t.Context(), "instance/", "instance/c") {
		require.Fail(t, "not after", "%v", e)
	}
}

func TestAnswers(t *testing.T) {
	for _, c := range []struct {
		status      int
		code        string
		write, read nstance.Code
	}{
		{400, "InvalidHeaderValue", nstance.Invalid, nstance.Invalid},
		{302, "", nstance.Unavailable, nstance.Unavailable},
		{400, "", nstance.Unavailable, nstance.Unavailable},
		{400, "Md5Mismatch", nstance.Ambiguous, nstance.Unavailable},
		{407, "", nstance.Unavailable, nstance.Unavailable},
		{403, "AuthenticationFailed", nstance.Denied, nstance.Denied},
		{404, "BlobNotFound", nstance.NotFound, nstance.NotFound},
		{404, "ContainerNotFound", nstance.Unavailable, nstance.Unavailable},
		{404, "ResourceNotFound", nstance.Unavailable, nstance.Unavailable},
		{409, "ContainerBeingDeleted", nstance.Ambiguous, nstance.Unavailable},
		{409, "BlobAlreadyExists", nstance.Conflict, nstance.Conflict},
		{412, "ConditionNotMet", nstance.Conflict, nstance.Conflict},
		{412, "LeaseIdMissing", nstance.Conflict, nstance.Conflict},
		{429, "", nstance.Throttled, nstance.Throttled},
		{500, "OperationTimedOut", nstance.Ambiguous, nstance.Unavailable},
		{503, "ServerBusy", nstance.Throttled, nstance.Throttled},
	} {
		t.Run(strconv.Itoa(c.status)+c.code, func(t *testing.T) {
			t.Parallel()
			srv, s := open(t, refuse(c.status, c.code))
			err := s.DeleteIfMatch(t.Context(), "a", "7")
			require.Equal(t, c.write, nstance.CodeOf(err), "%v", err)
			deletes := slices.DeleteFunc(srv.Requests(), func(r *http.Request) bool { return r.Method != http.MethodDelete })
			require.Len(t, deletes, 1, "a deletion is sent once")
			_, err = s.PutIfMatch(t.Context(), "a", []byte("1"), "7")
			if c.write == nstance.NotFound {
				c.write = nstance.Conflict // a missing object is a changed one
			}
			require.Equal(t, c.write, nstance.CodeOf(err), "%v", err)
			require.Len(t, srv.Requests(), 1, "a write is sent once")
			_, err = s.Get(t.Context(), "a")
			require.Equal(t, c.read, nstance.CodeOf(err), "%v", err)
		})
	}
	t.Run("a connection that ends", func(t *testing.T) {
		srv, s := open(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
		_, err := s.PutIfAbsent(t.Context(), "a", []byte("1"))
		require.ErrorIs(t, err, nstance.Ambiguous)
		require.NotContains(t, err.Error(), "topsecret", "the URL holds a signature")
		require.Len(t, srv.Requests(), 1)
	})
	t.Run("no answer in time", func(t *testing.T) {
		_, s := open(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := s.PutIfAbsent(ctx, "a", []byte("1"))
		require.ErrorIs(t, err, nstance.Ambiguous)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotContains(t, err.Error(), "topsecret")
	})
}

func TestOddAnswers(t *testing.T) {
	faultproxy.CheckOddAnswers(t, func(t *testing.T, addr string) storage.Store {
		t.Helper()
		return openAt(t, "http://"+addr)
	}, `<EnumerationResults ContainerName="c"/>`,
		`<EnumerationResults ContainerName="c"><Blobs><Blob><Name>a</Name></Blob></Blobs></EnumerationResults>`)
}

func TestOpen(t *testing.T) {
	for _, k := range []string{"ACCOUNT", "KEY", "SAS_TOKEN", "CONNECTION_STRING", "DOMAIN", "PROTOCOL", "IS_LOCAL_EMULATOR"} {
		t.Setenv("AZURE_STORAGE_"+k, "")
	}
	t.Setenv("AZURE_STORAGEBLOB_CONNECTIONSTRING", "")
	refused := func(t *testing.T, u string) {
		t.Helper()
		_, err := blob.Open(t.Context(), u, nil)
		require.ErrorIs(t, err, nstance.Invalid)
		require.ErrorContains(t, err, "storage.url")
		require.NotContains(t, err.Error(), "topsecret")
	}
	refused(t, "azblob://box")
	t.Setenv("AZURE_STORAGE_ACCOUNT", "account")
	t.Setenv("AZURE_STORAGE_KEY", "a2V5")
	for _, u := range []string{"azblob://box", "azblob://box?storage_account=other&prefix=a", "azblob://box?domain=127.0.0.1:10000&protocol=http&localemu=true"} {
		_, err := blob.Open(t.Context(), u, nil)
		require.NoError(t, err)
	}
	refused(t, "azblob://box?protocol=gopher")
	refused(t, "azblob://box?localemu=perhaps")
	refused(t, "azblob://box/folder")
	t.Setenv("AZURE_STORAGE_SAS_TOKEN", "sig=topsecret")
	refused(t, "azblob://box?domain=elsewhere.example")
	t.Setenv("AZURE_STORAGE_SAS_TOKEN", "")
	t.Setenv("AZURE_STORAGE_ACCOUNT", "")
	t.Setenv("AZURE_STORAGE_KEY", "")
	t.Setenv("AZURE_STORAGE_CONNECTION_STRING", "DefaultEndpointsProtocol=https;AccountName=account;AccountKey=a2V5;EndpointSuffix=core.windows.net")
	_, err := blob.Open(t.Context(), "azblob://box", nil)
	require.NoError(t, err)
	refused(t, "azblob://box?storage_account=other")
}

func ExampleNew() {
	h := httptest.NewServer(http.HandlerFunc(accept)) // in place of the service
	defer h.Close()
	client, err := container.NewClientWithNoCredential(h.URL+"/account/prod", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	store, err := blob.New(client, &blob.Options{Prefix: "nstance"})
	if err != nil {
		fmt.Println(err)
		return
	}
	v, err := store.PutIfAbsent(context.Background(), "lease/eu1a.json", []byte("{}"))
	fmt.Println(strings.ToLower(string(v)), err)
	// Output: 0x8dc0ffee <nil>
}
