package s3_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/internal/test/faultproxy"
	"github.com/nstance-go/nstance/storage"
)

const shard = "eu1a"

// Faults of one write to a real server. Records and documents must be correct after
// each.
var faults = map[string]faultproxy.Fault{
	"409 once":                          {Mode: faultproxy.Refuse, Status: 409, Body: errorBody("ConditionalRequestConflict")},
	"409 again and again":               {Mode: faultproxy.Refuse, Status: 409, Body: errorBody("ConditionalRequestConflict"), Times: 8},
	"409 after a landed write":          {Mode: faultproxy.Replace, Status: 409, Body: errorBody("ConditionalRequestConflict")},
	"412 after a landed write":          {Mode: faultproxy.Replace, Status: 412, Body: errorBody("PreconditionFailed")},
	"412 without reason":                {Mode: faultproxy.Refuse, Status: 412, Body: errorBody("PreconditionFailed")},
	"404 after a landed write":          {Mode: faultproxy.Replace, Status: 404, Body: errorBody("NoSuchKey")},
	"404 without reason":                {Mode: faultproxy.Refuse, Status: 404, Body: errorBody("NoSuchKey")},
	"500 after a landed write":          {Mode: faultproxy.Replace, Status: 500, Body: errorBody("InternalError")},
	"503 before":                        {Mode: faultproxy.Refuse, Status: 503, Body: errorBody("ServiceUnavailable")},
	"time-out after a landed write":     {Mode: faultproxy.Hang},
	"connection cut before":             {Mode: faultproxy.Cut},
	"connection cut after it landed":    {Mode: faultproxy.LoseAnswer},
	"answer without version":            {Mode: faultproxy.Replace, Status: 200},
	"answer that is not the service's":  {Mode: faultproxy.Replace, Status: 502, Body: "<html>bad gateway</html>"},
	"answer of another kind altogether": {Mode: faultproxy.Replace, Status: 200, Body: "<html>sign in to this wireless network</html>"},
}

// stage is a server, a store behind a proxy, and one with a direct connection.
type stage struct {
	proxy         *faultproxy.Proxy
	store, direct storage.Store
}

func newStage(t *testing.T) stage {
	t.Helper()
	endpoint := service(t)
	p, front := proxied(t, endpoint)
	return stage{proxy: p, store: openFor(t, front, "", time.Second), direct: open(t, endpoint, "")}
}

// stands returns what another server reads.
func (s stage) stands(t *testing.T) []records.Instance {
	t.Helper()
	all, problems, err := records.New(s.direct, shard, nil).Load(t.Context())
	require.NoError(t, err)
	require.Empty(t, problems)
	return all
}

func instance(t *testing.T) records.Instance {
	t.Helper()
	id, err := nstance.NewInstanceID("web", time.Now())
	require.NoError(t, err)
	return records.Instance{ID: id, Tenant: "default", Group: "web"}
}

func count(rec *records.Instance) error { rec.Generation++; return nil }

type counter struct {
	records.Header
	N int
}

func TestRecordsSurvive(t *testing.T) {
	for name, f := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			r := records.New(s.store, shard, nil)
			f.Match = writes

			s.proxy.Inject(f)
			rec, err := r.Create(t.Context(), instance(t))
			require.NoError(t, err, "create")
			require.Len(t, s.stands(t), 1)

			s.proxy.ClearFaults()
			s.proxy.Inject(f)
			rec, err = r.Update(t.Context(), rec.ID, count)
			require.NoError(t, err, "update")
			require.EqualValues(t, 1, rec.Generation)
			require.EqualValues(t, 1, s.stands(t)[0].Generation, "applied once")

			s.proxy.ClearFaults()
			_, err = r.Update(t.Context(), rec.ID, count)
			require.NoError(t, err, "an update after that")
			require.EqualValues(t, 2, s.stands(t)[0].Generation)

			if name != "404 without reason" { // a deletion must trust this
				s.proxy.Inject(f)
			}
			require.NoError(t, r.Delete(t.Context(), rec.ID), "delete")
			require.Empty(t, s.stands(t))
		})
	}
}

func TestDocSurvives(t *testing.T) {
	for name, f := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			doc := records.NewDoc[counter](s.store, layout.StateKey(shard), nil)
			f.Match = writes
			for n := range 3 {
				s.proxy.ClearFaults()
				s.proxy.Inject(f)
				_, err := doc.Update(t.Context(), func(c *counter) error { c.N++; return nil })
				require.NoError(t, err)
				now, err := records.NewDoc[counter](s.direct, layout.StateKey(shard), nil).Load(t.Context())
				require.NoError(t, err)
				require.Equal(t, n+1, now.N)
			}
		})
	}
}

// A write whose answer is lost, and that cannot be read back, is Ambiguous; the next
// call resolves it.
func TestRecordsWithoutReadBack(t *testing.T) {
	s := newStage(t)
	r := records.New(s.store, shard, nil)
	rec, err := r.Create(t.Context(), instance(t))
	require.NoError(t, err)
	s.proxy.Inject(
		faultproxy.Fault{Mode: faultproxy.LoseAnswer, Match: writes},
		faultproxy.Fault{Mode: faultproxy.Refuse, Status: 503, Body: errorBody("ServiceUnavailable"), Times: -1},
	)
	_, err = r.Update(t.Context(), rec.ID, count)
	require.ErrorIs(t, err, nstance.Ambiguous)
	s.proxy.ClearFaults()
	rec, err = r.Update(t.Context(), rec.ID, count)
	require.NoError(t, err)
	require.EqualValues(t, 2, rec.Generation, "the first had landed")
}

// A throttled write has not landed, so the caller gets the error.
func TestRecordsThrottled(t *testing.T) {
	s := newStage(t)
	r := records.New(s.store, shard, nil)
	s.proxy.Inject(faultproxy.Fault{Mode: faultproxy.Refuse, Status: 503, Body: errorBody("SlowDown"), Match: writes})
	_, err := r.Create(t.Context(), instance(t))
	require.ErrorIs(t, err, nstance.Throttled)
	require.Empty(t, s.stands(t))
}

// A writer behind a proxy that loses answers competes with another writer.
func TestRecordsOfAnotherWriter(t *testing.T) {
	s := newStage(t)
	mine, other := records.New(s.store, shard, nil), records.New(s.direct, shard, nil)
	rec, err := mine.Create(t.Context(), instance(t))
	require.NoError(t, err)
	s.proxy.Inject(faultproxy.Fault{Mode: faultproxy.LoseAnswer, Match: func(r *http.Request) bool {
		if r.Method != http.MethodPut {
			return false
		}
		_, _, err := other.Load(t.Context())
		if err == nil {
			_, err = other.Update(t.Context(), rec.ID, count)
		}
		if err != nil {
			t.Error(err)
		}
		return true
	}})
	_, err = mine.Update(t.Context(), rec.ID, count)
	require.NoError(t, err)
	require.EqualValues(t, 2, s.stands(t)[0].Generation, "neither update is lost")
}

func TestRecordsSurviveStaleList(t *testing.T) {
	s := newStage(t)
	mine, other := records.New(s.store, shard, nil), records.New(s.direct, shard, nil)
	var recs []records.Instance
	for range 2 {
		rec, err := other.Create(t.Context(), instance(t))
		require.NoError(t, err)
		recs = append(recs, rec)
	}
	lists := func(r *http.Request) bool { return strings.Contains(r.URL.RawQuery, "list-type=2") }
	s.proxy.Inject(faultproxy.Fault{Mode: faultproxy.Stale, Match: lists, Times: -1})
	all, _, err := mine.Load(t.Context())
	require.NoError(t, err)
	require.Len(t, all, 2)

	own, err := mine.Create(t.Context(), instance(t))
	require.NoError(t, err)
	_, err = other.Update(t.Context(), recs[0].ID, count)
	require.NoError(t, err)
	require.NoError(t, other.Delete(t.Context(), recs[1].ID))
	_, err = mine.Update(t.Context(), recs[0].ID, count)
	require.NoError(t, err)

	// The list shows the two old records, and not the third.
	for _, reader := range []*records.Records{mine, records.New(s.store, shard, nil)} {
		all, problems, err := reader.Load(t.Context())
		require.NoError(t, err)
		require.Empty(t, problems)
		found := map[nstance.InstanceID]uint64{}
		for _, rec := range all {
			found[rec.ID] = rec.Generation
		}
		require.EqualValues(t, 2, found[recs[0].ID], "changed since: its own read counts")
		if reader == mine {
			require.Contains(t, found, own.ID, "what is known and not listed is looked at, not given up")
		} else {
			require.NotContains(t, found, recs[1].ID, "deleted since")
		}
	}
	_, err = mine.Update(t.Context(), recs[1].ID, count)
	require.ErrorIs(t, err, nstance.NotFound, "whom the list deceived learns it from the next write")
	require.Len(t, s.stands(t), 2, "and does not bring it back")
}

// TestListingsThatDoNotEnd: a page that says that there are more and does not say where, or that they
// are on the same page again, or that has keys of other folders, is no part of a listing.
func TestListingsThatDoNotEnd(t *testing.T) {
	const key = `<Contents><Key>p/a</Key><LastModified>2026-11-20T10:00:00.000Z</LastModified><ETag>"1"</ETag><Size>1</Size></Contents>`
	for name, page := range map[string]string{
		"no next page":         key + `<IsTruncated>true</IsTruncated>`,
		"no next page, empty":  `<IsTruncated>true</IsTruncated>`,
		"the same page":        key + `<IsTruncated>true</IsTruncated><NextContinuationToken>7</NextContinuationToken>`,
		"the same empty page":  `<IsTruncated>true</IsTruncated><NextContinuationToken>7</NextContinuationToken>`,
		"the same folders":     `<CommonPrefixes><Prefix>p/x/</Prefix></CommonPrefixes><IsTruncated>true</IsTruncated><NextContinuationToken>7</NextContinuationToken>`,
		"another store's keys": `<Contents><Key>other/a</Key><LastModified>2026-11-20T10:00:00.000Z</LastModified><ETag>"1"</ETag><Size>1</Size></Contents><CommonPrefixes><Prefix>other/x/</Prefix></CommonPrefixes>`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int32
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if asked.Add(1) > 20 {
					w.WriteHeader(http.StatusForbidden)
					return
				}
				fmt.Fprint(w, `<ListBucketResult><Name>`+bucket+`</Name><Prefix>p/</Prefix>`+page+`</ListBucketResult>`)
			}))
			t.Cleanup(srv.Close)
			s := open(t, srv.URL, "&prefix=p")
			var err error
			for _, err = range s.List(t.Context(), "", "") {
			}
			require.Error(t, err)
			require.NotErrorIs(t, err, nstance.Denied, "it is asked for ever")
			err = nil
			for _, err = range storage.Folders(t.Context(), s, "") {
			}
			require.Error(t, err)
			require.NotErrorIs(t, err, nstance.Denied, "it is asked for ever")
		})
	}
}

// TestVersionNotShown: what does not show a version is neither the one that is to be deleted nor another.
func TestVersionNotShown(t *testing.T) {
	var deleted atomic.Bool
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		deleted.Store(deleted.Load() || r.Method == http.MethodDelete)
	}))
	t.Cleanup(srv.Close)
	s := open(t, srv.URL, "")
	for _, v := range []storage.Version{"7", ""} { // a listing without versions has empty ones
		require.ErrorIs(t, s.DeleteIfMatch(t.Context(), "a", v), nstance.Unavailable)
	}
	require.False(t, deleted.Load())
}
