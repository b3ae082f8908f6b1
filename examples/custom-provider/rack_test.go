package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/providertest"
)

// TestProvider is all that the contract takes.
func TestProvider(t *testing.T) {
	providertest.Run(t, func(t *testing.T) providertest.Subject {
		rack, err := OpenRack(t.TempDir())
		require.NoError(t, err)
		return providertest.Subject{
			Provider: rack,
			UserData: func(_ context.Context, m nstance.Machine) ([]byte, error) {
				doc, err := rack.read(m.ID)
				return doc.UserData, err
			},
			BadArgs: map[string]json.RawMessage{"unit": json.RawMessage(`{"unit": "top"}`)},
		}
	})
}

func TestUnreadableMachine(t *testing.T) {
	rack, err := OpenRack(t.TempDir())
	require.NoError(t, err)
	spec, err := newSpec(1)
	require.NoError(t, err)
	m, err := rack.Create(t.Context(), spec)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(rack.dir, string(m.ID)+".json"), []byte("{"), 0o600))

	t.Run("is not absent", func(t *testing.T) {
		_, err := rack.Get(t.Context(), m.ID)
		require.ErrorIs(t, err, nstance.Internal)
	})
	t.Run("ends a listing with an error", func(t *testing.T) {
		var last error
		for _, last = range rack.List(t.Context(), us) {
		}
		require.ErrorIs(t, last, nstance.Internal)
	})
	t.Run("is not deleted", func(t *testing.T) {
		require.ErrorIs(t, rack.Delete(t.Context(), m), nstance.Internal)
	})
}

func Example() {
	dir, err := os.MkdirTemp("", "nstance-rack-")
	if err != nil {
		return
	}
	defer os.RemoveAll(dir)
	if err := run(context.Background(), dir, os.Stdout); err != nil {
		return
	}
	// Output:
	// unit 1: running; asked again, the same machine: true
	// unit 2: running; asked again, the same machine: true
	// unit 3: running; asked again, the same machine: true
	// a misspelt argument: args.unti: no such argument (did you mean "unit"?)
	// another tenant deletes unit 1: conflict
	// unit 1 is gone, 2 machines are left
	// create: ok, ok, ok, ok, ok, ok, invalid
	// delete: conflict, ok, not_found
	// list: ok
}
