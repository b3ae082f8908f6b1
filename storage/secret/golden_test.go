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

// The golden file holds a sealed object and its key, so that the sealed form does not
// change by accident. The key is public.
const golden = "testdata/sealed.golden.json"

var update = flag.Bool("update", false, "write "+golden+" anew")

// envelope is one sealed object.
type envelope struct {
	Key    string `json:"key"` // as ParseKeys reads it
	ID     string `json:"id"`  // of the key
	Name   string `json:"name"`
	Plain  string `json:"plain"`
	Sealed []byte `json:"sealed"`
}

func writeGolden(t *testing.T) {
	key := secret.NewKey()
	e := envelope{Key: key.Encode(), ID: key.ID(), Name: "secret/identity-ca.key", Plain: "the private key of an authority"}
	var err error
	e.Sealed, err = box(t, key).Seal(e.Name, []byte(e.Plain))
	require.NoError(t, err)
	data, err := json.MarshalIndent(e, "", " ")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(golden, append(data, '\n'), 0o644))
}

func TestGolden(t *testing.T) {
	if *update {
		writeGolden(t)
	}
	data, err := os.ReadFile(golden)
	require.NoError(t, err)
	var e envelope
	require.NoError(t, json.Unmarshal(data, &e))
	keys, err := secret.ParseKeys(e.Key)
	require.NoError(t, err)
	key := keys[0]
	require.Equal(t, e.ID, key.ID(), "keys keep their names")
	got, err := box(t, secret.NewKey(), key).Open(e.Name, e.Sealed)
	require.NoError(t, err)
	require.Equal(t, e.Plain, string(got))
	require.False(t, box(t, key).Stale(e.Sealed), "it is not sealed again without a reason")
	_, err = box(t, key).Open(e.Name+"x", e.Sealed)
	require.ErrorIs(t, err, nstance.Denied)
}
