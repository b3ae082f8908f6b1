package sqlite_test

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/sqlite"
)

// Root may write everywhere, so this thread alone touches files as nobody.
func TestOpenInReadOnlyFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "locked")
	require.NoError(t, os.Mkdir(dir, 0o555))
	path := filepath.Join(dir, "sqlite.db")

	if os.Getuid() == 0 {
		for p := dir; p != os.TempDir() && p != "/"; p = filepath.Dir(p) {
			require.NoError(t, os.Chmod(p, 0o555))
		}
		t.Cleanup(func() { require.NoError(t, os.Chmod(filepath.Dir(dir), 0o755)) })
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		_, err := unix.SetfsuidRetUid(65534)
		require.NoError(t, err)
		defer func() { _, _ = unix.SetfsuidRetUid(0) }()
	}
	_, err := sqlite.Open(path, nil)
	require.ErrorIs(t, err, nstance.Denied)
	require.ErrorContains(t, err, path)
	require.ErrorContains(t, err, "may write")
}
