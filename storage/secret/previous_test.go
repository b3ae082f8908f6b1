package secret_test

import (
	"encoding/json"
	"flag"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage/secret"
)

// The file holds what version 0.1 has sealed, and the key. It is never written
// again. The key guards nothing.
const previous = "testdata/v0.1.json"

var makePrevious = flag.Bool("make-previous", false, "write "+previous+", which only its own version may")

// An envelope is one sealed object.
type envelope struct {
	Key    string `json:"key"` // as ParseKey reads it
	ID     string `json:"id"`  // of the key
	Name   string `json:"name"`
	Plain  string `json:"plain"`
	Sealed []byte `json:"sealed"`
	Bare   []byte `json:"bare"` // the same by a plain box
}

func TestMakePrevious(t *testing.T) {
	if !*makePrevious {
		return // it stands, and must not change
	}
	key := secret.NewKey()
	e := envelope{Key: key.Encode(), ID: key.ID(), Name: "secret/identity-ca.key", Plain: "the private key of an authority"}
	var err error
	e.Sealed, err = box(t, key).Seal(e.Name, []byte(e.Plain))
	require.NoError(t, err)
	e.Bare, err = secret.Plain().Seal(e.Name, []byte(e.Plain))
	require.NoError(t, err)
	data, err := json.MarshalIndent(e, "", " ")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(previous, append(data, '\n'), 0o644))
}

func TestPrevious(t *testing.T) {
	data, err := os.ReadFile(previous)
	require.NoError(t, err)
	var e envelope
	require.NoError(t, json.Unmarshal(data, &e))
	key, err := secret.ParseKey(e.Key)
	require.NoError(t, err)
	require.Equal(t, e.ID, key.ID(), "keys keep their names")
	got, err := box(t, secret.NewKey(), key).Open(e.Name, e.Sealed)
	require.NoError(t, err)
	require.Equal(t, e.Plain, string(got))
	require.False(t, box(t, key).Stale(e.Sealed), "and nobody seals it again for no reason")
	got, err = secret.Plain().Open(e.Name, e.Bare)
	require.NoError(t, err)
	require.Equal(t, e.Plain, string(got))
	_, err = box(t, key).Open(e.Name+"x", e.Sealed)
	require.ErrorIs(t, err, nstance.Denied)
}
