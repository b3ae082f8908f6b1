package admin

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/vault"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// careless is a store that writes whatever the condition.
type careless struct{ *storage.Memory }

func (c careless) PutIfAbsent(ctx context.Context, key string, data []byte) (storage.Version, error) {
	if obj, err := c.Get(ctx, key); err == nil {
		return c.PutIfMatch(ctx, key, data, obj.Version)
	}
	return c.Memory.PutIfAbsent(ctx, key, data)
}

// No key is made in a store in which another could take its place.
func TestInitRefusesAStoreWithoutConditions(t *testing.T) {
	t.Parallel()
	m := storage.NewMemory()
	_, err := makeKeys(t.Context(), careless{m}, nil, true)
	require.ErrorIs(t, err, nstance.Invalid)
	require.ErrorContains(t, err, "this storage cannot be used")
	for e, err := range m.List(t.Context(), "", "") {
		require.NoError(t, err)
		require.Contains(t, e.Key, "probe/")
	}
}

// A lost answer leaves open which process made an object: it is read back.
func TestLostAnswerToACreatedKey(t *testing.T) {
	t.Parallel()
	faulty := storagetest.NewFaulty(storage.NewMemory())
	faulty.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Mode: storagetest.LoseAnswer})
	d, err := makeKeys(t.Context(), faulty, nil, false)
	require.NoError(t, err)
	require.Len(t, d.made, 7)
	d, err = makeKeys(t.Context(), faulty, nil, false)
	require.NoError(t, err)
	require.Empty(t, d.made)
	require.Len(t, newStoredKeys(d.ring.Set), 3)
	require.Equal(t, string(keyring.PhaseCurrent), newStoredKeys(d.ring.Set)[0].Phase)
}

// An overtaken vault is one in which another process makes everything before one of
// the calls.
type overtaken struct {
	keyring.Vault
	calls int // before that one
	other func()
}

func (o *overtaken) call() {
	if o.calls--; o.calls == 0 {
		o.other()
	}
}

func (o *overtaken) Get(ctx context.Context, name string) ([]byte, error) {
	o.call()
	return o.Vault.Get(ctx, name)
}

func (o *overtaken) PutIfAbsent(ctx context.Context, name string, data []byte) error {
	o.call()
	return o.Vault.PutIfAbsent(ctx, name, data)
}

func (o *overtaken) Catalogue(ctx context.Context) (keyring.Catalogue, error) {
	o.call()
	return o.Vault.Catalogue(ctx)
}

func (o *overtaken) UpdateCatalogue(ctx context.Context, fn func(*keyring.Catalogue) error) (keyring.Catalogue, error) {
	o.call()
	return o.Vault.UpdateCatalogue(ctx, fn)
}

// Whenever another process makes the keys, what is made, or rehearsed, goes
// together.
func TestAnotherProcessMakesTheKeys(t *testing.T) {
	t.Parallel()
	for name, vaultOver := range map[string]func(*overtaken) keyring.Vault{
		"rehearsed": func(o *overtaken) keyring.Vault { return newDryVault(o) },
		"made":      func(o *overtaken) keyring.Vault { return o },
	} {
		t.Run(name, func(t *testing.T) {
			for at := 1; ; at++ {
				v := vault.New(storage.NewMemory(), nil)
				o := &overtaken{Vault: v, calls: at, other: func() {
					_, err := openRecording(t.Context(), v)
					require.NoError(t, err)
				}}
				d, err := openRecording(t.Context(), vaultOver(o))
				require.NoError(t, err, "before call %d", at)
				require.Len(t, newStoredKeys(d.ring.Set), 3)
				if o.calls > 0 {
					require.Greater(t, at, 7)
					return
				}
			}
		})
	}
}
