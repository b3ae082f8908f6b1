package operators

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/config"
)

// TestIdleTenantsAreForgotten: the names of tenants come from strangers. One that holds a watch
// open, or has spent of its budget, is remembered.
func TestIdleTenantsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &budgets{}
		ask := func(tenant nstance.TenantID) error {
			return b.request(config.Budget{Tenant: tenant, RequestsPerSecond: 1, RequestBurst: 1})
		}
		done, err := b.watch("watcher", 1, func() error { return nstance.Quota })
		require.NoError(t, err)
		for i := range maxIdleTenants - 2 {
			require.NoError(t, ask(nstance.TenantID(fmt.Sprint("idle", i))))
		}
		<-time.After(time.Second)
		require.NoError(t, ask("busy"))
		require.Len(t, b.of, maxIdleTenants)
		require.NoError(t, ask("one more"))
		require.Len(t, b.of, 3)
		require.ErrorIs(t, ask("busy"), nstance.Throttled)
		_, err = b.watch("watcher", 1, func() error { return nstance.Quota })
		require.ErrorIs(t, err, nstance.Quota)
		done()
		_, err = b.watch("watcher", 1, func() error { return nstance.Quota })
		require.NoError(t, err)
	})
}

// TestBudgetChanges: another rate, or another burst alone, is in force with the next request.
func TestBudgetChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &budgets{}
		allowed := func(rate float64, burst int) (n int) {
			for b.request(config.Budget{Tenant: "t", RequestsPerSecond: rate, RequestBurst: burst}) == nil {
				n++
			}
			return n
		}
		require.Equal(t, 2, allowed(1, 2))
		require.Equal(t, 5, allowed(1, 5))
		require.Zero(t, allowed(1, 5))
		require.Equal(t, 5, allowed(2, 5))
	})
}
