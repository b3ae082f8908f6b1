package registration_test

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/keyring"
)

// vault is a Vault in memory that can fail at any call.
type vault struct {
	mu      sync.Mutex
	objects map[string][]byte
	keys    keyring.Catalogue
	puts    int
	calls   int
	dieAt   int    // fail this call and all later ones; 0: never
	land    bool   // a failing write is stored
	failing string // reads of this object fail
}

func newVault() *vault { return &vault{objects: map[string][]byte{}} }

func (v *vault) begin() error {
	v.mu.Lock()
	if v.calls++; v.dieAt > 0 && v.calls >= v.dieAt {
		return nstance.Errorf(nstance.Ambiguous, "died")
	}
	return nil
}

func (v *vault) Get(_ context.Context, name string) ([]byte, error) {
	err := v.begin()
	defer v.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if name == v.failing {
		return nil, nstance.Errorf(nstance.Unavailable, "cannot be read")
	}
	data, ok := v.objects[name]
	if !ok {
		return nil, nstance.Errorf(nstance.NotFound, "no object")
	}
	return bytes.Clone(data), nil
}

func (v *vault) PutIfAbsent(_ context.Context, name string, data []byte) error {
	died := v.begin()
	defer v.mu.Unlock()
	if died != nil && (!v.land || v.calls > v.dieAt) {
		return died
	}
	if _, ok := v.objects[name]; ok {
		return nstance.Errorf(nstance.Conflict, "exists")
	}
	v.objects[name], v.puts = bytes.Clone(data), v.puts+1
	return died
}

// deletedKey is the object of a deleted key.
const deletedKey = "destroyed"

func (v *vault) Destroy(_ context.Context, name string) error {
	died := v.begin()
	defer v.mu.Unlock()
	if died == nil || v.land && v.calls == v.dieAt {
		v.objects[name] = []byte(deletedKey)
	}
	return died
}

func (v *vault) Catalogue(context.Context) (keyring.Catalogue, error) {
	err := v.begin()
	defer v.mu.Unlock()
	if err == nil && v.failing == "catalogue" {
		err = nstance.Errorf(nstance.Unavailable, "catalogue cannot be read")
	}
	if err != nil {
		return keyring.Catalogue{}, err
	}
	return v.keys, nil
}

// UpdateCatalogue is a conditional write: it is serialized with other writes.
func (v *vault) UpdateCatalogue(_ context.Context, fn func(*keyring.Catalogue) error) (keyring.Catalogue, error) {
	died := v.begin()
	defer v.mu.Unlock()
	if died != nil && (!v.land || v.calls > v.dieAt) {
		return keyring.Catalogue{}, died
	}
	next := v.keys
	if err := fn(&next); err != nil {
		return keyring.Catalogue{}, err
	}
	v.keys, v.puts = next, v.puts+1
	return next, died
}

// trust is what two servers must have in common.
func trust(t testing.TB, k *keyring.Keys) []string {
	token, err := k.Nonces.Mint("", operatorClaims(nstance.RoleAdmin, "0123456789abcdef", epoch))
	require.NoError(t, err)
	return []string{string(k.Identity.CertPEM()), string(k.Workload.CertPEM()), token, k.Installation}
}

func TestBootstrapCreatesEverythingOnce(t *testing.T) {
	v := newVault()
	first, err := keyring.Bootstrap(t.Context(), v, epoch)
	require.NoError(t, err)
	require.Equal(t, 7, v.puts)
	require.Len(t, first.Installation, 32)
	require.Equal(t, keyring.Identity, first.Identity.Name())
	require.Equal(t, keyring.Workload, first.Workload.Name())
	require.NotEqual(t, first.Identity.Issuer(), first.Workload.Issuer())

	again, err := keyring.Bootstrap(t.Context(), v, epoch.Add(time.Hour))
	require.NoError(t, err)
	require.Equal(t, trust(t, first), trust(t, again))
	require.Equal(t, 7, v.puts)

	other, err := keyring.Bootstrap(t.Context(), newVault(), epoch)
	require.NoError(t, err)
	require.NotEqual(t, first.Installation, other.Installation)
}

func TestBootstrapSurvivesCrashAtEveryCall(t *testing.T) {
	for name, land := range map[string]bool{"before the write": false, "after the write": true} {
		t.Run(name, func(t *testing.T) {
			died := 0
			for at := 1; ; at++ {
				v := newVault()
				v.dieAt, v.land = at, land
				if _, err := keyring.Bootstrap(t.Context(), v, epoch); err == nil {
					break
				}
				died++
				before := maps.Clone(v.objects)
				v.dieAt = 0
				keys, err := keyring.Bootstrap(t.Context(), v, epoch.Add(time.Minute))
				require.NoError(t, err)
				require.Len(t, v.objects, 6)
				for name, data := range before {
					require.Equal(t, data, v.objects[name], "what was made is kept")
				}
				again, err := keyring.Bootstrap(t.Context(), v, epoch)
				require.NoError(t, err)
				require.Equal(t, trust(t, keys), trust(t, again))
			}
			require.GreaterOrEqual(t, died, 18)
		})
	}
}

func TestBootstrapByEightServers(t *testing.T) {
	const servers = 8
	v := newVault()
	// All continue together after each of their first calls, so that every one of them finds
	// nothing and creates its own.
	var arrived sync.WaitGroup
	arrived.Add(servers)
	var results [servers]*keyring.Keys
	var errs [servers]error
	var wg sync.WaitGroup
	for i := range servers {
		first := sync.OnceFunc(func() { arrived.Done(); arrived.Wait() })
		wg.Go(func() {
			results[i], errs[i] = keyring.Bootstrap(t.Context(), &racingVault{vault: v, first: first}, epoch.Add(time.Duration(i)*time.Minute))
		})
	}
	wg.Wait()
	for i := range servers {
		require.NoError(t, errs[i])
		require.Equal(t, trust(t, results[0]), trust(t, results[i]))
	}
	require.Len(t, v.objects, 6)
	for name, set := range v.keys.Sets {
		require.Len(t, set.Keys, 1, name)
	}
}

// racingVault is one server's view of a shared vault. It waits for the others after it has
// seen that the first object is absent.
type racingVault struct {
	*vault
	first func()
}

func (r *racingVault) PutIfAbsent(ctx context.Context, name string, data []byte) error {
	r.first()
	return r.vault.PutIfAbsent(ctx, name, data)
}

func TestBootstrapRefuses(t *testing.T) {
	good := newVault()
	_, err := keyring.Bootstrap(t.Context(), good, epoch)
	require.NoError(t, err)
	other := newVault()
	_, err = keyring.Bootstrap(t.Context(), other, epoch)
	require.NoError(t, err)

	for name, tc := range map[string]struct {
		change func(map[string][]byte)
		says   string
	}{
		"a rotated key without the catalogue": {func(m map[string][]byte) { m["nonce.2.key"] = m["nonce.key"] }, "restore it"},
		"a certificate without its key":       {func(m map[string][]byte) { delete(m, "identity-ca.key") }, "backup"},
		"a certificate of another key":        {func(m map[string][]byte) { m["workload-ca.crt"] = other.objects["workload-ca.crt"] }, "another key"},
		"the other authority": {func(m map[string][]byte) {
			m["workload-ca.crt"], m["workload-ca.key"] = m["identity-ca.crt"], m["identity-ca.key"]
		}, "identity authority"},
		"a broken authority key": {func(m map[string][]byte) { m["identity-ca.key"] = []byte("x") }, "identity-ca.key"},
		"a broken certificate":   {func(m map[string][]byte) { m["identity-ca.crt"] = []byte("x") }, "identity-ca.crt"},
		"a broken nonce key":     {func(m map[string][]byte) { m["nonce.key"] = nil }, "nonce.key"},
		"a broken installation":  {func(m map[string][]byte) { m["installation"] = []byte("1") }, "installation"},
		"a key that is broken before it has a certificate": {func(m map[string][]byte) {
			delete(m, "identity-ca.crt")
			m["identity-ca.key"] = []byte("x")
		}, "identity-ca.key"},
	} {
		t.Run(name, func(t *testing.T) {
			v := newVault()
			v.objects = maps.Clone(good.objects) // as before there was a catalogue
			tc.change(v.objects)
			before := maps.Clone(v.objects)
			_, err := keyring.Bootstrap(t.Context(), v, epoch)
			require.ErrorIs(t, err, nstance.Invalid)
			require.ErrorContains(t, err, tc.says)
			require.Equal(t, before, v.objects, "nothing is made anew")
		})
	}
}

// An unreadable object is not an absent one.
func TestBootstrapCreatesNothingAfterReadError(t *testing.T) {
	good := newVault()
	_, err := keyring.Bootstrap(t.Context(), good, epoch)
	require.NoError(t, err)
	names := slices.Collect(maps.Keys(good.objects))
	for _, name := range append(names, "catalogue", "identity-ca.2.key", "workload-ca.2.key", "nonce.2.key") {
		t.Run(name, func(t *testing.T) {
			v := newVault()
			v.objects, v.failing = maps.Clone(good.objects), name
			if name == "identity-ca.crt" {
				delete(v.objects, "identity-ca.key") // must not be created again while its certification is unknown
			}
			before := maps.Clone(v.objects)
			_, err := keyring.Bootstrap(t.Context(), v, epoch)
			require.ErrorIs(t, err, nstance.Unavailable)
			require.ErrorContains(t, err, name)
			require.Equal(t, before, v.objects)
		})
	}
}

// A server that first starts while another one does, and is slow, keeps what that one has made
// of the catalogue.
func TestBootstrapKeepsARotationMeanwhile(t *testing.T) {
	v := &overtakenVault{vault: newVault()}
	v.before = func() {
		v.before = nil
		ring, err := keyring.OpenKeyring(t.Context(), v.vault, func() time.Time { return epoch })
		require.NoError(t, err)
		_, err = ring.Rotate(t.Context(), keyring.Rotation{Set: keyring.Identity, Step: keyring.StepBegin})
		require.NoError(t, err)
	}
	ring, err := keyring.OpenKeyring(t.Context(), v, func() time.Time { return epoch })
	require.NoError(t, err)
	require.Equal(t, "1:current 2:next ", phases(ring.Set(keyring.Identity)))
	require.Len(t, ring.Keys().Identity.Issuers(), 2)
}

// An overtakenVault has something happen before the next write of the catalogue.
type overtakenVault struct {
	*vault
	before func()
}

func (o *overtakenVault) UpdateCatalogue(ctx context.Context, fn func(*keyring.Catalogue) error) (keyring.Catalogue, error) {
	if o.before != nil {
		o.before()
	}
	return o.vault.UpdateCatalogue(ctx, fn)
}

// TestInstallation: what distinguishes clusters of one name is 32 lower-case hexadecimal digits,
// as it was first made.
func TestInstallation(t *testing.T) {
	good := newVault()
	_, err := keyring.Bootstrap(t.Context(), good, epoch)
	require.NoError(t, err)
	const id = "00112233445566778899aabbccddeeff"
	for stored, ok := range map[string]bool{
		id: true, id + "\n": true, strings.ToUpper(id): false, id[2:]: false, id + "00": false, id + "zz": false, "zz" + id[2:]: false, "": false,
	} {
		good.objects["installation"] = []byte(stored)
		keys, err := keyring.Bootstrap(t.Context(), good, epoch)
		if !ok {
			require.ErrorIs(t, err, nstance.Invalid, stored)
			continue
		}
		require.NoError(t, err, stored)
		require.Equal(t, id, keys.Installation)
	}
}

// A vault that loses what it acknowledged must not be taken for an empty one.
func TestBootstrapRefusesLossyVault(t *testing.T) {
	_, err := keyring.Bootstrap(t.Context(), lossyVault{}, epoch)
	require.ErrorIs(t, err, nstance.Unavailable)
	require.ErrorContains(t, err, "read back")
	_, err = keyring.Bootstrap(t.Context(), readOnlyVault{}, epoch)
	require.ErrorIs(t, err, nstance.Denied, "what it answered to the write")
}

type readOnlyVault struct{ lossyVault }

func (readOnlyVault) PutIfAbsent(context.Context, string, []byte) error {
	return nstance.Errorf(nstance.Denied, "no right to write")
}

type lossyVault struct{}

func (lossyVault) Get(context.Context, string) ([]byte, error) {
	return nil, nstance.Errorf(nstance.NotFound, "no object")
}
func (lossyVault) PutIfAbsent(context.Context, string, []byte) error { return nil }
func (lossyVault) Destroy(context.Context, string) error             { return nil }
func (lossyVault) Catalogue(context.Context) (keyring.Catalogue, error) {
	return keyring.Catalogue{}, nil
}
func (lossyVault) UpdateCatalogue(context.Context, func(*keyring.Catalogue) error) (keyring.Catalogue, error) {
	return keyring.Catalogue{}, nil
}
