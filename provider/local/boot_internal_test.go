package local

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
)

// FuzzParse looks for accepted user data that writes outside its folder, or that fails
// with another code than Invalid.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"env": {"A": "b"}, "files": {"identity/nonce.jwt": "x"}}`))
	f.Add([]byte(`{"files": {"../x": "", "a/../../x": "", "a\\b": "", "\u0000": ""}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		data, err := parse(raw)
		if err != nil {
			require.Equal(t, nstance.Invalid, nstance.CodeOf(err))
			return
		}
		outer := t.TempDir()
		inner := filepath.Join(outer, "machine")
		require.NoError(t, os.Mkdir(inner, 0o700))
		_ = data.write(inner) // may fail: a name can be too long
		entries, err := os.ReadDir(outer)
		require.NoError(t, err)
		require.Len(t, entries, 1)
	})
}
