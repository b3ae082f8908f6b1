package ec2test_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	cloud "github.com/nstance-go/nstance/aws/ec2test"
	"github.com/nstance-go/nstance/provider/testcloud"
)

func (r *rig) stop(id string, hibernate bool) error {
	_, err := r.client.StopInstances(r.Context(), &ec2.StopInstancesInput{InstanceIds: []string{id}, Hibernate: aws.Bool(hibernate)})
	return err
}

func (r *rig) start(id string) error {
	_, err := r.client.StartInstances(r.Context(), &ec2.StartInstancesInput{InstanceIds: []string{id}})
	return err
}

func (r *rig) terminate(id string) {
	r.Helper()
	_, err := r.client.TerminateInstances(r.Context(), &ec2.TerminateInstancesInput{InstanceIds: []string{id}})
	require.NoError(r, err)
}

func TestStatesTakeTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newBubbleRig(t, &cloud.Options{Delays: testcloud.Delays{
			Visible: 2 * time.Second, Start: 10 * time.Second, Stop: 20 * time.Second, Delete: 30 * time.Second, Linger: time.Hour,
		}})
		id := *r.mustLaunch(nil).InstanceId
		expect := func(after time.Duration, s types.InstanceStateName) {
			t.Helper()
			<-time.After(after)
			synctest.Wait()
			require.Equal(t, s, r.state(id))
		}
		expect(time.Second, "")
		expect(time.Second, "pending")
		expect(8*time.Second, "running")
		require.NoError(t, r.stop(id, false))
		expect(19*time.Second, "stopping")
		expect(time.Second, "stopped")
		require.NoError(t, r.start(id))
		expect(9*time.Second, "pending")
		expect(time.Second, "running")
		r.terminate(id)
		expect(29*time.Second, "shutting-down")
		expect(time.Second, "terminated")
		expect(59*time.Minute, "terminated")
		expect(time.Minute, "")
	})
}

func TestStartNeedsCapacity(t *testing.T) {
	capacity := &testcloud.Capacity{}
	r := newRig(t, &cloud.Options{Capacity: capacity})
	m := r.mustLaunch(nil)
	before := *m.LaunchTime
	require.NoError(t, r.stop(*m.InstanceId, false))
	capacity.Set(testcloud.Shape{Type: "m5.large", Zone: "us-east-1a"}, 0)
	refused(t, "InsufficientInstanceCapacity", 500, r.start(*m.InstanceId))
	require.EqualValues(t, "stopped", r.state(*m.InstanceId))
	capacity.Set(testcloud.Shape{Type: "m5.large", Zone: "us-east-1a"}, 1)
	require.NoError(t, r.start(*m.InstanceId))
	require.NoError(t, r.start(*m.InstanceId), "starting a running machine changes nothing")
	found, err := r.find("instance-id", *m.InstanceId)
	require.NoError(t, err)
	require.False(t, found[0].LaunchTime.Before(before), "the launch time is that of the last start")
	require.Equal(t, *m.PrivateIpAddress, *found[0].PrivateIpAddress)
}

func TestStopIsRefused(t *testing.T) {
	r := newRig(t, &cloud.Options{Delays: testcloud.Delays{Linger: time.Hour}})
	spot := *r.mustLaunch(spotMarket(types.SpotMarketOptions{SpotInstanceType: "one-time"})).InstanceId
	refused(t, "UnsupportedOperation", 400, r.stop(spot, false))
	plain := *r.mustLaunch(nil).InstanceId
	refused(t, "UnsupportedHibernationConfiguration", 400, r.stop(plain, true))
	r.terminate(plain)
	refused(t, "IncorrectInstanceState", 400, r.stop(plain, false))
	refused(t, "IncorrectInstanceState", 400, r.start(plain))
}

func TestHibernate(t *testing.T) {
	r := newRig(t, nil)
	id := *r.mustLaunch(func(in *ec2.RunInstancesInput) {
		in.HibernationOptions = &types.HibernationOptionsRequest{Configured: aws.Bool(true)}
		in.BlockDeviceMappings = []types.BlockDeviceMapping{{DeviceName: aws.String("/dev/xvda"), Ebs: &types.EbsBlockDevice{Encrypted: aws.Bool(true), VolumeSize: aws.Int32(20)}}}
	}).InstanceId
	require.NoError(t, r.stop(id, true))
	found, err := r.find("instance-id", id)
	require.NoError(t, err)
	require.EqualValues(t, "stopped", found[0].State.Name)
	require.Equal(t, "Client.UserInitiatedHibernate", *found[0].StateReason.Code)
}

func spotMarket(o types.SpotMarketOptions) func(*ec2.RunInstancesInput) {
	return func(in *ec2.RunInstancesInput) {
		in.InstanceMarketOptions = &types.InstanceMarketOptionsRequest{MarketType: "spot", SpotOptions: &o}
	}
}

// A host is a hypervisor whose guests do nothing.
type host struct {
	mu     sync.Mutex
	guests map[string]*guest
	starts int
}

type guest struct {
	boot      testcloud.Boot
	announced time.Time
	killed    chan struct{}
}

func (h *host) Start(b testcloud.Boot) (testcloud.Guest, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	g := &guest{boot: b, killed: make(chan struct{})}
	h.guests[b.Handle] = g
	h.starts++
	return g, nil
}

func (h *host) guest(handle string) *guest {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.guests[handle]
}

func (g *guest) Announce(_ string, at time.Time) { g.announced = at }
func (g *guest) Withdraw()                       { g.announced = time.Time{} }
func (g *guest) Kill()                           { close(g.killed) }

func TestReclaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &host{guests: map[string]*guest{}}
		r := newBubbleRig(t, &cloud.Options{Hypervisor: h, IDTag: "name", Delays: testcloud.Delays{Start: time.Second, Linger: time.Hour}})
		m := r.mustLaunch(func(in *ec2.RunInstancesInput) {
			spotMarket(types.SpotMarketOptions{SpotInstanceType: "one-time", InstanceInterruptionBehavior: "terminate"})(in)
			in.TagSpecifications = append(in.TagSpecifications, types.TagSpecification{
				ResourceType: "spot-instances-request", Tags: []types.Tag{{Key: aws.String("k"), Value: aws.String("v")}},
			})
		})
		require.Nil(t, h.guest(*m.InstanceId), "a pending machine runs nothing")
		<-time.After(time.Second)
		synctest.Wait()
		g := h.guest(*m.InstanceId)
		require.Equal(t, "#cloud-config\n", string(g.boot.UserData))
		require.Equal(t, nstance.InstanceID("web"), g.boot.ID)
		require.True(t, g.boot.Spot)
		require.Equal(t, *m.PrivateIpAddress, g.boot.Address.String())

		require.NoError(t, r.Reclaim(*m.InstanceId, 2*time.Minute))
		require.Equal(t, time.Now().Add(2*time.Minute), g.announced)
		<-time.After(2*time.Minute - time.Second)
		require.EqualValues(t, "running", r.state(*m.InstanceId))
		<-time.After(time.Second)
		synctest.Wait()
		<-g.killed
		found, err := r.find("instance-lifecycle", "spot")
		require.NoError(t, err)
		require.EqualValues(t, "terminated", found[0].State.Name)
		require.Equal(t, "Server.SpotInstanceTermination", *found[0].StateReason.Code)
		requests, err := r.client.DescribeSpotInstanceRequests(t.Context(), &ec2.DescribeSpotInstanceRequestsInput{
			Filters: []types.Filter{{Name: aws.String("tag:k"), Values: []string{"v"}}},
		})
		require.NoError(t, err)
		require.Equal(t, *found[0].SpotInstanceRequestId, *requests.SpotInstanceRequests[0].SpotInstanceRequestId)
		require.EqualValues(t, "closed", requests.SpotInstanceRequests[0].State)
		require.ErrorIs(t, r.Reclaim(*m.InstanceId, 0), nstance.NotFound)
		require.ErrorIs(t, r.Reclaim(*r.mustLaunch(nil).InstanceId, 0), nstance.Invalid)
	})
}

func TestGuestPowersOff(t *testing.T) {
	for behavior, state := range map[types.ShutdownBehavior]string{"terminate": "terminated", "stop": "stopped", "": "stopped"} {
		synctest.Test(t, func(t *testing.T) {
			h := &host{guests: map[string]*guest{}}
			r := newBubbleRig(t, &cloud.Options{Hypervisor: h, Delays: testcloud.Delays{Linger: time.Hour}})
			id := *r.mustLaunch(func(in *ec2.RunInstancesInput) { in.InstanceInitiatedShutdownBehavior = behavior }).InstanceId
			synctest.Wait()
			h.guest(id).boot.Exited()
			found, err := r.find("instance-id", id)
			require.NoError(t, err)
			require.EqualValues(t, state, found[0].State.Name)
			require.Equal(t, "Client.InstanceInitiatedShutdown", *found[0].StateReason.Code)
		})
	}
}

func TestStoppedMachinesBootAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &host{guests: map[string]*guest{}}
		r := newBubbleRig(t, &cloud.Options{Hypervisor: h})
		id := *r.mustLaunch(nil).InstanceId
		synctest.Wait()
		first := h.guest(id)
		require.NoError(t, r.stop(id, false))
		<-first.killed
		require.NoError(t, r.start(id))
		synctest.Wait()
		require.Equal(t, 2, h.starts)
		require.NoError(t, r.Fail(id))
		<-h.guest(id).killed
		require.Empty(t, r.Machines())
	})
}

func TestLowPriceLeavesTheRequestOpen(t *testing.T) {
	catalog := cloud.DefaultCatalog("us-east-1")
	catalog.Types[1].SpotPrice = "0.05"
	r := newRig(t, &cloud.Options{Catalog: catalog})
	_, err := r.launch(spotMarket(types.SpotMarketOptions{MaxPrice: aws.String("0.04")}))
	refused(t, "SpotMaxPriceTooLow", 400, err)
	out, err := r.client.DescribeSpotInstanceRequests(t.Context(), &ec2.DescribeSpotInstanceRequestsInput{})
	require.NoError(t, err)
	require.EqualValues(t, "open", out.SpotInstanceRequests[0].State)
	r.mustLaunch(spotMarket(types.SpotMarketOptions{MaxPrice: aws.String("0.05")}))
}
