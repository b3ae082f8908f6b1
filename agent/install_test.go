package agent_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestNonceOutlivesAFailedInstallation: the certificate that the nonce was exchanged for
// cannot be written at first. The agent asks again with the same nonce, once it can.
func TestNonceOutlivesAFailedInstallation(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *testShard, m *machine) {
		obstacle := filepath.Join(m.path("v1"), "ca.pem", "in the way")
		require.NoError(t, os.MkdirAll(obstacle, 0o700))
		_, stop := m.start()
		advance(2 * time.Minute)
		require.Positive(t, s.countCalls("register"))
		require.NoFileExists(t, m.path("nonce.used"), "it is used only once its certificate is in place")
		require.NoError(t, os.RemoveAll(filepath.Dir(obstacle)))
		defer stop()
		s.awaitSession()
		require.FileExists(t, m.path("nonce.used"))
	})
}
