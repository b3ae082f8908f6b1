package agent // tests the unexported listen

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestListen(t *testing.T) {
	t.Parallel()
	t.Run("without a host it is loopback", func(t *testing.T) {
		ln, err := listen(t.Context(), ":0")
		require.NoError(t, err)
		defer ln.Close()
		require.True(t, ln.Addr().(*net.TCPAddr).IP.IsLoopback())
	})
	t.Run("with a host it is that host", func(t *testing.T) {
		ln, err := listen(t.Context(), "0.0.0.0:0")
		require.NoError(t, err)
		defer ln.Close()
		require.True(t, ln.Addr().(*net.TCPAddr).IP.IsUnspecified())
	})
}
