package agent

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
)

// TestCrashDuringClaim ends the setting aside before each of its changes, as a crash would:
// the next process uses nothing of the other instance.
func TestCrashDuringClaim(t *testing.T) {
	t.Parallel()
	crash := errors.New("crash")
	for n, crashed := 0, true; crashed; n++ {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			m := newCertificateIssuer(t)
			other := thisMachine
			for range 5 {
				require.NoError(t, m.v.install(m.credential()))
			}
			require.NoError(t, os.WriteFile(m.v.path(fileUsedNonce), nil, 0o600))
			id, err := nstance.NewInstanceID("tst", time.Now())
			require.NoError(t, err)
			left := n
			m.v.step = func() error {
				if left == 0 {
					return crash
				}
				left--
				return nil
			}
			_, err = m.v.claim(id, dirsOfFiles{keys: t.TempDir(), recv: t.TempDir()})
			m.v.step = nil
			crashed = err != nil
			found, err := m.v.claim(id, dirsOfFiles{keys: t.TempDir(), recv: t.TempDir()})
			require.NoError(t, err)
			if crashed {
				require.Equal(t, other, found.owner)
			}
			_, err = m.v.load()
			require.ErrorIs(t, err, nstance.NotFound)
			require.NoFileExists(t, m.v.path(fileUsedNonce))
			again, err := m.v.claim(id, dirsOfFiles{keys: t.TempDir(), recv: t.TempDir()})
			require.NoError(t, err)
			require.Nil(t, again)
		})
	}
}
