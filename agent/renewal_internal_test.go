package agent

import (
	"crypto/tls"
	"crypto/x509"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/test/wallclock"
)

// TestRenewalCountsSleep: the monotonic clock stands still while the machine is suspended,
// and the wall clock goes on. A wall clock that was set back postpones nothing.
func TestRenewalCountsSleep(t *testing.T) {
	t.Parallel()
	const life, slept = 3 * time.Hour, 90 * time.Minute
	received := wallclock.Ahead(0)
	id := &identity{pair: &tls.Certificate{Leaf: &x509.Certificate{NotBefore: received, NotAfter: received.Add(life)}}}
	p := &renewalSchedule{receivedAt: received}
	for name, c := range map[string]struct {
		ahead time.Duration // of the wall clock, by now
		wait  time.Duration
	}{
		"awake":              {0, life*2/3 - clockSlack},
		"slept":              {slept, life*2/3 - clockSlack - slept},
		"slept for too long": {life, life*2/3 - clockSlack - life},
		"set back":           {-slept, life*2/3 - clockSlack},
	} {
		now := wallclock.Ahead(c.ahead)
		require.InDelta(t, c.wait, p.due(id, now).Sub(now), float64(time.Second), name)
	}
}

// TestRenewalFailuresInARow: a renewal that succeeds ends the row.
func TestRenewalFailuresInARow(t *testing.T) {
	t.Parallel()
	p := &renewalSchedule{}
	for range 10 {
		p.recordFailure()
	}
	p.recordReceived()
	require.LessOrEqual(t, p.recordFailure(), 2*firstBackoff)
}
