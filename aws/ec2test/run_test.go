package ec2test_test

import (
	"net/http"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/stretchr/testify/require"

	cloud "github.com/nstance-go/nstance/aws/ec2test"
	"github.com/nstance-go/nstance/provider/testcloud"
)

func TestClientTokensAreForgottenADayAfterTheirMachines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newBubbleRig(t, nil)
		token := func(in *ec2.RunInstancesInput) { in.ClientToken = aws.String("t") }
		id := *r.mustLaunch(token).InstanceId
		<-time.After(36 * time.Hour)
		require.Equal(t, id, *r.mustLaunch(token).InstanceId, "a token lasts as long as its machine")
		r.terminate(id)
		<-time.After(24*time.Hour - time.Minute)
		_, err := r.launch(token)
		refused(t, "IdempotentInstanceTerminated", 400, err)
		<-time.After(25 * time.Hour)
		require.NotEqual(t, id, *r.mustLaunch(token).InstanceId)
	})
}

func TestLateRequestsAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newBubbleRig(t, nil)
		sign := r.client.Options()
		sign.HTTPClient = client(func(q *http.Request) (*http.Response, error) {
			<-time.After(16 * time.Minute)
			return r.http.Do(q)
		})
		_, err := ec2.New(sign).DescribeInstances(t.Context(), &ec2.DescribeInstancesInput{})
		refused(t, "RequestExpired", 400, err)
	})
}

type client func(*http.Request) (*http.Response, error)

func (c client) Do(r *http.Request) (*http.Response, error) { return c(r) }

func TestFirstSpotMachineNeedsItsRole(t *testing.T) {
	o := cloud.Options{NoSpotRole: true, Permitted: []string{"ec2:*"}}
	r := newRig(t, &o)
	_, err := r.launch(spotMarket(types.SpotMarketOptions{}))
	refused(t, "AuthFailure.ServiceLinkedRoleCreationNotPermitted", 400, err)
	o.Permitted = append(o.Permitted, "iam:CreateServiceLinkedRole")
	newRig(t, &o).mustLaunch(spotMarket(types.SpotMarketOptions{}))
}

func TestMachinesInZones(t *testing.T) {
	catalog := cloud.DefaultCatalog("us-east-1")
	catalog.Types[1].Zones = []string{"us-east-1b"}
	catalog.Subnets[2].Prefix = netip.MustParsePrefix("10.0.32.0/29") // 3 addresses
	capacity := &testcloud.Capacity{}
	r := newRig(t, &cloud.Options{Catalog: catalog, Capacity: capacity})
	_, err := r.launch(nil)
	refused(t, "Unsupported", 400, err) // in zone a
	anywhere := func(in *ec2.RunInstancesInput) { in.SubnetId = nil }
	require.Equal(t, "us-east-1b", *r.mustLaunch(anywhere).Placement.AvailabilityZone)
	_, err = r.launch(func(in *ec2.RunInstancesInput) {
		in.Placement = &types.Placement{AvailabilityZone: aws.String("us-east-1a")}
		in.SubnetId = aws.String(other)
	})
	refused(t, "InvalidParameterValue", 400, err)

	small := func(in *ec2.RunInstancesInput) {
		in.InstanceType, in.SubnetId = "c5.large", aws.String(catalog.Subnets[2].ID)
	}
	for range 3 {
		r.mustLaunch(small)
	}
	capacity.Set(testcloud.Shape{Type: "c5.large", Zone: "us-east-1c"}, 1)
	_, err = r.launch(small)
	refused(t, "InsufficientFreeAddressesInSubnet", 400, err)
	capacity.Set(testcloud.Shape{Type: "c5.large", Zone: "us-east-1a"}, 0)
	require.Equal(t, "us-east-1b", *r.mustLaunch(func(in *ec2.RunInstancesInput) { anywhere(in); in.InstanceType = "c5.large" }).Placement.AvailabilityZone,
		"without a zone, where there is capacity")
}

func TestManyMachines(t *testing.T) {
	capacity := &testcloud.Capacity{}
	capacity.Set(testcloud.Shape{Type: "m5.large", Zone: "us-east-1a"}, 5)
	r := newRig(t, &cloud.Options{Capacity: capacity})
	ask := func(least, most int32) (*ec2.RunInstancesOutput, error) {
		return r.client.RunInstances(t.Context(), &ec2.RunInstancesInput{
			ImageId: aws.String(image), InstanceType: "m5.large", SubnetId: aws.String(subnet), MinCount: aws.Int32(least), MaxCount: aws.Int32(most),
		})
	}
	_, err := ask(6, 12)
	refused(t, "InsufficientInstanceCapacity", 500, err)
	require.Empty(t, r.Machines(), "none below the least")
	out, err := ask(2, 12)
	require.NoError(t, err)
	require.Len(t, out.Instances, 5)
	found, err := r.client.DescribeInstances(t.Context(), &ec2.DescribeInstancesInput{})
	require.NoError(t, err)
	require.Len(t, found.Reservations, 1)
}

func TestNetworkInterfaces(t *testing.T) {
	r := newRig(t, nil)
	nic := func(index int32) types.InstanceNetworkInterfaceSpecification {
		return types.InstanceNetworkInterfaceSpecification{DeviceIndex: aws.Int32(index), SubnetId: aws.String(subnet), Groups: []string{"sg-0123456789abcdef0"}}
	}
	with := func(nics ...types.InstanceNetworkInterfaceSpecification) func(*ec2.RunInstancesInput) {
		return func(in *ec2.RunInstancesInput) { in.SubnetId, in.NetworkInterfaces = nil, nics }
	}
	second := nic(1)
	second.SecondaryPrivateIpAddressCount = aws.Int32(2)
	m := r.mustLaunch(with(second, nic(0)))
	require.Len(t, m.NetworkInterfaces, 2)
	require.EqualValues(t, 0, *m.NetworkInterfaces[0].Attachment.DeviceIndex)
	require.Equal(t, *m.PrivateIpAddress, *m.NetworkInterfaces[0].PrivateIpAddress)
	require.Len(t, m.NetworkInterfaces[1].PrivateIpAddresses, 3)

	public := nic(1)
	public.AssociatePublicIpAddress = aws.Bool(true)
	elsewhere := nic(1)
	elsewhere.SubnetId = aws.String(other)
	for code, nics := range map[string][]types.InstanceNetworkInterfaceSpecification{
		"InvalidParameterCombination": {nic(0), public},
		"InvalidParameterValue":       {nic(0), nic(0)},
		"AttachmentLimitExceeded":     {nic(0), nic(1), nic(2), nic(3)},
		"MissingParameter":            {{SubnetId: aws.String(subnet)}},
	} {
		_, err := r.launch(with(nics...))
		refused(t, code, 400, err)
	}
	_, err := r.launch(with(nic(0), elsewhere))
	refused(t, "InvalidParameterCombination", 400, err)
	require.Len(t, r.Machines(), 1)
	found, err := r.client.DescribeNetworkInterfaces(t.Context(), &ec2.DescribeNetworkInterfacesInput{})
	require.NoError(t, err)
	require.Len(t, found.NetworkInterfaces, 2, "a refused launch leaves nothing behind")
}
