package bucket_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"gocloud.dev/blob"
	"gocloud.dev/blob/memblob"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/bucket"
	"github.com/nstance-go/nstance/storage"
)

// An answered driver answers each call with the next fault of its operation, or well.
type answered struct {
	faults  map[string][]error
	calls   map[string]int
	version storage.Version // of everything
	body    io.Reader
	looks   bool
	entry   func(*blob.ListObject) storage.Entry
	deletes []storage.Version
}

type faultError struct{ bucket.Fault }

func (faultError) Error() string { return "a refusal" }

func refusal(status int, code string) error {
	return faultError{bucket.Fault{Status: status, Code: code}}
}

func (d *answered) next(ctx context.Context, op string) error {
	if t := httptrace.ContextClientTrace(ctx); t != nil {
		t.WroteHeaders()
	}
	d.calls[op]++
	if len(d.faults[op]) == 0 {
		return nil
	}
	err := d.faults[op][0]
	d.faults[op] = d.faults[op][1:]
	return err
}

func (d *answered) Get(ctx context.Context, _ string) (io.ReadCloser, storage.Version, error) {
	return io.NopCloser(d.body), d.version, d.next(ctx, "get")
}

func (d *answered) Head(ctx context.Context, _ string) (storage.Version, error) {
	return d.version, d.next(ctx, "head")
}

func (d *answered) Put(ctx context.Context, _ string, _ []byte, _ storage.Version) (storage.Version, error) {
	return d.version, d.next(ctx, "put")
}

func (d *answered) Delete(ctx context.Context, _ string, v storage.Version) error {
	d.deletes = append(d.deletes, v)
	return d.next(ctx, "delete")
}

func (d *answered) Looks() bool                                 { return d.looks }
func (d *answered) Query(func(any) bool, string, string) string { return "" }
func (d *answered) Place() string                               { return "" }

func (d *answered) Entry(o *blob.ListObject) storage.Entry {
	if d.entry != nil {
		return d.entry(o)
	}
	return storage.Entry{Key: o.Key}
}

func (d *answered) Fault(err error) (bucket.Fault, bool) {
	f, ok := errors.AsType[faultError](err)
	return f.Fault, ok
}

// over returns a store over d, and keys in its bucket.
func over(t *testing.T, d *answered, keys ...string) *bucket.Store {
	t.Helper()
	b := memblob.OpenBucket(nil)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	for _, key := range keys {
		require.NoError(t, b.WriteAll(t.Context(), key, nil, nil))
	}
	if d.faults == nil {
		d.faults = map[string][]error{}
	}
	d.calls = map[string]int{}
	s, err := bucket.New(func(*bucket.Pool) (*blob.Bucket, bucket.Driver, error) { return b, d, nil }, nil, nil)
	require.NoError(t, err)
	return s
}

// broken fails in the middle of an object, with a refusal as of a client that asks again.
type broken struct{ err error }

func (b broken) Read([]byte) (int, error) { return 0, b.err }

func TestGetOfBrokenAnswer(t *testing.T) {
	for name, d := range map[string]*answered{
		"a 404 in the middle": {version: "1", body: broken{refusal(404, "NoSuchKey")}},
		"no version":          {body: strings.NewReader("x")},
	} {
		_, err := over(t, d).Get(t.Context(), "a")
		require.Equal(t, nstance.Unavailable, nstance.CodeOf(err), name)
	}
}

// TestPutOfMissingKey: a write on a condition that finds nothing is a Conflict, one without is
// not what a store may answer.
func TestPutOfMissingKey(t *testing.T) {
	for match, want := range map[storage.Version]nstance.Code{"1": nstance.Conflict, "": nstance.Ambiguous} {
		d := &answered{faults: map[string][]error{"put": {refusal(404, "NoSuchKey")}}}
		_, err := write(t, over(t, d), match)
		require.Equal(t, want, nstance.CodeOf(err))
	}
	_, err := write(t, over(t, &answered{}), "1")
	require.Equal(t, nstance.Ambiguous, nstance.CodeOf(err), "it has no version")
}

func write(t *testing.T, s *bucket.Store, match storage.Version) (storage.Version, error) {
	t.Helper()
	if match == "" {
		return s.PutIfAbsent(t.Context(), "a", nil)
	}
	return s.PutIfMatch(t.Context(), "a", nil, match)
}

// TestBusyKey: while another write of the key is under way, it is written again, six times at
// most.
func TestBusyKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for refusals, calls := range map[int]int{5: 6, 6: 6, 20: 6} {
			d := &answered{version: "1", faults: map[string][]error{}}
			for range refusals {
				d.faults["put"] = append(d.faults["put"], refusal(http.StatusConflict, "OperationAborted"))
			}
			_, err := write(t, over(t, d), "")
			require.Equal(t, refusals < 6, err == nil)
			require.Equal(t, calls, d.calls["put"])
		}
	})
}

// TestDeleteOfChanged: whether the key changed or is gone, a look tells.
func TestDeleteOfChanged(t *testing.T) {
	d := &answered{version: "1", faults: map[string][]error{"delete": {refusal(412, "")}, "head": {refusal(404, "NoSuchKey")}}}
	require.Equal(t, nstance.NotFound, nstance.CodeOf(over(t, d).DeleteIfMatch(t.Context(), "a", "1")))
	d = &answered{version: "2", faults: map[string][]error{"delete": {refusal(412, "")}}}
	require.Equal(t, nstance.Conflict, nstance.CodeOf(over(t, d).DeleteIfMatch(t.Context(), "a", "1")))
	d = &answered{version: "2"}
	require.Equal(t, nstance.Conflict, nstance.CodeOf(over(t, d).DeleteIfMatch(t.Context(), "a", "")), "no version is no condition")
	require.Empty(t, d.deletes)
}

// TestDeleteWithoutCondition: a store that knows no condition is asked so once.
func TestDeleteWithoutCondition(t *testing.T) {
	d := &answered{version: "1", looks: true, faults: map[string][]error{"delete": {refusal(http.StatusNotImplemented, "NotImplemented")}}}
	s := over(t, d)
	for range 2 {
		require.NoError(t, s.DeleteIfMatch(t.Context(), "a", "1"))
	}
	require.Equal(t, []storage.Version{"1", "", ""}, d.deletes)
	require.Equal(t, 2, d.calls["head"], "it is looked at before each")
}

func TestFaults(t *testing.T) {
	for _, c := range []struct {
		status      int
		code        string
		read, write nstance.Code
	}{
		{400, "IncompleteBody", nstance.Unavailable, nstance.Ambiguous},
		{400, "BadDigest", nstance.Unavailable, nstance.Ambiguous},
		{400, "RequestTimeout", nstance.Unavailable, nstance.Ambiguous},
		{400, "KMS.DisabledException", nstance.Denied, nstance.Denied},
		{400, "ExpiredToken", nstance.Denied, nstance.Denied},
		{400, "InvalidArgument", nstance.Invalid, nstance.Invalid},
		{400, "", nstance.Unavailable, nstance.Unavailable},
		{400, "BadRequest", nstance.Unavailable, nstance.Unavailable}, // which clients make up
		{404, "NoSuchBucket", nstance.Unavailable, nstance.Unavailable},
		{409, "", nstance.Unavailable, nstance.Ambiguous},
		{412, "", nstance.Conflict, nstance.Conflict},
		{429, "", nstance.Throttled, nstance.Throttled},
		{501, "", nstance.Invalid, nstance.Invalid},
		{503, "SlowDown", nstance.Throttled, nstance.Throttled},
		{503, "", nstance.Unavailable, nstance.Ambiguous},
	} {
		err := refusal(c.status, c.code)
		s := over(t, &answered{body: strings.NewReader(""), faults: map[string][]error{"get": {err}, "put": {err}}})
		_, readErr := s.Get(t.Context(), "a")
		require.Equal(t, c.read, nstance.CodeOf(readErr), "read: %d %s", c.status, c.code)
		_, writeErr := write(t, s, "1")
		require.Equal(t, c.write, nstance.CodeOf(writeErr), "write: %d %s", c.status, c.code)
	}
}

// TestSecretURL: an error of the connection has no URL, which may hold a signature.
func TestSecretURL(t *testing.T) {
	lost := &url.Error{Op: "Get", URL: "https://box/a?signature=secret", Err: errors.New("connection reset")}
	_, err := over(t, &answered{body: strings.NewReader(""), faults: map[string][]error{"get": {lost}}}).Get(t.Context(), "a")
	require.ErrorContains(t, err, "connection reset")
	require.NotContains(t, err.Error(), "secret")
}

func TestListings(t *testing.T) {
	keys := func(s *bucket.Store, after string) (out []string, err error) {
		for e, err := range s.List(t.Context(), "x/", after) {
			if err != nil {
				return out, err
			}
			out = append(out, e.Key)
		}
		return out, nil
	}
	t.Run("only what is after a key, even if the store lists more", func(t *testing.T) {
		got, err := keys(over(t, &answered{}, "x/a", "x/b", "x/c"), "x/b")
		require.NoError(t, err)
		require.Equal(t, []string{"x/c"}, got)
	})
	for name, key := range map[string]string{"a key twice": "x/a", "another prefix": "y/a"} {
		t.Run(name+" is an error", func(t *testing.T) {
			d := &answered{entry: func(*blob.ListObject) storage.Entry { return storage.Entry{Key: key} }}
			_, err := keys(over(t, d, "x/a", "x/b"), "")
			require.Equal(t, nstance.Internal, nstance.CodeOf(err))
		})
	}
	t.Run("folders without the keys beside them", func(t *testing.T) {
		var got []string
		for name, err := range over(t, &answered{}, "x/a/1", "x/a/2", "x/b", "x/c/1").Folders(t.Context(), "x/") {
			require.NoError(t, err)
			got = append(got, name)
		}
		require.Equal(t, []string{"a", "c"}, got)
	})
}
