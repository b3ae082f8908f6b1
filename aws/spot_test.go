package aws_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/aws/ec2test"
	"github.com/nstance-go/nstance/provider/testcloud"
)

const cheap = "0.0100" // below the price of m5.large

func (w *world) cheapSpec() nstance.MachineSpec {
	s := w.spec()
	s.Market, s.MaxPrice = nstance.Spot, cheap
	return s
}

// fall has the price fall below what cheap specs permit.
func (w *world) fall() {
	for _, zone := range []string{"a", "b", "c"} {
		w.cloud.SetSpotPrice("m5.large", region+zone, "0.0090")
	}
}

// TestPriceTooLow: EC2 keeps a request open that its maximum price does not pay for. None
// stays behind, so that no machine comes of it when the price has fallen.
func TestPriceTooLow(t *testing.T) {
	w := newWorld(t, nil)
	for range 3 {
		_, err := w.Create(t.Context(), w.cheapSpec())
		w.refused(nstance.Capacity, err)
	}
	require.Zero(t, w.cloud.OpenSpotRequests())
	w.fall()
	require.Empty(t, w.cloud.Machines())
}

// TestRequestStaysOpen: a create whose request cannot be cancelled is not refused for good.
// Its machine is found when the price falls, and a deletion does not end before the request.
func TestRequestStaysOpen(t *testing.T) {
	for name, fault := range map[string]testcloud.Fault{
		"permission": {Answer: ec2test.Refusal("UnauthorizedOperation", "You are not authorized to perform this operation.")},
		"throttled":  {Answer: ec2test.Refusal("RequestLimitExceeded", "Request limit exceeded.")},
		"lost":       {Lost: testcloud.LostRequest},
		"made up":    {Answer: ec2test.Refusal("Unheard.Of", "No.")},
	} {
		for _, call := range []string{"DescribeSpotInstanceRequests", "CancelSpotInstanceRequests"} {
			t.Run(name+" "+call, func(t *testing.T) {
				w := newWorld(t, nil)
				s := w.cheapSpec()
				w.faults.Next(call, fault, fault, fault, fault, fault, fault, fault)
				_, err := w.Create(t.Context(), s)
				w.refused(nstance.Ambiguous, err)
				require.ErrorContains(t, err, "SpotMaxPriceTooLow")
				require.Equal(t, 1, w.cloud.OpenSpotRequests())
				m := nstance.Machine{ID: s.ID, Owner: s.Owner}
				require.Error(t, w.Delete(t.Context(), m))
				require.NotEqual(t, nstance.NotFound, nstance.CodeOf(w.Delete(t.Context(), m)))
				w.faults.Clear()
				w.fall()
				found, err := w.Get(t.Context(), s.ID)
				require.NoError(t, err)
				require.Equal(t, nstance.Spot, found.Market)
				require.Eventually(t, func() bool { return nstance.CodeOf(w.Delete(t.Context(), found)) == nstance.NotFound }, limit, time.Millisecond)
				require.Empty(t, w.cloud.Machines())
			})
		}
	}
}

// TestFulfilledMeanwhile: the price falls between the refusal and the cancellation.
func TestFulfilledMeanwhile(t *testing.T) {
	for _, call := range []string{"DescribeSpotInstanceRequests", "CancelSpotInstanceRequests"} {
		w := newWorld(t, nil)
		s, passes := w.cheapSpec(), make(chan struct{})
		w.faults.Next(call, testcloud.Fault{Wait: passes})
		done := make(chan error)
		go func() {
			_, err := w.Create(t.Context(), s)
			done <- err
		}()
		require.Eventually(t, func() bool { return w.faults.Calls()[call] == 1 }, limit, time.Millisecond)
		w.fall()
		close(passes)
		err := <-done
		w.refused(nstance.Ambiguous, err)
		_, err = w.Get(t.Context(), s.ID)
		require.NoError(t, err)
	}
}

// TestCancelledLate: a request that is open after its cancellation may still make a machine.
func TestCancelledLate(t *testing.T) {
	w := newWorld(t, nil)
	s := w.cheapSpec()
	accepted := testcloud.Fault{Answer: func(rw http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(rw, `<CancelSpotInstanceRequestsResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><requestId>1</requestId><spotInstanceRequestSet/></CancelSpotInstanceRequestsResponse>`)
	}}
	w.faults.Next("CancelSpotInstanceRequests", accepted, accepted)
	_, err := w.Create(t.Context(), s)
	w.refused(nstance.Ambiguous, err)
	m := nstance.Machine{ID: s.ID, Owner: s.Owner}
	w.refused(nstance.Unavailable, w.Delete(t.Context(), m))
	w.refused(nstance.NotFound, w.Delete(t.Context(), m))
	require.Zero(t, w.cloud.OpenSpotRequests())
}

// TestDeleteOfWhatWasNeverSeen: the intent of a former leader may have an open request.
func TestDeleteOfWhatWasNeverSeen(t *testing.T) {
	w := newWorld(t, nil)
	s := w.cheapSpec()
	w.faults.Next("DescribeSpotInstanceRequests", testcloud.Fault{Answer: ec2test.Refusal("InternalError", "An internal error has occurred")}, testcloud.Fault{Answer: ec2test.Refusal("InternalError", "An internal error has occurred")},
		testcloud.Fault{Answer: ec2test.Refusal("InternalError", "An internal error has occurred")})
	_, err := w.Create(t.Context(), s)
	require.Error(t, err)
	w.faults.Clear()
	w.refused(nstance.NotFound, w.Delete(t.Context(), nstance.Machine{ID: s.ID, Owner: s.Owner}))
	require.Zero(t, w.cloud.OpenSpotRequests())
}
