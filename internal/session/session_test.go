package session_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/session"
)

// A server would be given these numbers as
// grpc.KeepaliveParams(session.Server()) and
// grpc.KeepaliveEnforcementPolicy(session.Enforcement()).
func Example() {
	c := session.Client()
	fmt.Println("a broken connection is found within", c.Time+c.Timeout)
	// Output: a broken connection is found within 14s
}

func TestBothEndsAgree(t *testing.T) {
	c, s, e := session.Client(), session.Server(), session.Enforcement()

	t.Run("a break is found in under 15 s by either end", func(t *testing.T) {
		require.Less(t, c.Time+c.Timeout, 15*time.Second)
		require.Less(t, s.Time+s.Timeout, 15*time.Second)
		require.Positive(t, s.Time, "gRPC takes 2 h for none, and 20 s for no timeout")
		require.Positive(t, s.Timeout)
	})
	t.Run("the server tolerates the client's pings with room to spare", func(t *testing.T) {
		require.LessOrEqual(t, 2*e.MinTime, c.Time)
		require.Equal(t, c.PermitWithoutStream, e.PermitWithoutStream)
	})
	t.Run("gRPC does not raise the client's interval", func(t *testing.T) {
		require.GreaterOrEqual(t, c.Time, 10*time.Second)
	})
}
