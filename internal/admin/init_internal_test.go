package admin

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/vault"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

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
