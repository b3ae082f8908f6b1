package azure_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/azure"
	"github.com/nstance-go/nstance/azure/armtest"
	"github.com/nstance-go/nstance/provider"
)

// TestHundredMachines: with calls of 200 ms and Azure's own rates a hundred machines
// take as long as one, which is three calls for the interface and one for the
// machine. A list costs one call a page, and as many for the power states.
func TestHundredMachines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := bubble(t, &armtest.Options{Throttle: true, Latency: 200 * time.Millisecond, PageSize: 25})
		kind := azure.Kind()
		client, err := provider.New(p, &provider.Options{Rate: kind.Rate, Burst: kind.Burst, MaxUserData: kind.MaxUserData})
		require.NoError(t, err)
		start := time.Now()
		errs := make(chan error, 100)
		for range cap(errs) {
			s := newSpec(t)
			ok, _ := client.Reserve(time.Now())
			require.True(t, ok, "the budget permits 100 at once")
			go func() {
				_, err := client.Create(t.Context(), s)
				errs <- err
			}()
		}
		for range cap(errs) {
			require.NoError(t, <-errs)
		}
		took := time.Since(start)
		t.Logf("100 machines took %s of virtual time", took)
		require.Equal(t, 4*200*time.Millisecond, took)
		require.Equal(t, 100, c.Faults.Calls()["VirtualMachinesClient.BeginCreateOrUpdate"])
		require.Len(t, c.Machines(), 100)

		require.Equal(t, 100, count(t, client, newSpec(t).Owner))
		require.Equal(t, 4, c.Faults.Calls()["VirtualMachinesClient.NewListPager"])
		require.Equal(t, 4, c.Faults.Calls()["VirtualMachinesClient.NewListAllPager"])
	})
}

func count(t *testing.T, p nstance.Provider, owner nstance.Owner) int {
	t.Helper()
	seen := map[nstance.InstanceID]bool{}
	for m, err := range p.List(t.Context(), owner) {
		require.NoError(t, err)
		seen[m.ID] = true
	}
	return len(seen)
}
