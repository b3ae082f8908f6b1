package ports

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
)

// TestStoppedExpiry: once stop has returned, the end of the certificate ends nothing, also where
// it comes at that moment.
func TestStoppedExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := Expiry{Now: time.Now, Interval: time.Hour}
		for range 1000 {
			var ended atomic.Bool
			stop := e.On(nstance.Identity{NotAfter: time.Now().Add(time.Second)}, func(error) { ended.Store(true) })
			<-time.After(time.Second)
			stop()
			before := ended.Load()
			synctest.Wait()
			require.Equal(t, before, ended.Load())
		}
	})
}
