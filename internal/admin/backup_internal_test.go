package admin

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
)

// TestWriteNew: a name belongs to the first that writes to it, and nothing is left of what failed.
func TestWriteNew(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "backup")
	require.NoError(t, writeNew(path, func(w io.Writer) error {
		err := writeNew(path, func(io.Writer) error { return nil })
		require.ErrorIs(t, err, nstance.Conflict, "another, meanwhile")
		_, err = io.WriteString(w, "first")
		return err
	}))
	require.ErrorIs(t, writeNew(path, nil), nstance.Conflict)
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "first", string(data))

	failed := errors.New("the disk is full")
	require.ErrorIs(t, writeNew(filepath.Join(dir, "other"), func(io.Writer) error { return failed }), failed)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1)
}
