//go:build servers

// These tests run against real servers, which `make servers` builds. A server
// that is missing is a failure, never a reason to pass.
package storage_test

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gocloud.dev/blob/azureblob"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/clouds/store"
	"github.com/nstance-go/nstance/integration/realserver"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// A server is one kind of store: start begins it and returns what makes a new,
// empty bucket and names it by a URL.
type server struct {
	name  string
	start func(*testing.T) (newBucket func(*testing.T) string)
}

var servers = []server{{"versitygw", versitygw}, {"fake-gcs-server", fakeGCS}, {"azurite", azurite}}

func TestServers(t *testing.T) {
	for _, srv := range servers {
		t.Run(srv.name, func(t *testing.T) {
			newBucket := srv.start(t)
			t.Run("whole bucket", func(t *testing.T) {
				storagetest.Run(t, func(t *testing.T) storage.Store { return open(t, newBucket(t)) })
			})
			t.Run("two servers", func(t *testing.T) {
				storagetest.Shared(t, func(t *testing.T) (first, second storage.Store) {
					bucket := newBucket(t)
					return open(t, bucket), open(t, bucket)
				})
			})
			t.Run("prefix", func(t *testing.T) {
				shared := newBucket(t)
				put(t, open(t, shared), "prod-2/instance/a", "prodigy", "z")
				storagetest.Run(t, func(t *testing.T) storage.Store { return open(t, with(shared, "prefix", "prod/"+rand.Text())) })
			})
			t.Run("a missing bucket is not absence", func(t *testing.T) { missingBucket(t, newBucket(t)) })
			t.Run("odd keys", func(t *testing.T) { oddKeys(t, open(t, with(newBucket(t), "prefix", "a/b"))) })
			t.Run("records", func(t *testing.T) { testRecords(t, newBucket(t)) })
			t.Run("garbage collection", func(t *testing.T) { collecting(t, newBucket(t)) })
		})
	}
}

func open(t *testing.T, u string) storage.Store {
	t.Helper()
	s, err := store.Open(t.Context(), u)
	require.NoError(t, err)
	return s
}

func with(rawURL, param, value string) string {
	u, _ := url.Parse(rawURL)
	q := u.Query()
	q.Set(param, value)
	u.RawQuery = q.Encode()
	return u.String()
}

func put(t *testing.T, s storage.Store, keys ...string) {
	t.Helper()
	var wg sync.WaitGroup
	for part := range slices.Chunk(keys, len(keys)/32+1) {
		wg.Go(func() {
			for _, key := range part {
				if _, err := s.PutIfAbsent(t.Context(), key, []byte(key)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func list(t *testing.T, s storage.Store, prefix, after string) []string {
	t.Helper()
	keys := []string{}
	for e, err := range s.List(t.Context(), prefix, after) {
		require.NoError(t, err)
		keys = append(keys, e.Key)
	}
	return keys
}

func instanceID(t *testing.T, i int) nstance.InstanceID {
	t.Helper()
	id, err := nstance.NewInstanceID("web", time.UnixMilli(int64(i)))
	require.NoError(t, err)
	return id
}

func missingBucket(t *testing.T, bucketURL string) {
	u, err := url.Parse(bucketURL)
	require.NoError(t, err)
	u.Host += "-gone"
	s := open(t, u.String())
	_, err = s.Get(t.Context(), "a")
	require.ErrorIs(t, err, nstance.Unavailable)
	_, err = s.PutIfAbsent(t.Context(), "a", nil)
	require.ErrorIs(t, err, nstance.Unavailable)
	_, err = s.PutIfMatch(t.Context(), "a", nil, "1")
	require.ErrorIs(t, err, nstance.Unavailable)
	require.ErrorIs(t, s.DeleteIfMatch(t.Context(), "a", "1"), nstance.Unavailable)
	for _, err = range s.List(t.Context(), "", "") {
	}
	require.ErrorIs(t, err, nstance.Unavailable)
	require.ErrorIs(t, storage.Probe(t.Context(), s), nstance.Unavailable)
}

// oddKeys uses keys that libraries rewrite.
func oddKeys(t *testing.T, s storage.Store) {
	keys := []string{"a../b", "a../c", "b__0x2f__c", "c...", "d/__0x41__"}
	put(t, s, keys...)
	require.Equal(t, keys, list(t, s, "", ""))
	require.Equal(t, keys[:2], list(t, s, "a../", ""))
	for _, key := range keys {
		obj, err := s.Get(t.Context(), key)
		require.NoError(t, err, key)
		require.Equal(t, key, string(obj.Data))
		require.NoError(t, s.DeleteIfMatch(t.Context(), key, obj.Version))
	}
	require.Empty(t, list(t, s, "", ""))
}

// testRecords lets two writers, each with a store of its own, count in the same
// records and the same document.
func testRecords(t *testing.T, bucketURL string) {
	const shard, ids, each = "eu1a", 4, 10
	var made []nstance.InstanceID
	for i := range ids {
		made = append(made, instanceID(t, i))
	}
	maker := records.New(open(t, bucketURL), shard, nil)
	for i := range ids {
		_, err := maker.Create(t.Context(), records.Instance{ID: made[i], Tenant: "default", Group: "web"})
		require.NoError(t, err)
	}
	type counter struct {
		records.Header
		N int
	}
	var counted atomic.Int32
	var wg sync.WaitGroup
	for range 2 {
		s := open(t, bucketURL)
		r, doc := records.New(s, shard, nil), records.NewDoc[counter](s, layout.StateKey(shard), nil)
		_, problems, err := r.Load(t.Context())
		require.NoError(t, err)
		require.Empty(t, problems)
		wg.Go(func() {
			for n := range ids * each {
				err := insist(func() error {
					_, err := r.Update(t.Context(), made[n%ids], func(rec *records.Instance) error { rec.Generation++; return nil })
					return err
				})
				if err == nil {
					err = insist(func() error {
						_, err := doc.Update(t.Context(), func(c *counter) error { c.N++; return nil })
						return err
					})
				}
				if err != nil {
					t.Error(err)
					return
				}
				counted.Add(1)
			}
		})
	}
	wg.Wait()
	fresh := records.New(open(t, bucketURL), shard, nil)
	all, problems, err := fresh.Load(t.Context())
	require.NoError(t, err)
	require.Empty(t, problems)
	require.Len(t, all, ids)
	for _, rec := range all {
		require.EqualValues(t, 2*each, rec.Generation, "%s lost an update", rec.ID)
		require.NoError(t, fresh.Delete(t.Context(), rec.ID))
	}
	held, err := records.NewDoc[counter](open(t, bucketURL), layout.StateKey(shard), nil).Load(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, counted.Load(), held.N)
	require.Empty(t, list(t, open(t, bucketURL), layout.InstancePrefix(shard), ""))
}

// insist repeats an operation that another writer prevented, which may happen several
// times.
func insist(update func() error) error {
	for {
		if err := update(); !errors.Is(err, nstance.Conflict) {
			return err
		}
	}
}

var buckets atomic.Int32

func bucketName() string { return fmt.Sprintf("nstance-%d", buckets.Add(1)) }

func versitygw(t *testing.T) func(*testing.T) string {
	s3 := realserver.NewS3(t)
	return func(t *testing.T) string { return realserver.URL(s3.Bucket(t), s3.Endpoint) }
}

func fakeGCS(t *testing.T) func(*testing.T) string {
	addr := realserver.Begin(t, "fake-gcs-server", func(host, port string) []string {
		return []string{"-backend", "filesystem", "-filesystem-root", t.TempDir(), "-scheme", "http", "-host", host, "-port", port, "-public-host", host + ":" + port, "-log-level", "error"}
	})
	t.Setenv("STORAGE_EMULATOR_HOST", addr)
	return func(t *testing.T) string {
		name := bucketName()
		resp, err := http.Post("http://"+addr+"/storage/v1/b?project=test", "application/json", strings.NewReader(`{"name":"`+name+`"}`))
		require.NoError(t, err)
		defer resp.Body.Close()
		require.Equal(t, http.StatusOK, resp.StatusCode)
		return "gs://" + name
	}
}

// azuriteKey is the key of the emulator's account, the same everywhere.
// https://learn.microsoft.com/en-us/azure/storage/common/storage-connect-azurite
const azuriteKey = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

func azurite(t *testing.T) func(*testing.T) string {
	addr := realserver.Begin(t, "azurite-blob", func(host, port string) []string {
		return []string{"--blobHost", host, "--blobPort", port, "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent"}
	})
	t.Setenv("AZURE_STORAGE_ACCOUNT", "devstoreaccount1")
	t.Setenv("AZURE_STORAGE_KEY", azuriteKey)
	return func(t *testing.T) string {
		name := bucketName()
		client, err := azureblob.NewDefaultClient(azureblob.ServiceURL("http://"+addr+"/devstoreaccount1"), azureblob.ContainerName(name))
		require.NoError(t, err)
		_, err = client.Create(t.Context(), nil)
		require.NoError(t, err)
		return "azblob://" + name + "?protocol=http&domain=" + url.QueryEscape(addr)
	}
}

// collecting collects garbage and uses an object again.
func collecting(t *testing.T, bucketURL string) {
	var elapsed atomic.Int64
	leader := func() *records.Records {
		return records.New(open(t, bucketURL), "eu1", &records.Options{Elapsed: func() time.Duration { return time.Duration(elapsed.Load()) }})
	}
	var digests []string
	for i := range 12 {
		digest, err := leader().PutDefinition(t.Context(), nstance.Definition{Kind: "web", Vars: map[string]string{"n": strconv.Itoa(i)}})
		require.NoError(t, err)
		digests = append(digests, digest)
	}
	recs := leader()
	name := func(i int) {
		_, err := recs.Definition(t.Context(), digests[i])
		require.NoError(t, err)
		_, err = recs.Create(t.Context(), records.Instance{ID: instanceID(t, i), Tenant: "default", Group: "web", Definition: digests[i]})
		require.NoError(t, err)
	}
	name(0)
	for range 3 {
		_, err := recs.CollectGarbage(t.Context())
		require.NoError(t, err)
		elapsed.Add(int64(time.Hour))
		if elapsed.Load() == int64(time.Hour) {
			name(1) // an hour after it was put
		}
	}
	var left []string
	for _, e := range list(t, open(t, bucketURL), layout.DefinitionPrefix("eu1"), "") {
		left = append(left, strings.TrimPrefix(e, layout.DefinitionPrefix("eu1")))
	}
	require.ElementsMatch(t, digests[:2], left)
	for i := range 2 {
		require.NoError(t, recs.Delete(t.Context(), instanceID(t, i)))
	}
}
