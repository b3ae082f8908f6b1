package vault_test

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/vault"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/secret"
	"github.com/nstance-go/nstance/storage/storagetest"
)

func newBox(t testing.TB, keys ...secret.Key) *secret.Box {
	box, err := secret.NewBox(keys...)
	require.NoError(t, err)
	return box
}

func stored(t testing.TB, s storage.Store, key string) string {
	obj, err := s.Get(t.Context(), key)
	require.NoError(t, err)
	return string(obj.Data)
}

func TestLayout(t *testing.T) {
	store := storage.NewMemory()
	keys, err := keyring.Bootstrap(t.Context(), vault.New(store, newBox(t, secret.NewKey())), time.Now())
	require.NoError(t, err)

	t.Run("certificates are readable", func(t *testing.T) {
		require.Equal(t, string(keys.Identity.CertPEM()), stored(t, store, "ca/identity-ca.crt"))
		require.Equal(t, string(keys.Workload.CertPEM()), stored(t, store, "ca/workload-ca.crt"))
	})
	t.Run("the installation's ID is readable", func(t *testing.T) {
		require.Equal(t, keys.Installation, stored(t, store, "secret/installation"))
	})
	t.Run("keys are sealed", func(t *testing.T) {
		for _, key := range []string{"secret/identity-ca.key", "secret/workload-ca.key", "secret/nonce.key"} {
			require.NotContains(t, stored(t, store, key), "PRIVATE KEY")
		}
	})
	t.Run("nothing else is stored", func(t *testing.T) {
		n := 0
		for _, err := range store.List(t.Context(), "", "") {
			require.NoError(t, err)
			n++
		}
		require.Equal(t, 7, n)
	})
}

func TestTwoVaultsSeeTheSameKeys(t *testing.T) {
	key := secret.NewKey()
	for name, boxes := range map[string][2]*secret.Box{
		"sealed":                {newBox(t, key), newBox(t, key)},
		"after the key changed": {newBox(t, key), newBox(t, secret.NewKey(), key)},
		"plaintext, by choice":  {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			store := storage.NewMemory()
			first, err := keyring.Bootstrap(t.Context(), vault.New(store, boxes[0]), time.Now())
			require.NoError(t, err)
			second, err := keyring.Bootstrap(t.Context(), vault.New(store, boxes[1]), time.Now())
			require.NoError(t, err)
			require.Equal(t, first.Nonces.KeyID(), second.Nonces.KeyID())
			require.Equal(t, first.Identity.Certificate(), second.Identity.Certificate())
			require.Equal(t, first.Installation, second.Installation)
		})
	}
}

func TestGetRefuses(t *testing.T) {
	const name = keyring.VaultNonceKey
	key := secret.NewKey()
	for what, tc := range map[string]struct {
		put, get *secret.Box
		code     nstance.Code
		says     string
	}{
		"another key":              {newBox(t, key), newBox(t, secret.NewKey()), nstance.Denied, key.ID()},
		"sealed, without any key":  {newBox(t, key), nil, nstance.Denied, key.ID()},
		"bare, though it has keys": {nil, newBox(t, key), nstance.Invalid, "not a sealed secret"},
	} {
		t.Run(what, func(t *testing.T) {
			store := storage.NewMemory()
			require.NoError(t, vault.New(store, tc.put).PutIfAbsent(t.Context(), name, []byte("secret")))
			_, err := vault.New(store, tc.get).Get(t.Context(), name)
			require.ErrorIs(t, err, tc.code)
			require.ErrorContains(t, err, tc.says)
			require.ErrorContains(t, err, "secret nonce.key")
		})
	}
	t.Run("what is not there is NotFound", func(t *testing.T) {
		_, err := vault.New(storage.NewMemory(), newBox(t, key)).Get(t.Context(), name)
		require.ErrorIs(t, err, nstance.NotFound)
	})
	t.Run("what is there is not written again", func(t *testing.T) {
		v := vault.New(storage.NewMemory(), newBox(t, key))
		require.NoError(t, v.PutIfAbsent(t.Context(), name, []byte("a")))
		require.ErrorIs(t, v.PutIfAbsent(t.Context(), name, []byte("b")), nstance.Conflict)
	})
}

func Example() {
	box, err := secret.NewBox(secret.NewKey())
	if err != nil {
		fmt.Println(err)
		return
	}
	store := storage.NewMemory() // a server would open a directory or a bucket
	keys, err := keyring.Bootstrap(context.Background(), vault.New(store, box), time.Now())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(keys.Identity.Name(), vault.Key(keyring.VaultCert(keyring.Identity)), vault.Key(keyring.VaultNonceKey))
	// Output: identity ca/identity-ca.crt secret/nonce.key
}

func TestDestroy(t *testing.T) {
	for name, box := range map[string]*secret.Box{"sealed": newBox(t, secret.NewKey()), "bare": nil} {
		t.Run(name, func(t *testing.T) {
			store := storage.NewMemory()
			v := vault.New(store, box)
			require.NoError(t, v.PutIfAbsent(t.Context(), "nonce.2.key", []byte("PRIVATE")))
			require.NoError(t, v.Destroy(t.Context(), "nonce.2.key"))
			require.NotContains(t, stored(t, store, "secret/nonce.2.key"), "PRIVATE")
			before, err := store.Get(t.Context(), "secret/nonce.2.key")
			require.NoError(t, err)
			require.NoError(t, v.Destroy(t.Context(), "nonce.2.key"))
			after, err := store.Get(t.Context(), "secret/nonce.2.key")
			require.NoError(t, err)
			require.Equal(t, before.Version, after.Version, "once is enough")
			require.ErrorIs(t, v.PutIfAbsent(t.Context(), "nonce.2.key", []byte("PRIVATE")), nstance.Conflict, "the name is used up")
			require.NoError(t, v.Destroy(t.Context(), "nonce.3.key"), "of what never was, too")
			require.ErrorIs(t, v.PutIfAbsent(t.Context(), "nonce.3.key", []byte("PRIVATE")), nstance.Conflict)
		})
	}
	t.Run("whose answer is lost is found", func(t *testing.T) {
		faulty := storagetest.NewFaulty(storage.NewMemory())
		v := vault.New(faulty, newBox(t, secret.NewKey()))
		require.NoError(t, v.PutIfAbsent(t.Context(), "nonce.2.key", []byte("PRIVATE")))
		faulty.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Mode: storagetest.LoseAnswer})
		require.NoError(t, v.Destroy(t.Context(), "nonce.2.key"))
	})
}

// The whole of a rotation over a store, as a server does it.
func TestCatalogueInStorage(t *testing.T) {
	store, now := storage.NewMemory(), time.Now()
	box := newBox(t, secret.NewKey())
	clock := func() time.Time { return now }
	ring, err := keyring.OpenKeyring(t.Context(), vault.New(store, box), clock)
	require.NoError(t, err)
	other, err := keyring.OpenKeyring(t.Context(), vault.New(store, box), clock)
	require.NoError(t, err)
	for _, step := range []keyring.Step{keyring.StepBegin, keyring.StepActivate, keyring.StepFinish} {
		for _, r := range []*keyring.Keyring{ring, other} { // each step by both
			_, err := r.Rotate(t.Context(), keyring.Rotation{Set: keyring.Identity, Step: step})
			require.NoError(t, err)
		}
		require.Equal(t, ring.Set(keyring.Identity), other.Set(keyring.Identity))
		now = now.Add(keyring.Settle)
	}
	require.Contains(t, stored(t, store, "lease/cluster.json"), `"format":"1.0"`)
	require.NotEqual(t, stored(t, store, "ca/identity-ca.crt"), stored(t, store, "ca/identity-ca.2.crt"))
	require.Equal(t, string(ring.Keys().Identity.CertPEM()), stored(t, store, "ca/identity-ca.2.crt"))
	require.Equal(t, 2, ring.Set(keyring.Identity).Last)
	_, err = keyring.Bootstrap(t.Context(), vault.New(store, box), now)
	require.NoError(t, err)
}

// TestResealBootstrapData: bootstrap data lies outside of the secrets' folder.
func TestResealBootstrapData(t *testing.T) {
	store, former, next := storage.NewMemory(), secret.NewKey(), secret.NewKey()
	key := layout.BootstrapKey("a", strings.Repeat("ab", 32))
	sealed, err := vault.New(store, newBox(t, former)).Seal(key, []byte("token"))
	require.NoError(t, err)
	_, err = store.PutIfAbsent(t.Context(), key, sealed)
	require.NoError(t, err)
	var done []vault.Sealing
	require.NoError(t, vault.Reseal(t.Context(), store, newBox(t, next, former), false, func(s vault.Sealing) { done = append(done, s) }))
	require.Equal(t, []vault.Sealing{{Name: key, Stale: true}}, done)
	obj, err := store.Get(t.Context(), key)
	require.NoError(t, err)
	data, err := vault.New(store, newBox(t, next)).Open(key, obj.Data)
	require.NoError(t, err)
	require.Equal(t, "token", string(data))
}

// TestOrderOfRotation: a key is stored before the catalogue names it, and destroyed after
// the catalogue is without it. Whatever fails between, the catalogue names no key that is
// not there.
func TestOrderOfRotation(t *testing.T) {
	for _, set := range []string{keyring.Identity, keyring.Workload, keyring.Nonces} {
		for _, ends := range [][]keyring.Step{{keyring.StepBegin, keyring.StepActivate, keyring.StepFinish}, {keyring.StepBegin, keyring.StepAbort}} {
			for _, fault := range []storagetest.Fault{
				{Op: storagetest.PutIfMatch, Prefix: layout.ClusterLeaseKey, Err: nstance.Denied},
				{Op: storagetest.PutIfMatch, Prefix: layout.ClusterLeaseKey, Mode: storagetest.LoseAnswer, Err: nstance.Ambiguous},
				{Op: storagetest.PutIfMatch, Prefix: "secret/", Err: nstance.Unavailable},
				{Op: storagetest.PutIfAbsent, Prefix: "secret/", Err: nstance.Unavailable},
			} {
				t.Run(fmt.Sprintln(set, ends[len(ends)-1], fault.Op, fault.Prefix, fault.Mode), func(t *testing.T) {
					store, now := storagetest.NewFaulty(storage.NewMemory()), time.Now()
					open := func() (*keyring.Keyring, error) {
						return keyring.OpenKeyring(t.Context(), vault.New(store, nil), func() time.Time { return now })
					}
					ring, err := open()
					require.NoError(t, err)
					for _, step := range ends {
						now = now.Add(keyring.Settle)
						store.Inject(fault)
						after, err := ring.Rotate(t.Context(), keyring.Rotation{Set: set, Step: step})
						store.ClearFaults()
						if fault.Op == storagetest.PutIfMatch && fault.Prefix == "secret/" && step == ends[len(ends)-1] {
							require.Error(t, err)
							require.Len(t, after.Keys, 1, "the step is done, only the old key is not destroyed")
						}
						other, err := open()
						require.NoError(t, err, "another server starts after %s", step)
						require.NotEmpty(t, other.Set(set).Keys)
						_, err = ring.Rotate(t.Context(), keyring.Rotation{Set: set, Step: step})
						require.NoError(t, err, "%s may be repeated", step)
					}
					require.Len(t, ring.Set(set).Keys, 1)
					require.Empty(t, ring.Set(set).Gone, "every private key that is not named is destroyed")
				})
			}
		}
	}
}

// TestResealBesideOthers: what another process does to a secret meanwhile is not undone, an answer
// that is lost is not an error, and what was interrupted is.
func TestResealBesideOthers(t *testing.T) {
	former, next, key := secret.NewKey(), secret.NewKey(), layout.SecretKey("db")
	boxes := newBox(t, next, former)
	for name, c := range map[string]struct {
		fault storagetest.Fault
		do    func(s storage.Store, obj storage.Object) error // of the other process
		want  []vault.Sealing
		plain string // afterwards; empty: there is none
	}{
		"nothing":            {want: []vault.Sealing{{Name: "db", Stale: true}}, plain: "old"},
		"the answer is lost": {fault: storagetest.Fault{Op: storagetest.PutIfMatch, Mode: storagetest.LoseAnswer, Err: nstance.Ambiguous}, want: []vault.Sealing{{Name: "db", Stale: true}}, plain: "old"},
		"it is replaced": {fault: storagetest.Fault{Op: storagetest.PutIfMatch, Pass: true}, do: func(s storage.Store, obj storage.Object) error {
			data, err := newBox(t, former).Seal("db", []byte("new"))
			if err == nil {
				_, err = s.PutIfMatch(t.Context(), key, data, obj.Version)
			}
			return err
		}, want: []vault.Sealing{{Name: "db", Stale: true}}, plain: "new"},
		"it is deleted": {fault: storagetest.Fault{Op: storagetest.Get, Pass: true}, do: func(s storage.Store, obj storage.Object) error {
			return s.DeleteIfMatch(t.Context(), key, obj.Version)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			store := storage.NewMemory()
			require.NoError(t, vault.New(store, newBox(t, former)).PutIfAbsent(t.Context(), "db", []byte("old")))
			faulty := storagetest.NewFaulty(store)
			c.fault.Prefix = key
			if c.do != nil {
				c.fault.Do = func() {
					obj, err := store.Get(t.Context(), key)
					if err == nil {
						err = c.do(store, obj)
					}
					if err != nil {
						t.Error(err)
					}
				}
			}
			if c.fault.Op != "" {
				faulty.Inject(c.fault)
			}
			var done []vault.Sealing
			require.NoError(t, vault.Reseal(t.Context(), faulty, boxes, false, func(s vault.Sealing) { done = append(done, s) }))
			require.Equal(t, c.want, done)
			data, err := vault.New(store, newBox(t, next)).Get(t.Context(), "db")
			if c.plain == "" {
				require.ErrorIs(t, err, nstance.NotFound)
				return
			}
			require.NoError(t, err, "the first key opens it")
			require.Equal(t, c.plain, string(data))
		})
	}
	store := storage.NewMemory()
	for _, name := range []string{"a", "b"} {
		require.NoError(t, vault.New(store, newBox(t, former)).PutIfAbsent(t.Context(), name, []byte("old")))
	}
	ctx, cancel := context.WithCancel(t.Context())
	reports := 0
	err := vault.Reseal(ctx, listedBefore{store}, boxes, false, func(vault.Sealing) { reports++; cancel() })
	require.ErrorIs(t, err, nstance.Unavailable)
	require.Equal(t, 1, reports, "what was not tried was not skipped")
}

// listedBefore is a store whose listing goes on after its context, as a page of a bucket's does.
type listedBefore struct{ storage.Store }

func (s listedBefore) List(ctx context.Context, prefix, after string) iter.Seq2[storage.Entry, error] {
	return s.Store.List(context.WithoutCancel(ctx), prefix, after)
}
