package aws_test

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials/ec2rolecreds"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/aws"
	"github.com/nstance-go/nstance/aws/ec2test"
	"github.com/nstance-go/nstance/provider/testcloud"
)

// TestCredentialsFail: that no credentials are to be had for a while says nothing of a create,
// and nothing is sent. That there are none is a refusal.
func TestCredentialsFail(t *testing.T) {
	for status, want := range map[int]nstance.Code{
		http.StatusInternalServerError: nstance.Unavailable, http.StatusServiceUnavailable: nstance.Unavailable,
		http.StatusTooManyRequests: nstance.Unavailable, http.StatusForbidden: nstance.Denied, http.StatusNotFound: nstance.Denied,
	} {
		metadata := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
		t.Cleanup(metadata.Close)
		w := newWorld(t, nil)
		conf := account()
		conf.Credentials = ec2rolecreds.New(func(o *ec2rolecreds.Options) {
			o.Client = imds.New(imds.Options{Endpoint: metadata.URL, Retryer: sdk.NopRetryer{}})
		})
		p, err := aws.New(conf, &aws.Options{Endpoint: w.url})
		require.NoError(t, err)
		_, err = p.Create(t.Context(), w.spec())
		w.refused(want, err)
		require.ErrorContains(t, err, "nothing was sent")
		require.Empty(t, w.cloud.Machines())
	}
}

// TestRequestsNotListed: an answer that is none does not prove that no request for spot
// capacity is open.
func TestRequestsNotListed(t *testing.T) {
	for name, fault := range map[string]testcloud.Fault{"page": testcloud.Page(http.StatusOK), "blank": testcloud.Blank(http.StatusOK)} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil)
			w.faults.Next("DescribeSpotInstanceRequests", fault)
			_, err := w.Create(t.Context(), w.cheapSpec())
			w.refused(nstance.Ambiguous, err)
			require.Equal(t, 1, w.cloud.OpenSpotRequests())
		})
	}
}

// TestGoneForNewReason: a machine that EC2 ended for a reason that no table has, and that is
// gone before it is asked about, is gone for what EC2 says.
func TestGoneForNewReason(t *testing.T) {
	w := newWorld(t, &ec2test.Options{Delays: testcloud.Delays{Linger: time.Hour}})
	w.cloud.FailNextBoots(ec2test.StateReason{Code: "Server.SomethingNew", Message: "the rack is on its way"})
	m := w.create(w.spec())
	var err error
	require.Eventually(t, func() bool {
		_, err = w.Get(t.Context(), m.ID)
		return nstance.CodeOf(err) == nstance.NotFound
	}, limit, time.Millisecond)
	require.Empty(t, nstance.LossCauseOf(err), "it is in no list")
	var e *nstance.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, "the rack is on its way", e.Words)
}

// TestQueueThatDoesNotWait: what answers at once that there is no message is not asked without a pause.
func TestQueueThatDoesNotWait(t *testing.T) {
	inBubble(t, "empty", ec2test.Options{}, func(t *testing.T, w *world) {
		w.faults.All("ReceiveMessage", testcloud.Fault{Answer: func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Content-Type", "application/x-amz-json-1.0")
			_, _ = rw.Write([]byte("{}"))
		}})
		v := w.watch(owner)
		v.quiet(10*time.Second + time.Millisecond)
		require.Equal(t, 11, w.faults.Calls()["ReceiveMessage"])
	})
}

// TestBlankIsNoAnswer: nothing at all does not say that there is no shift of a zone, nor no message.
func TestBlankIsNoAnswer(t *testing.T) {
	for _, call := range []string{"ListZonalShifts", "ListAutoshifts"} {
		w := newWorld(t, nil)
		w.faults.Next(call, testcloud.Blank(http.StatusOK))
		w.refused(nstance.Unavailable, w.readShifts())
	}
	inBubble(t, "queue", ec2test.Options{}, func(t *testing.T, w *world) {
		w.faults.Next("ReceiveMessage", testcloud.Blank(http.StatusOK))
		require.ErrorIs(t, w.watch(owner).nextError(), nstance.Unavailable)
	})
}

// TestOtherThanMetadata: what answers instead of the metadata service names no interface, and is
// asked again.
func TestOtherThanMetadata(t *testing.T) {
	w := newWorld(t, nil)
	nic := w.server()
	var there atomic.Bool
	metadata := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "300")
		if there.Load() {
			_, _ = rw.Write([]byte(nic))
		} else {
			_, _ = rw.Write([]byte("<html>welcome</html>"))
		}
	}))
	t.Cleanup(metadata.Close)
	t.Setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", metadata.URL)
	p := w.open(&aws.Options{})
	_, err := p.HoldsAddress(t.Context(), "10.0.0.200")
	w.refused(nstance.Unavailable, err)
	there.Store(true)
	_, err = p.HoldsAddress(t.Context(), "10.0.0.200")
	require.NoError(t, err)
}

// TestInstanceWithoutID: an answer with an instance that has no ID says nothing of machines.
func TestInstanceWithoutID(t *testing.T) {
	w := newWorld(t, nil)
	m := w.create(w.spec())
	w.faults.All("DescribeInstances", testcloud.Fault{Answer: func(rw http.ResponseWriter, _ *http.Request) {
		_, _ = rw.Write([]byte(`<DescribeInstancesResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><reservationSet><item><instancesSet><item><instanceState><name>running</name></instanceState></item></instancesSet></item></reservationSet></DescribeInstancesResponse>`))
	}})
	w.refused(nstance.Unavailable, w.Delete(t.Context(), m))
	w.refused(nstance.Unavailable, w.Park(t.Context(), m, nstance.ParkStopped))
	_, err := w.Get(t.Context(), m.ID)
	w.refused(nstance.Unavailable, err)
	require.Len(t, w.cloud.Machines(), 1)
}
