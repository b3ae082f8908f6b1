package aws_test

import (
	"encoding/json"
	"net/netip"
	"net/url"
	"testing"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	ec2sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/aws"
	"github.com/nstance-go/nstance/aws/ec2test"
	"github.com/nstance-go/nstance/provider"
)

// featureCatalog adds types with features, and capacity reservations.
func featureCatalog() *ec2test.Catalog {
	c := ec2test.DefaultCatalog(region)
	x86 := []string{"x86_64"}
	c.Types = append(c.Types,
		ec2test.InstanceType{Name: "c6a.xlarge", Archs: x86, VCPUs: 4, MemoryMiB: 8192, Interfaces: 4, AddressesPerInterface: 15, SEVSNP: true, Hibernation: true},
		ec2test.InstanceType{Name: "c8i.xlarge", Archs: x86, VCPUs: 4, MemoryMiB: 8192, Interfaces: 4, AddressesPerInterface: 15, Nested: true},
		ec2test.InstanceType{Name: "p5.48xlarge", Archs: x86, VCPUs: 192, MemoryMiB: 2 << 20, Interfaces: 64, AddressesPerInterface: 50, Cards: 32, EFAs: 32},
	)
	c.Reservations = []ec2test.Reservation{
		{ID: "cr-0123456789abcdef0", InstanceType: "m5.large", Zone: region + "a", Machines: 1},
		{ID: "cr-0123456789abcdef1", InstanceType: "p5.48xlarge", Zone: region + "a", Machines: 2, Block: true, Group: blockGroup},
	}
	c.Subnets[1].IPv6 = true
	return c
}

const blockGroup = "arn:aws:resource-groups:us-east-1:123456789012:group/blocks"

// launchWith creates a machine of a type with these args, and returns the request and what
// EC2 shows of the machine.
func (w *world) launchWith(instanceType, args string) (url.Values, types.Instance, error) {
	w.Helper()
	p, calls := w.recorded()
	s := w.spec()
	s.InstanceType, s.Args = instanceType, json.RawMessage(args)
	require.NoError(w, aws.Kind().CheckSpec(provider.Settings{Region: region}, s))
	m, err := p.Create(w.Context(), s)
	if err != nil {
		return nil, types.Instance{}, err
	}
	client := ec2sdk.NewFromConfig(account(), func(o *ec2sdk.Options) { o.BaseEndpoint = &w.url })
	out, err := client.DescribeInstances(w.Context(), &ec2sdk.DescribeInstancesInput{InstanceIds: []string{m.ProviderID}})
	require.NoError(w, err)
	return (*calls)[len(*calls)-1], out.Reservations[0].Instances[0], nil
}

func (w *world) mustLaunchWith(instanceType, args string) (url.Values, types.Instance) {
	w.Helper()
	sent, m, err := w.launchWith(instanceType, args)
	require.NoError(w, err)
	return sent, m
}

func TestProcessor(t *testing.T) {
	w := newWorld(t, &ec2test.Options{Catalog: featureCatalog()})
	_, m := w.mustLaunchWith("m5.large", `{"cpu": {"cores": 1, "threads_per_core": 1}}`)
	require.EqualValues(t, 1, *m.CpuOptions.CoreCount)
	require.EqualValues(t, 1, *m.CpuOptions.ThreadsPerCore)
	_, m = w.mustLaunchWith("c6a.xlarge", `{"cpu": {"amd_sev_snp": true}}`)
	require.Equal(t, types.AmdSevSnpSpecificationEnabled, m.CpuOptions.AmdSevSnp)
	require.EqualValues(t, 2, *m.CpuOptions.CoreCount)
	sent, _ := w.mustLaunchWith("c8i.xlarge", `{"cpu": {"nested_virtualization": true}}`)
	require.Equal(t, "enabled", sent.Get("CpuOptions.NestedVirtualization"))
	sent, m = w.mustLaunchWith("c6a.xlarge", `{"enclaves": true, "private_dns": {"hostname_type": "resource-name", "a_record": true}}`)
	require.True(t, *m.EnclaveOptions.Enabled)
	require.Equal(t, types.HostnameTypeResourceName, m.PrivateDnsNameOptions.HostnameType)
	require.True(t, *m.PrivateDnsNameOptions.EnableResourceNameDnsARecord)
	require.Equal(t, "false", sent.Get("PrivateDnsNameOptions.EnableResourceNameDnsAAAARecord"))

	for _, c := range [][2]string{
		{"m5.large", `{"cpu": {"cores": 2, "threads_per_core": 1}}`},
		{"m5.large", `{"cpu": {"amd_sev_snp": true}}`},
		{"c6a.xlarge", `{"cpu": {"nested_virtualization": true}}`},
		{"m5.large", `{"enclaves": true}`}, // 2 vCPUs
		{"t2.micro", `{"cpu": {"cores": 1, "threads_per_core": 1}}`},
	} {
		_, _, err := w.launchWith(c[0], c[1])
		w.refused(nstance.Invalid, err)
	}
}

// TestPrefixes: a prefix takes sixteen addresses of the subnet.
func TestPrefixes(t *testing.T) {
	catalog := featureCatalog()
	catalog.Subnets[0].Prefix = netip.MustParsePrefix("10.0.0.0/26") // the first and the last of four blocks are not whole
	w := newWorld(t, &ec2test.Options{Catalog: catalog})
	_, m := w.mustLaunchWith("m5.large", `{"ipv4_prefixes": 2}`)
	require.Len(t, m.NetworkInterfaces[0].Ipv4Prefixes, 2)
	require.Equal(t, "10.0.0.16/28", *m.NetworkInterfaces[0].Ipv4Prefixes[0].Ipv4Prefix)
	free, err := w.FreeAddresses(t.Context(), []string{subnet})
	require.NoError(t, err)
	require.Equal(t, 64-5-1-32, free[subnet])
	_, _, err = w.launchWith("m5.large", `{"ipv4_prefixes": 1}`)
	w.refused(nstance.Capacity, err)
	require.ErrorContains(t, err, "subnet: ")
	require.Len(t, w.cloud.Machines(), 1)
	_, _, err = w.launchWith("m5.large", `{"ipv4_prefixes": 10}`)
	w.refused(nstance.Quota, err)
	for _, refused := range [][2]string{{"t2.micro", `{"ipv4_prefixes": 1}`}, {"m5.large", `{"ipv6_prefixes": 1}`}} {
		_, _, err = w.launchWith(refused[0], refused[1])
		w.refused(nstance.Invalid, err)
	}

	s := w.spec()
	s.Subnet, s.Args = catalog.Subnets[1].ID, json.RawMessage(`{"ipv6_prefixes": 1}`)
	p, calls := w.recorded()
	_, err = p.Create(t.Context(), s)
	require.NoError(t, err)
	require.Equal(t, "1", (*calls)[0].Get("NetworkInterface.1.Ipv6PrefixCount"))
}

// TestFabric: a machine has several network interfaces on several cards.
func TestFabric(t *testing.T) {
	w := newWorld(t, &ec2test.Options{Catalog: featureCatalog()})
	sent, m := w.mustLaunchWith("p5.48xlarge", `{"efa": true, "security_group_ids": ["sg-0123456789abcdef0"],
		"network_interfaces": [{"device": 1}, {"card": 1, "type": "efa-only"}, {"card": 2, "device": 0, "type": "efa"}]}`)
	var got []string
	for _, n := range m.NetworkInterfaces {
		got = append(got, *n.InterfaceType)
		require.Equal(t, "sg-0123456789abcdef0", *n.Groups[0].GroupId)
		require.True(t, *n.Attachment.DeleteOnTermination)
		require.Equal(t, *n.InterfaceType == "efa-only", sdk.ToString(n.PrivateIpAddress) == "")
	}
	require.Equal(t, []string{"efa", "interface", "efa-only", "efa"}, got)
	require.Equal(t, "1", sent.Get("NetworkInterface.3.NetworkCardIndex"))
	require.Equal(t, "1", sent.Get("NetworkInterface.3.DeviceIndex"))
	require.Equal(t, "0", sent.Get("NetworkInterface.4.DeviceIndex"))
	require.Equal(t, subnet, sent.Get("NetworkInterface.4.SubnetId"))
	require.Len(t, tagged(sent)["network-interface"], 10)

	for _, refused := range [][2]string{
		{"m5.large", `{"efa": true}`},
		{"m5.large", `{"network_interfaces": [{"card": 1}]}`},
	} {
		_, _, err := w.launchWith(refused[0], refused[1])
		w.refused(nstance.Invalid, err)
	}
	_, _, err := w.launchWith("m5.large", `{"network_interfaces": [{}, {"device": 2}, {"device": 3}]}`)
	w.refused(nstance.Quota, err)
}

// TestCapacityReservations: a machine is in the reservation that its args name; one that is
// full, or for another type, has no capacity.
func TestCapacityReservations(t *testing.T) {
	w := newWorld(t, &ec2test.Options{Catalog: featureCatalog()})
	const targeted, block = `{"capacity_reservation": {"id": "cr-0123456789abcdef0"}}`, `{"capacity_reservation": {"id": "cr-0123456789abcdef1", "block": true}}`
	_, m := w.mustLaunchWith("m5.large", targeted)
	require.Equal(t, "cr-0123456789abcdef0", *m.CapacityReservationId)
	require.Empty(t, m.InstanceLifecycle)
	for _, full := range []string{"m5.large", "c5.large"} {
		_, _, err := w.launchWith(full, targeted)
		w.refused(nstance.Capacity, err)
	}
	sent, m := w.mustLaunchWith("p5.48xlarge", block)
	require.Equal(t, "capacity-block", sent.Get("InstanceMarketOptions.MarketType"))
	require.Equal(t, types.InstanceLifecycleTypeCapacityBlock, m.InstanceLifecycle)
	listed := 0
	for m, err := range w.List(t.Context(), owner) {
		require.NoError(t, err)
		require.Equal(t, nstance.OnDemand, m.Market)
		listed++
	}
	require.Equal(t, 2, listed)
	_, m = w.mustLaunchWith("p5.48xlarge", `{"capacity_reservation": {"resource_group_arn": "`+blockGroup+`", "block": true}}`)
	require.Equal(t, "cr-0123456789abcdef1", *m.CapacityReservationId)

	for _, wrong := range [][2]string{
		{"p5.48xlarge", `{"capacity_reservation": {"id": "cr-0123456789abcdef1"}}`}, // a block needs its market
		{"m5.large", `{"capacity_reservation": {"id": "cr-0123456789abcdef0", "block": true}}`},
		{"m5.large", `{"capacity_reservation": {"id": "cr-0123456789abcdeff"}}`},
		{"m5.large", `{"capacity_reservation": {"resource_group_arn": "arn:aws:resource-groups:us-east-1:123456789012:group/none"}}`},
	} {
		_, _, err := w.launchWith(wrong[0], wrong[1])
		w.refused(nstance.Invalid, err)
	}
}

// TestRepeatInFullReservation: the machine that fills a reservation does not refuse its own repeat.
func TestRepeatInFullReservation(t *testing.T) {
	w := newWorld(t, &ec2test.Options{Catalog: featureCatalog()})
	s := w.spec()
	s.Args = json.RawMessage(`{"capacity_reservation": {"id": "cr-0123456789abcdef0"}}`)
	require.Equal(t, w.create(s).ProviderID, w.create(s).ProviderID)
}
