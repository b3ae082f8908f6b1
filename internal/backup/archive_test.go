package backup_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/backup"
	"github.com/nstance-go/nstance/internal/generation"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/internal/vault"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// An entry is one file of an archive.
type entry struct{ name, data string }

func entries(t *testing.T, file []byte) (out []entry) {
	t.Helper()
	zipped, err := gzip.NewReader(bytes.NewReader(file))
	require.NoError(t, err)
	for r := tar.NewReader(zipped); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		require.NoError(t, err)
		data, err := io.ReadAll(r)
		require.NoError(t, err)
		out = append(out, entry{h.Name, string(data)})
	}
}

func packed(t *testing.T, list []entry) []byte {
	t.Helper()
	var out bytes.Buffer
	zipped := gzip.NewWriter(&out)
	w := tar.NewWriter(zipped)
	for _, e := range list {
		require.NoError(t, w.WriteHeader(&tar.Header{Name: e.name, Size: int64(len(e.data)), Mode: 0o600}))
		_, err := io.WriteString(w, e.data)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	require.NoError(t, zipped.Close())
	return out.Bytes()
}

// fitting returns the entries with a manifest that fits them.
func fitting(t *testing.T, list []entry, change func(*backup.Manifest)) []entry {
	t.Helper()
	list = slices.DeleteFunc(list, func(e entry) bool { return e.name == "manifest.json" })
	m, sum := backup.Manifest{Format: 1, Cluster: "prod", Objects: len(list)}, sha256.New()
	for _, e := range list {
		m.Bytes += int64(len(e.data))
		fmt.Fprintf(sum, "%s %d\n%s", strings.TrimPrefix(e.name, "objects/"), len(e.data), e.data)
	}
	if m.SHA256 = hex.EncodeToString(sum.Sum(nil)); change != nil {
		change(&m)
	}
	data, err := json.Marshal(m)
	require.NoError(t, err)
	return append(list, entry{"manifest.json", string(data)})
}

// TestOrderOfArchive: what records name is read after them, so that an archive lacks nothing
// that is named in it. Its manifest is last.
func TestOrderOfArchive(t *testing.T) {
	s := cluster(t)
	put(t, s, layout.FetchedKey("a", "f1"), "#cloud-config")
	put(t, s, layout.BootstrapPrefix+"a/b1", "token")
	put(t, s, "probe/of-a-server", "x") // which it removes
	var last []string
	list := entries(t, archive(t, s))
	require.Equal(t, "objects/"+layout.ClusterLeaseKey, list[0].name)
	for _, e := range list[len(list)-4:] {
		last = append(last, e.name)
	}
	require.Equal(t, []string{"objects/definition/a/d1", "objects/fetched/a/f1", "objects/bootstrap/a/b1", "manifest.json"}, last)
	require.Len(t, list, len(contents(t, s)), "all but the probe, and the manifest")
}

// TestManyObjects: none of many is left out, but for one that is deleted meanwhile. One that
// cannot be read is not left out.
func TestManyObjects(t *testing.T) {
	s := cluster(t)
	for i := range 200 {
		put(t, s, layout.InstanceKey("a", "default", "web", nstance.InstanceID(fmt.Sprintf("web%03d", i))), `{"format":"1.0","epoch":1000009}`)
	}
	require.Len(t, entries(t, archive(t, s)), len(contents(t, s))+1)

	key := layout.InstanceKey("a", "default", "web", "web100")
	faulty := storagetest.NewFaulty(s)
	faulty.Inject(storagetest.Fault{Op: storagetest.Get, Prefix: key})
	_, err := backup.Write(t.Context(), faulty, &bytes.Buffer{}, time.Now)
	require.ErrorIs(t, err, nstance.Unavailable)
	faulty.Inject(storagetest.Fault{Op: storagetest.Get, Prefix: key, Pass: true, Do: func() {
		obj, err := s.Get(t.Context(), key)
		if err == nil {
			err = s.DeleteIfMatch(t.Context(), key, obj.Version)
		}
		if err != nil {
			t.Error(err)
		}
	}})
	m, err := backup.Write(t.Context(), faulty, &bytes.Buffer{}, time.Now)
	require.NoError(t, err)
	require.Equal(t, len(contents(t, s)), m.Objects)
}

// TestForgedArchive: an archive that can be read as a file, and is not what was written, is
// refused before anything is written.
func TestForgedArchive(t *testing.T) {
	whole := entries(t, archive(t, cluster(t)))
	_, err := backup.Restore(t.Context(), bytes.NewReader(packed(t, fitting(t, whole, nil))), storage.NewMemory(), backup.Options{})
	require.NoError(t, err, "the manifest of this test fits")
	at := slices.IndexFunc(whole, func(e entry) bool { return e.name == "objects/secret/tls" })
	for name, c := range map[string]struct {
		forge func(list []entry) []entry
		says  string
	}{
		"another content":    {func(l []entry) []entry { l[at].data = "SEALED"; return l }, "damaged"},
		"another key":        {func(l []entry) []entry { l[at].name = "objects/secret/tlx"; return l }, "damaged"},
		"one is missing":     {func(l []entry) []entry { return slices.Delete(l, at, at+1) }, "damaged"},
		"one is there twice": {func(l []entry) []entry { return fitting(t, append(l, l[at]), nil) }, "damaged"},
		"no manifest":        {func(l []entry) []entry { return l[:len(l)-1] }, "ends before its manifest"},
		"no keys":            {func(l []entry) []entry { return fitting(t, l[1:], nil) }, "no keys of a cluster"},
		"a path outside":     {func(l []entry) []entry { l[at].name = "objects/../tls"; return fitting(t, l, nil) }, "is no object"},
		"a file of its own":  {func(l []entry) []entry { l[at].name = "readme"; return fitting(t, l, nil) }, "is no object"},
		"a newer format":     {func(l []entry) []entry { return fitting(t, l, func(m *backup.Manifest) { m.Format = 2 }) }, "use a newer program"},
	} {
		t.Run(name, func(t *testing.T) {
			to := storage.NewMemory()
			_, err := backup.Restore(t.Context(), bytes.NewReader(packed(t, c.forge(slices.Clone(whole)))), to, backup.Options{})
			require.ErrorIs(t, err, nstance.Invalid)
			require.ErrorContains(t, err, c.says)
			require.Empty(t, contents(t, to))
		})
	}
}

// TestRestoreOverAnother: an interrupted restore is not finished with another archive, and
// what a server tries out in a storage is not in the way.
func TestRestoreOverAnother(t *testing.T) {
	whole := entries(t, archive(t, cluster(t)))
	file := packed(t, whole)
	other := slices.Clone(whole)
	other[slices.IndexFunc(other, func(e entry) bool { return e.name == "objects/secret/tls" })].data = "of another day"
	to := storage.NewMemory()
	put(t, to, "probe/of-a-server", "x")
	faulty := storagetest.NewFaulty(to)
	faulty.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Prefix: layout.ClusterLeaseKey})
	_, err := backup.Restore(t.Context(), bytes.NewReader(file), faulty, backup.Options{})
	require.ErrorIs(t, err, nstance.Unavailable)
	_, err = backup.Restore(t.Context(), bytes.NewReader(packed(t, fitting(t, other, nil))), to, backup.Options{})
	require.ErrorIs(t, err, nstance.Conflict)
	require.ErrorContains(t, err, "secret/tls")
	_, err = backup.Restore(t.Context(), bytes.NewReader(file), to, backup.Options{})
	require.NoError(t, err)
	before := contents(t, to)
	_, err = backup.Restore(t.Context(), bytes.NewReader(file), to, backup.Options{})
	require.ErrorIs(t, err, nstance.Conflict)
	require.Equal(t, before, contents(t, to), "servers may run by now")
}

// TestEpochsOfEveryRecord: the next term of a shard begins above the epoch of whatever its
// leaders have written, of which one record may be newer than its lease. The generation here is
// one that none comes upon by chance.
func TestEpochsOfEveryRecord(t *testing.T) {
	for _, key := range append(layout.ShardKeys("c"), layout.InstanceKey("c", "default", "web", "web1"), layout.LeaseKey("c")) {
		s := cluster(t)
		if key != layout.LeaseKey("c") {
			put(t, s, layout.LeaseKey("c"), `{"format":"1.0","epoch":3,"released":true}`)
		}
		data := `{"format":"1.0","epoch":9000000003,"released":true}`
		if strings.HasSuffix(key, ".gz") {
			data = compressed(t, data)
		}
		put(t, s, key, data)
		put(t, s, layout.InstanceKey("c", "default", "web", "web2"), `{"format":"1.0","epoch":4}`)
		to := located{storage.NewMemory(), "there"}
		_, err := backup.Restore(t.Context(), bytes.NewReader(archive(t, s)), to, backup.Options{})
		require.NoError(t, err)
		_, err = backup.Replace(t.Context(), s, backup.Options{})
		require.NoError(t, err)
		for _, restored := range []storage.Store{to, s} {
			l, err := records.ReadLease(t.Context(), restored, "c")
			require.NoError(t, err)
			require.Greater(t, generation.Of(l.Epoch), generation.Of(9000000003), key)
		}
	}
}

func compressed(t *testing.T, text string) string {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := io.WriteString(w, text)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return out.String()
}

// TestKeysChangedWhileReplacing: the catalogue of keys that another process writes meanwhile
// stays.
func TestKeysChangedWhileReplacing(t *testing.T) {
	s := cluster(t)
	faulty := storagetest.NewFaulty(s)
	faulty.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Prefix: layout.LeaseKey("a"), Pass: true, Do: func() {
		_, err := vault.New(s, nil).UpdateCatalogue(t.Context(), func(c *keyring.Catalogue) error { c.Cluster = "other"; return nil })
		if err != nil {
			t.Error(err)
		}
	}})
	_, err := backup.Replace(t.Context(), faulty, backup.Options{})
	require.ErrorIs(t, err, nstance.Conflict)
	c, err := vault.New(s, nil).Catalogue(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, "other", c.Cluster)
}
