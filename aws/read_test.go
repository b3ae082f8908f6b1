package aws_test

import (
	"strings"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	ec2sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/aws/ec2test"
	"github.com/nstance-go/nstance/provider/testcloud"
)

// TestLosses checks each of EC2's reasons for an accepted machine that never ran, as Get
// returns it.
func TestLosses(t *testing.T) {
	for code, want := range map[string]nstance.LossCause{
		"Server.InsufficientInstanceCapacity": nstance.LossCapacity,
		"Server.SpotInstanceTermination":      nstance.LossReclaimed,
		"Server.SpotInstanceShutdown":         nstance.LossReclaimed,
		"Server.InternalError":                nstance.LossHost,
		"Server.ScheduledStop":                nstance.LossHost,
		"Client.VolumeLimitExceeded":          nstance.LossQuota,
		"Client.InvalidSnapshot.NotFound":     nstance.LossInvalid,
		"Client.InternalError":                nstance.LossInvalid,
		"Client.InstanceInitiatedShutdown":    nstance.LossGuest,
		"Client.UserInitiatedShutdown":        nstance.LossRequested,
		"Client.SomethingNew":                 nstance.LossInvalid,
		"Server.SomethingNew":                 "",
	} {
		t.Run(code, func(t *testing.T) {
			w := newWorld(t, &ec2test.Options{Delays: testcloud.Delays{Start: time.Millisecond, Linger: -1}})
			w.cloud.FailNextBoots(ec2test.StateReason{Code: code, Message: code + ": it failed"})
			m := w.create(w.spec())
			require.Eventually(t, func() bool {
				_, err := w.Get(t.Context(), m.ID)
				return nstance.CodeOf(err) == nstance.NotFound && nstance.LossCauseOf(err) == want && strings.Contains(err.Error(), code)
			}, time.Minute, time.Millisecond)
			w.refused(nstance.NotFound, w.Delete(t.Context(), m))
			for range w.List(t.Context(), owner) {
				t.Fatal("a terminated machine is listed")
			}
		})
	}
}

// TestReclaim: a machine has its cause before it is gone.
func TestReclaim(t *testing.T) {
	w := newWorld(t, &ec2test.Options{Delays: testcloud.Delays{Delete: -1}})
	s := w.spec()
	s.Market = nstance.Spot
	m := w.create(s)
	require.NoError(t, w.cloud.Reclaim(m.ProviderID, 0))
	m, err := w.Get(t.Context(), s.ID)
	require.NoError(t, err)
	require.Equal(t, nstance.StatusDeleting, m.Status)
	require.Equal(t, nstance.LossReclaimed, m.Cause)
	require.Equal(t, nstance.Spot, m.Market)
	require.Equal(t, region+"a", m.Zone)
	require.Equal(t, "m5.large", m.InstanceType)
	require.NoError(t, w.Delete(t.Context(), m))
	require.Zero(t, w.faults.Calls()["TerminateInstances"], "it is being terminated already")
}

// TestListOfThousands counts the calls.
func TestListOfThousands(t *testing.T) {
	w := newWorld(t, nil)
	client := ec2sdk.NewFromConfig(account(), func(o *ec2sdk.Options) { o.BaseEndpoint = &w.url })
	var tags []types.Tag
	for key, value := range map[string]string{"installation": "i1", "cluster-id": "c", "shard": "a", "tenant": "default"} {
		tags = append(tags, types.Tag{Key: sdk.String("nstance:" + key), Value: sdk.String(value)})
	}
	for n := range 5 {
		_, err := client.RunInstances(t.Context(), &ec2sdk.RunInstancesInput{
			ImageId: sdk.String(image), InstanceType: "m5.large", MinCount: sdk.Int32(1000), MaxCount: sdk.Int32(1000),
			SubnetId:          sdk.String([]string{subnet, "subnet-0123456789abcdef1"}[n%2]),
			TagSpecifications: []types.TagSpecification{{ResourceType: types.ResourceTypeInstance, Tags: tags}},
		})
		require.NoError(t, err)
	}
	seen := map[string]bool{}
	for m, err := range w.List(t.Context(), owner) {
		require.NoError(t, err)
		seen[m.ProviderID] = true
	}
	require.Len(t, seen, 5000)
	require.Equal(t, 5, w.faults.Calls()["DescribeInstances"])
}

// TestUnknownInstance: EC2's error for an unknown ID is no proof of absence, since it
// also occurs for new instances.
func TestUnknownInstance(t *testing.T) {
	w := newWorld(t, nil)
	m := w.create(w.spec())
	w.faults.Next("TerminateInstances", testcloud.Fault{Answer: ec2test.Refusal("InvalidInstanceID.NotFound", "The instance ID does not exist")})
	w.refused(nstance.Unavailable, w.Delete(t.Context(), m))
	require.NoError(t, w.Delete(t.Context(), m))
}

// TestDeleteInWrongState: a Conflict of Delete means another owner's machine, which
// raises an alarm.
func TestDeleteInWrongState(t *testing.T) {
	w := newWorld(t, nil)
	m := w.create(w.spec())
	w.faults.Next("TerminateInstances", testcloud.Fault{Answer: ec2test.Refusal("IncorrectInstanceState", "The instance is not in a state from which it can be terminated.")})
	err := w.Delete(t.Context(), m)
	w.refused(nstance.Unavailable, err)
	require.NotErrorIs(t, err, nstance.Conflict)
	require.NoError(t, w.Delete(t.Context(), m))
}

// TestReadErrors: no error is absence.
func TestReadErrors(t *testing.T) {
	w := newWorld(t, nil)
	m := w.create(w.spec())
	for code, want := range map[string]nstance.Code{
		"RequestLimitExceeded": nstance.Throttled, "InternalError": nstance.Unavailable, "UnauthorizedOperation": nstance.Denied, "InvalidInstanceID.NotFound": nstance.Unavailable,
	} {
		for range 3 {
			w.faults.Next("DescribeInstances", testcloud.Fault{Answer: ec2test.Refusal(code, "it failed")})
		}
		_, err := w.Get(t.Context(), m.ID)
		w.refused(want, err)
		w.refused(want, w.Delete(t.Context(), m))
		for _, err := range w.List(t.Context(), owner) {
			w.refused(want, err)
		}
	}
	require.Zero(t, w.faults.Calls()["TerminateInstances"])
}

// TestOtherRegion: EC2 does not find machines of another region, which is no proof of
// absence.
func TestOtherRegion(t *testing.T) {
	w := newWorld(t, nil)
	m := w.create(w.spec())
	m.Zone = "eu-central-1a"
	w.refused(nstance.Conflict, w.Delete(t.Context(), m))
	m.ProviderID = ""
	w.refused(nstance.Conflict, w.Park(t.Context(), m, nstance.ParkStopped))
	require.Len(t, w.cloud.Machines(), 1)
	require.Zero(t, w.faults.Calls()["DescribeInstances"])
}

func TestNodeProviderID(t *testing.T) {
	w := newWorld(t, nil)
	m := w.create(w.spec())
	require.Equal(t, "aws:///"+region+"a/"+m.ProviderID, w.NodeProviderID(m))
	require.Regexp(t, `^i-[0-9a-f]{17}$`, m.ProviderID)
	require.Empty(t, w.NodeProviderID(nstance.Machine{ID: m.ID, ProviderID: m.ProviderID}), "the zone is not known")
}
