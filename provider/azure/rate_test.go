package azure_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/testcloud/arm"
)

// TestHundredCreates: with calls of 200 ms and Azure's own rates a hundred machines
// take as long as one, which is three calls for the interface and one for the
// machine. A list costs one call a page, and as many for the power states.
func TestHundredCreates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := bubble(t, &arm.Options{Throttle: true, Latency: 200 * time.Millisecond, PageSize: 25})
		start := time.Now()
		var wg sync.WaitGroup
		errs := make([]error, 100)
		for i := range errs {
			s := newSpec(t)
			wg.Go(func() { _, errs[i] = p.Create(t.Context(), s) })
		}
		wg.Wait()
		for _, err := range errs {
			require.NoError(t, err)
		}
		require.Equal(t, 4*200*time.Millisecond, time.Since(start))
		require.Len(t, c.Machines(), 100)

		n := 0
		for _, err := range p.List(t.Context(), newSpec(t).Owner) {
			require.NoError(t, err)
			n++
		}
		require.Equal(t, 100, n)
		require.Equal(t, 4, c.Faults.Calls()["VirtualMachinesClient.NewListPager"])
		require.Equal(t, 4, c.Faults.Calls()["VirtualMachinesClient.NewListAllPager"])
	})
}
