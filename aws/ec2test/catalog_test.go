package ec2test_test

import (
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/stretchr/testify/require"
)

func filter(name string, values ...string) []types.Filter {
	return []types.Filter{{Name: aws.String(name), Values: values}}
}

func TestImages(t *testing.T) {
	r := newRig(t, nil)
	out, err := r.client.DescribeImages(t.Context(), &ec2.DescribeImagesInput{Owners: []string{"136693071363"}, Filters: filter("name", "debian-12-amd64-*")})
	require.NoError(t, err)
	require.Len(t, out.Images, 2)
	for _, i := range out.Images {
		require.EqualValues(t, "x86_64", i.Architecture)
		require.Regexp(t, `^2026-0\d-01T00:00:00\.000Z$`, *i.CreationDate)
	}
	out, err = r.client.DescribeImages(t.Context(), &ec2.DescribeImagesInput{Owners: []string{"self"}})
	require.NoError(t, err)
	require.Empty(t, out.Images)
	_, err = r.client.DescribeImages(t.Context(), &ec2.DescribeImagesInput{Owners: []string{"debian"}})
	refused(t, "InvalidUserID.Malformed", 400, err)
	_, err = r.client.DescribeImages(t.Context(), &ec2.DescribeImagesInput{ImageIds: []string{"ami-0123456789abcdef9"}})
	refused(t, "InvalidAMIID.NotFound", 400, err)
}

func TestSubnetsCountTheirAddresses(t *testing.T) {
	r := newRig(t, nil)
	free := func() int32 {
		out, err := r.client.DescribeSubnets(t.Context(), &ec2.DescribeSubnetsInput{Filters: filter("subnet-id", subnet)})
		require.NoError(t, err)
		require.Len(t, out.Subnets, 1)
		return *out.Subnets[0].AvailableIpAddressCount
	}
	require.EqualValues(t, 4096-5, free())
	id := *r.mustLaunch(nil).InstanceId
	require.EqualValues(t, 4096-6, free())
	require.NoError(t, r.stop(id, false))
	require.EqualValues(t, 4096-6, free(), "a stopped machine keeps its address")
	r.terminate(id)
	require.EqualValues(t, 4096-5, free())
	_, err := r.client.DescribeSubnets(t.Context(), &ec2.DescribeSubnetsInput{SubnetIds: []string{"subnet-0"}})
	refused(t, "InvalidSubnetID.NotFound", 400, err)
}

func TestInstanceTypes(t *testing.T) {
	r := newRig(t, nil)
	out, err := r.client.DescribeInstanceTypes(t.Context(), &ec2.DescribeInstanceTypesInput{InstanceTypes: []types.InstanceType{"t2.micro", "m6g.large"}})
	require.NoError(t, err)
	archs := map[types.InstanceType][]types.ArchitectureType{}
	for _, k := range out.InstanceTypes {
		archs[k.InstanceType] = k.ProcessorInfo.SupportedArchitectures
	}
	require.Equal(t, map[types.InstanceType][]types.ArchitectureType{"t2.micro": {"i386", "x86_64"}, "m6g.large": {"arm64"}}, archs)
	_, err = r.client.DescribeInstanceTypes(t.Context(), &ec2.DescribeInstanceTypesInput{InstanceTypes: []types.InstanceType{"t2.micro", "x9.large"}})
	refused(t, "InvalidInstanceType", 400, err)
	_, err = r.client.DescribeInstanceTypes(t.Context(), &ec2.DescribeInstanceTypesInput{MaxResults: aws.Int32(101)})
	refused(t, "InvalidParameterValue", 400, err)
}

func TestAddressMoves(t *testing.T) {
	r := newRig(t, nil)
	a, b := r.mustLaunch(nil).NetworkInterfaces[0], r.mustLaunch(nil).NetworkInterfaces[0]
	assign := func(eni *string, address string, reassign bool) error {
		_, err := r.client.AssignPrivateIpAddresses(t.Context(), &ec2.AssignPrivateIpAddressesInput{
			NetworkInterfaceId: eni, PrivateIpAddresses: []string{address}, AllowReassignment: aws.Bool(reassign),
		})
		return err
	}
	has := func(address string) string {
		out, err := r.client.DescribeNetworkInterfaces(t.Context(), &ec2.DescribeNetworkInterfacesInput{Filters: filter("addresses.private-ip-address", address)})
		require.NoError(t, err)
		if len(out.NetworkInterfaces) == 0 {
			return ""
		}
		require.Len(t, out.NetworkInterfaces, 1)
		return *out.NetworkInterfaces[0].NetworkInterfaceId
	}
	const address = "10.0.1.1"
	require.NoError(t, assign(a.NetworkInterfaceId, address, false))
	require.NoError(t, assign(a.NetworkInterfaceId, address, false), "again")
	require.Equal(t, *a.NetworkInterfaceId, has(address))
	refused(t, "Resource.AlreadyAssigned", 400, assign(b.NetworkInterfaceId, address, false))
	require.NoError(t, assign(b.NetworkInterfaceId, address, true))
	require.Equal(t, *b.NetworkInterfaceId, has(address))
	refused(t, "InvalidParameterValue", 400, assign(b.NetworkInterfaceId, "10.0.17.1", true)) // another subnet
	refused(t, "InvalidParameterValue", 400, assign(b.NetworkInterfaceId, *a.PrivateIpAddress, true))
	refused(t, "InvalidNetworkInterfaceID.NotFound", 400, assign(aws.String("eni-0"), address, true))
	_, err := r.client.AssignPrivateIpAddresses(t.Context(), &ec2.AssignPrivateIpAddressesInput{
		NetworkInterfaceId: a.NetworkInterfaceId, SecondaryPrivateIpAddressCount: aws.Int32(10), // m5.large has 10 with the primary one
	})
	refused(t, "PrivateIpAddressLimitExceeded", 400, err)
	_, err = r.client.UnassignPrivateIpAddresses(t.Context(), &ec2.UnassignPrivateIpAddressesInput{NetworkInterfaceId: b.NetworkInterfaceId, PrivateIpAddresses: []string{address}})
	require.NoError(t, err)
	require.Empty(t, has(address))
}

func TestConsoleOutput(t *testing.T) {
	r := newRig(t, nil)
	id := *r.mustLaunch(nil).InstanceId
	output := func(latest bool) string {
		out, err := r.client.GetConsoleOutput(t.Context(), &ec2.GetConsoleOutputInput{InstanceId: aws.String(id), Latest: aws.Bool(latest)})
		require.NoError(t, err)
		return aws.ToString(out.Output)
	}
	require.NoError(t, r.Print(id, []byte("login:")))
	require.Empty(t, output(false), "posted at changes of state only")
	require.Equal(t, "bG9naW46", output(true))
	require.NoError(t, r.stop(id, false))
	require.Equal(t, "bG9naW46", output(false))

	old := *r.mustLaunch(func(in *ec2.RunInstancesInput) { in.InstanceType = "t2.micro" }).InstanceId
	_, err := r.client.GetConsoleOutput(t.Context(), &ec2.GetConsoleOutputInput{InstanceId: aws.String(old), Latest: aws.Bool(true)})
	refused(t, "UnsupportedOperation", 400, err)
}

func TestCreateTags(t *testing.T) {
	r := newRig(t, nil)
	m := r.mustLaunch(nil)
	set := func(key, value string, ids ...string) error {
		_, err := r.client.CreateTags(t.Context(), &ec2.CreateTagsInput{Resources: ids, Tags: []types.Tag{{Key: aws.String(key), Value: aws.String(value)}}})
		return err
	}
	require.NoError(t, set("k", "v", *m.InstanceId, *m.NetworkInterfaces[0].NetworkInterfaceId))
	require.NoError(t, set("k", "w", *m.InstanceId))
	found, err := r.find("tag:k", "w", "tag:name", "web")
	require.NoError(t, err)
	require.Len(t, found, 1)
	refused(t, "InvalidInstanceID.NotFound", 400, set("k", "x", *m.InstanceId, "i-0123456789abcdef0"))
	found, err = r.find("tag:k", "x")
	require.NoError(t, err)
	require.Empty(t, found, "all or none")
}
