package backup_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
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

// located is a store that says where it is.
type located struct {
	storage.Store
	at string
}

func (l located) Location() string { return l.at }

func put(t *testing.T, s storage.Store, key, data string) {
	t.Helper()
	_, err := s.PutIfAbsent(t.Context(), key, []byte(data))
	require.NoError(t, err)
}

// ofOperators is a secret of operators, whatever its name begins with.
const ofOperators = "secret/nonces.txt"

// cluster returns the storage of a cluster with shards a and b, of which a has been led.
func cluster(t *testing.T) storage.Store {
	t.Helper()
	s := located{storage.NewMemory(), "here"}
	ring, err := keyring.OpenKeyring(t.Context(), vault.New(s, nil), time.Now)
	require.NoError(t, err)
	require.NoError(t, ring.Claim(t.Context(), "prod", "here"))
	put(t, s, layout.LeaseKey("a"), `{"format":"1.0","epoch":7,"holder":"x","ttl_ms":6000,"released":true}`)
	put(t, s, layout.LeaseKey("b"), `{"format":"1.0","holder":"","ttl_ms":0,"released":true}`)
	put(t, s, layout.InstanceKey("a", "default", "web", "web1"), `{"format":"1.0","epoch":1000009}`)
	put(t, s, layout.DefinitionKey("a", "d1"), "{}")
	put(t, s, layout.ConfigKey("a"), "{}")
	put(t, s, layout.OperatorKey("default", "operator-1"), `{"format":"1.0"}`)
	put(t, s, layout.NonceKey("jti"), `{"format":"1.0"}`)
	put(t, s, "secret/tls", "sealed")
	put(t, s, ofOperators, "sealed")
	put(t, s, layout.InstanceKey("a", "default", "web", "web0"), "{") // which cannot be read
	return s
}

func archive(t *testing.T, s storage.Store) []byte {
	t.Helper()
	var out bytes.Buffer
	m, err := backup.Write(t.Context(), s, &out, time.Now)
	require.NoError(t, err)
	require.EqualValues(t, "prod", m.Cluster)
	require.Equal(t, "here", m.Location)
	return out.Bytes()
}

func contents(t *testing.T, s storage.Store) map[string]string {
	t.Helper()
	out := map[string]string{}
	for entry, err := range s.List(t.Context(), "", "") {
		require.NoError(t, err)
		obj, err := s.Get(t.Context(), entry.Key)
		require.NoError(t, err)
		out[entry.Key] = string(obj.Data)
	}
	return out
}

// writeID returns the mark of the last write of the catalogue of keys.
func writeID(t *testing.T, of map[string]string) string {
	t.Helper()
	var header records.Header
	require.NoError(t, json.Unmarshal([]byte(of[layout.ClusterLeaseKey]), &header))
	require.NotEmpty(t, header.WriteID)
	return header.WriteID
}

// requireRestored checks a storage at location there that was made of cluster.
func requireRestored(t *testing.T, s storage.Store, before map[string]string, kept bool) {
	t.Helper()
	var catalogue struct {
		Location, Cluster string
		Sets              map[string]any
	}
	after := contents(t, s)
	require.NoError(t, json.Unmarshal([]byte(after[layout.ClusterLeaseKey]), &catalogue))
	require.Equal(t, "there", catalogue.Location)
	require.Equal(t, "prod", catalogue.Cluster)
	require.NotEqual(t, writeID(t, before), writeID(t, after), "it is another write")
	for shard, generations := range map[nstance.ShardID]uint64{"a": 1, "b": 0} {
		l, err := records.ReadLease(t.Context(), s, shard)
		require.NoError(t, err)
		require.True(t, l.Released)
		require.Greater(t, generation.Of(l.Epoch), generations, "above every epoch of the shard")
	}
	for key, data := range before {
		switch {
		case strings.HasPrefix(key, "lease/"):
		case key == ofOperators:
			require.Equal(t, data, after[key], key)
		case strings.Contains(key, "nonce") || strings.HasPrefix(key, layout.OperatorPrefix):
			require.Equal(t, kept, after[key] == data, key)
			require.True(t, kept || after[key] == "", key)
		default:
			require.Equal(t, data, after[key], key)
		}
	}
	require.Equal(t, kept, catalogue.Sets[keyring.Nonces] != nil)
	require.NotNil(t, catalogue.Sets[keyring.Identity], "agents keep their identity")

	ring, err := keyring.OpenKeyring(t.Context(), vault.New(s, nil), time.Now)
	require.NoError(t, err, "a server starts")
	require.NoError(t, ring.Claim(t.Context(), "prod", "there"))
	require.Equal(t, kept, after[layout.SecretKey("nonce.key")] == contents(t, s)[layout.SecretKey("nonce.key")])
}

func TestRestore(t *testing.T) {
	for _, kept := range []bool{false, true} {
		from, to := cluster(t), located{storage.NewMemory(), "there"}
		file := bytes.NewReader(archive(t, from))
		done, err := backup.Restore(t.Context(), file, to, backup.Options{KeepGrants: kept, DryRun: true})
		require.NoError(t, err)
		require.Empty(t, contents(t, to))
		require.Len(t, done.Shards, 2)
		file.Reset(archive(t, from))
		done, err = backup.Restore(t.Context(), file, to, backup.Options{KeepGrants: kept})
		require.NoError(t, err)
		require.Equal(t, kept, done.Operators == 0)
		requireRestored(t, to, contents(t, from), kept)

		file.Reset(archive(t, from))
		for _, dry := range []bool{true, false} {
			_, err = backup.Restore(t.Context(), file, to, backup.Options{DryRun: dry})
			require.ErrorIs(t, err, nstance.Conflict, "it is not empty any more")
			file.Reset(archive(t, from))
		}
	}
}

func TestReplace(t *testing.T) {
	for _, kept := range []bool{false, true} {
		from := cluster(t)
		before := contents(t, from)
		copied := located{from.(located).Store, "there"}
		_, err := backup.Replace(t.Context(), copied, backup.Options{DryRun: true})
		require.NoError(t, err)
		require.Equal(t, before, contents(t, from))
		done, err := backup.Replace(t.Context(), copied, backup.Options{KeepGrants: kept})
		require.NoError(t, err)
		require.Equal(t, kept, done.Operators == 0)
		requireRestored(t, copied, before, kept)
	}
	_, err := backup.Replace(t.Context(), storage.NewMemory(), backup.Options{})
	require.ErrorIs(t, err, nstance.NotFound)
}

// TestReplaceIsRefusedWhileAServerLeads: nothing is changed under a leader.
func TestReplaceIsRefusedWhileAServerLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := cluster(t)
		renew := func(released bool) {
			obj, err := s.Get(t.Context(), layout.LeaseKey("a"))
			require.NoError(t, err)
			l, err := records.DecodeLease(obj)
			require.NoError(t, err)
			next := l.Next(8)
			next.TTLMillis, next.Released = 6000, released
			data, err := next.Encode()
			require.NoError(t, err)
			_, err = s.PutIfMatch(t.Context(), obj.Key, data, obj.Version)
			require.NoError(t, err)
		}
		renew(false)
		before := contents(t, s)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		led := make(chan struct{})
		go func() {
			defer close(led)
			for {
				select {
				case <-time.After(2 * time.Second):
					renew(false)
				case <-ctx.Done():
					return
				}
			}
		}()
		_, err := backup.Replace(t.Context(), s, backup.Options{})
		require.ErrorIs(t, err, nstance.Conflict)
		require.ErrorContains(t, err, "stop every server")
		cancel()
		<-led
		require.Len(t, contents(t, s), len(before))
		_, err = backup.Replace(t.Context(), s, backup.Options{})
		require.NoError(t, err, "the lease has run out")
	})
}

// TestRestoreGoesOn: a restore that failed at any write may be repeated. Until it has succeeded
// no server starts. A lost answer is no failure.
func TestRestoreGoesOn(t *testing.T) {
	from := cluster(t)
	file := archive(t, from)
	for n := 0; ; n++ {
		faulty := storagetest.NewFaulty(storage.NewMemory())
		to := located{faulty, "there"}
		faulty.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Skip: n})
		_, err := backup.Restore(t.Context(), bytes.NewReader(file), to, backup.Options{})
		if err == nil {
			require.Greater(t, n, 5)
			break
		}
		_, err = to.Get(t.Context(), layout.ClusterLeaseKey)
		require.ErrorIs(t, err, nstance.NotFound)
		_, err = backup.Restore(t.Context(), bytes.NewReader(file), to, backup.Options{})
		require.NoError(t, err)
		requireRestored(t, to, contents(t, from), false)
	}
	faulty := storagetest.NewFaulty(storage.NewMemory())
	faulty.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Prefix: "lease/cluster", Mode: storagetest.LoseAnswer})
	_, err := backup.Restore(t.Context(), bytes.NewReader(file), located{faulty, "there"}, backup.Options{})
	require.NoError(t, err)
}

// TestReplaceGoesOn: a replacement that failed at any call may be repeated. Until it has succeeded
// no server starts.
func TestReplaceGoesOn(t *testing.T) {
	for _, op := range []storagetest.Op{storagetest.Get, storagetest.List, storagetest.PutIfMatch, storagetest.Delete} {
		whole := storagetest.NewFaulty(cluster(t).(located).Store)
		_, err := backup.Replace(t.Context(), located{whole, "there"}, backup.Options{})
		require.NoError(t, err)
		require.Greater(t, whole.Count(op), 2)
		for n := range whole.Count(op) {
			from := cluster(t)
			before := contents(t, from)
			faulty := storagetest.NewFaulty(from.(located).Store)
			copied := located{faulty, "there"}
			faulty.Inject(storagetest.Fault{Op: op, Skip: n})
			_, err := backup.Replace(t.Context(), copied, backup.Options{})
			require.ErrorIs(t, err, nstance.Unavailable, "%s %d", op, n)
			ring, err := keyring.OpenKeyring(t.Context(), vault.New(from, nil), time.Now)
			if err == nil {
				err = ring.Claim(t.Context(), "prod", "there")
			}
			require.Error(t, err, "%s %d", op, n)
			_, err = backup.Replace(t.Context(), copied, backup.Options{})
			require.NoError(t, err)
			requireRestored(t, copied, before, false)
		}
	}
}

// TestReplaceBesideDeletes: what is deleted meanwhile needs no delete.
func TestReplaceBesideDeletes(t *testing.T) {
	for _, op := range []storagetest.Op{storagetest.Get, storagetest.Delete} {
		s, key := cluster(t), layout.OperatorKey("default", "operator-1")
		faulty := storagetest.NewFaulty(s.(located).Store)
		faulty.Inject(storagetest.Fault{Op: op, Prefix: key, Pass: true, Do: func() {
			obj, err := s.Get(t.Context(), key)
			if err == nil {
				err = s.DeleteIfMatch(t.Context(), key, obj.Version)
			}
			if err != nil {
				t.Error(err)
			}
		}})
		_, err := backup.Replace(t.Context(), located{faulty, "there"}, backup.Options{})
		require.NoError(t, err)
	}
}

// TestDamagedBackup: a file that is not whole is refused before anything is written.
func TestDamagedBackup(t *testing.T) {
	file := archive(t, cluster(t))
	to := storage.NewMemory()
	for name, bad := range map[string][]byte{
		"empty": nil, "cut off": file[:len(file)-30], "cut in half": file[:len(file)/2], "text": []byte("hello"),
		"changed": bytes.Replace(bytes.Clone(file), file[len(file)/2:len(file)/2+8], []byte("12345678"), 1),
	} {
		_, err := backup.Restore(t.Context(), bytes.NewReader(bad), to, backup.Options{})
		require.ErrorIs(t, err, nstance.Invalid, name)
		require.ErrorContains(t, err, "damaged", name)
		require.Empty(t, contents(t, to), name)
	}
}

// TestBackupDuringRotation: keys that do not belong together are not a backup.
func TestBackupDuringRotation(t *testing.T) {
	s := cluster(t)
	faulty := storagetest.NewFaulty(s)
	faulty.Inject(storagetest.Fault{Op: storagetest.Get, Prefix: "secret/", Pass: true, Do: func() {
		_, err := vault.New(s, nil).UpdateCatalogue(t.Context(), func(c *keyring.Catalogue) error { c.Cluster = "other"; return nil })
		require.NoError(t, err)
	}})
	_, err := backup.Write(t.Context(), faulty, &bytes.Buffer{}, time.Now)
	require.ErrorIs(t, err, nstance.Conflict)
	_, err = backup.Write(t.Context(), storage.NewMemory(), &bytes.Buffer{}, time.Now)
	require.ErrorIs(t, err, nstance.NotFound)
	_, err = backup.Write(t.Context(), s, failingWriter{}, time.Now)
	require.ErrorContains(t, err, "disk is full")
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errors.New("disk is full") }
