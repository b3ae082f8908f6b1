package aws_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/aws"
	"github.com/nstance-go/nstance/provider"
)

// openKind opens the provider as a composition does.
func (w *world) openKind() (nstance.Provider, func() error) {
	w.Helper()
	options, err := json.Marshal(map[string]string{"endpoint": w.url, "elb_endpoint": w.url, "sts_endpoint": w.url})
	require.NoError(w, err)
	p, end, err := aws.Kind().Open(w.Context(), provider.Settings{Region: region, Options: options})
	require.NoError(w, err)
	return p, end
}

func TestKind(t *testing.T) {
	k := aws.Kind()
	require.NoError(t, provider.Kinds{k}.Validate())
	require.True(t, k.Images && k.Balancers && k.Address && k.Spot)
	require.Equal(t, []nstance.ParkMode{nstance.ParkStopped, nstance.ParkHibernated}, k.Park)
	require.Equal(t, time.Minute, k.Consistency)
	require.Equal(t, 16384, k.MaxUserData)
	require.InDelta(t, 2, k.Rate, 0)
	require.Equal(t, 5, k.Burst)
}

func TestSettings(t *testing.T) {
	check := func(s provider.Settings) error {
		_, _, err := aws.Kind().Open(t.Context(), s)
		require.Equal(t, nstance.CodeOf(aws.Kind().Check(s)), nstance.CodeOf(err))
		return err
	}
	t.Setenv("AWS_CONFIG_FILE", "/dev/null")
	for _, region := range []string{"eu-central-1", "us-gov-west-1", "us-iso-east-1", "eusc-de-east-1", "ap-southeast-7"} {
		require.NoError(t, check(provider.Settings{Region: region}))
	}
	for field, s := range map[string]provider.Settings{
		"region: ":                    {},
		`region: "eu-central-1a"`:     {Region: "eu-central-1a"},
		"zone: ":                      {Region: region, Zone: region + "a"},
		"options.endpoint: ":          {Region: region, Options: json.RawMessage(`{"endpoint": "ec2.example"}`)},
		"options.elb_endpoint: ":      {Region: region, Options: json.RawMessage(`{"elb_endpoint": "ftp://host"}`)},
		"options.sts_endpoint: ":      {Region: region, Options: json.RawMessage(`{"sts_endpoint": "sts.example"}`)},
		"options.ssm_endpoint: ":      {Region: region, Options: json.RawMessage(`{"ssm_endpoint": "ssm.example"}`)},
		"options.sqs_endpoint: ":      {Region: region, Options: json.RawMessage(`{"sqs_endpoint": "sqs.example"}`)},
		"options.network_interface: ": {Region: region, Options: json.RawMessage(`{"network_interface": "eth0"}`)},
		"options.endpiont: ":          {Region: region, Options: json.RawMessage(`{"endpiont": "https://host"}`)},
	} {
		require.ErrorContains(t, check(s), field)
	}
	for queue, ok := range map[string]bool{
		"https://sqs.us-east-1.amazonaws.com/123456789012/nstance":                     true,
		"https://vpce-0123-abcd.sqs.us-east-1.vpce.amazonaws.com/123456789012/nstance": true,
		"http://127.0.0.1:4566/123456789012/nstance":                                   true,
		"https://sqs.eu-west-1.amazonaws.com/123456789012/nstance":                     false,
		"https://sqs.us-east-1.amazonaws.com/123456789012/nstance.fifo":                false,
		"https://sqs.us-east-1.amazonaws.com/nstance":                                  false,
		"arn:aws:sqs:us-east-1:123456789012:nstance":                                   false,
		"sqs.us-east-1.amazonaws.com/123456789012/nstance":                             false,
	} {
		options, err := json.Marshal(map[string]string{"interruption_queue": queue})
		require.NoError(t, err)
		if err = check(provider.Settings{Region: region, Options: options}); ok {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, "options.interruption_queue: ")
		}
	}
	_, _, err := aws.Kind().Open(t.Context(), provider.Settings{Region: region, Options: json.RawMessage(`{"profile": "no-such-profile"}`)})
	require.ErrorContains(t, err, "options.profile: ")
}

// TestSpecs checks local refusals, which apply to configurations as well.
func TestSpecs(t *testing.T) {
	w := newWorld(t, nil)
	args := func(text string) func(*nstance.MachineSpec) {
		return func(s *nstance.MachineSpec) { s.Args = json.RawMessage(text) }
	}
	spot := func(more func(*nstance.MachineSpec)) func(*nstance.MachineSpec) {
		return func(s *nstance.MachineSpec) { s.Market = nstance.Spot; more(s) }
	}
	var many []string
	for n := range 41 {
		many = append(many, fmt.Sprintf(`"k%d": ""`, n))
	}
	for _, c := range []struct {
		field  string
		change func(*nstance.MachineSpec)
	}{
		{"userdata", func(s *nstance.MachineSpec) { s.UserData = make([]byte, 16385) }},
		{"token", func(s *nstance.MachineSpec) { s.Token = strings.Repeat("x", 65) }},
		{"image", func(s *nstance.MachineSpec) { s.Image = "debian-12" }},
		{"subnet", func(s *nstance.MachineSpec) { s.Subnet = "default" }},
		{"subnet", func(s *nstance.MachineSpec) { s.Subnet = "tag:Name=workers" }},
		{"subnet", func(s *nstance.MachineSpec) { s.Subnet = "zone=us-east-1a" }},
		{"subnet", func(s *nstance.MachineSpec) { s.Subnet = "zone=a,tag:Name=workers" }},
		{"subnet", func(s *nstance.MachineSpec) { s.Subnet = "zone=us-east-1a,zone=us-east-1b,tag:Name=workers" }},
		{"subnet", func(s *nstance.MachineSpec) { s.Subnet = "zone=us-east-1a,Name=workers" }},
		{"subnet", func(s *nstance.MachineSpec) { s.Subnet = "zone=us-east-1a,tag:Name" }},
		{"args.security_group_tags", args(`{"security_group_tags": {"": "x"}}`)},
		{"args.security_group_tags", args(`{"security_group_tags": {` + strings.Join(many[:11], ",") + `}}`)},
		{"instance_type", func(s *nstance.MachineSpec) { s.InstanceType = "large" }},
		{"market.max_price", spot(func(s *nstance.MachineSpec) { s.MaxPrice = "0.001" })},
		{"market.max_price", spot(func(s *nstance.MachineSpec) { s.MaxPrice = "0" })},
		{"warm_pool", spot(func(s *nstance.MachineSpec) { s.Park = nstance.ParkStopped })},
		{"args.tenancy", spot(args(`{"tenancy": "host"}`))},
		{"args.capacity_reservation", spot(args(`{"capacity_reservation": {"id": "cr-1"}}`))},
		{"args.image_id", args(`{"image_id": "ami-1"}`)},
		{"args.client_token", args(`{"client_token": "x"}`)},
		{"args.instance_market_options", args(`{"instance_market_options": {}}`)},
		{"args.securty_group_ids", args(`{"securty_group_ids": []}`)},
		{"args.security_group_ids[1]", args(`{"security_group_ids": ["sg-1", "web"]}`)},
		{"args.ipv6_addresses", args(`{"ipv6_addresses": -1}`)},
		{"args.ipv4_prefixes", args(`{"ipv4_prefixes": -1}`)},
		{"args.ipv6_prefixes", args(`{"ipv6_prefixes": -1}`)},
		{"args.private_dns.hostname_type", args(`{"private_dns": {"hostname_type": "name"}}`)},
		{"args.public_ip", args(`{"public_ip": true, "network_interfaces": [{}]}`)},
		{"args.network_interfaces[0].device", args(`{"network_interfaces": [{"device": 0}]}`)},
		{"args.network_interfaces[1].device", args(`{"network_interfaces": [{"card": 1}, {"card": 1, "device": 1}]}`)},
		{"args.network_interfaces[0].card", args(`{"network_interfaces": [{"card": -1}]}`)},
		{"args.network_interfaces[0].type", args(`{"network_interfaces": [{"type": "trunk"}]}`)},
		{"args.network_interfaces[0].security_group_ids[0]", args(`{"network_interfaces": [{"security_group_ids": ["web"]}]}`)},
		{"args.network_interfaces", args(`{"network_interfaces": [{}` + strings.Repeat(", {}", 63) + `]}`)},
		{"args.cpu", args(`{"cpu": {}}`)},
		{"args.cpu", args(`{"cpu": {"threads_per_core": 1}}`)},
		{"args.cpu.threads_per_core", args(`{"cpu": {"threads_per_core": 3, "cores": 1}}`)},
		{"args.cpu", func(s *nstance.MachineSpec) { s.Arch = nstance.ARM64; args(`{"cpu": {"amd_sev_snp": true}}`)(s) }},
		{"args.enclaves", args(`{"cpu": {"amd_sev_snp": true}, "enclaves": true}`)},
		{"args.enclaves", func(s *nstance.MachineSpec) { s.Park = nstance.ParkHibernated; args(`{"enclaves": true}`)(s) }},
		{"args.cpu.amd_sev_snp", func(s *nstance.MachineSpec) {
			s.Park = nstance.ParkHibernated
			args(`{"cpu": {"amd_sev_snp": true}}`)(s)
		}},
		{"args.capacity_reservation", spot(args(`{"capacity_reservation": {"id": "cr-1", "block": true}}`))},
		{"args.capacity_reservation", args(`{"capacity_reservation": {"block": true}}`)},
		{"args.capacity_reservation.block", args(`{"capacity_reservation": {"preference": "open", "block": true}}`)},
		{"args.cpu_credits", args(`{"cpu_credits": "free"}`)},
		{"args.cpu_credits", args(`{"cpu_credits": "unlimited"}`)}, // on m5.large
		{"args.volumes[0].iops", args(`{"volumes": [{"device": "/dev/xvda", "type": "gp3", "iops": 100}]}`)},
		{"args.volumes[0].iops", args(`{"volumes": [{"device": "/dev/xvda", "type": "gp3", "size_gib": 8, "iops": 5000}]}`)},
		{"args.volumes[0].iops", args(`{"volumes": [{"device": "/dev/xvda", "type": "io1", "size_gib": 10, "iops": 501}]}`)},
		{"args.volumes[0].size_gib", args(`{"volumes": [{"device": "/dev/xvda", "type": "st1", "size_gib": 100}]}`)},
		{"args.volumes[0].size_gib", args(`{"volumes": [{"device": "/dev/xvda", "type": "gp2", "size_gib": 20000}]}`)},
		{"args.volumes[0].throughput_mib", args(`{"volumes": [{"device": "/dev/xvda", "type": "gp3", "throughput_mib": 1000}]}`)},
		{"args.metadata_hop_limit", args(`{"metadata_hop_limit": 65}`)},
		{"args.tenancy", args(`{"tenancy": "shared"}`)},
		{"args.host_id", args(`{"host_id": "h-1"}`)},
		{"args.placement_partition", args(`{"placement_partition": 2}`)},
		{"args.capacity_reservation", args(`{"capacity_reservation": {}}`)},
		{"args.capacity_reservation", args(`{"capacity_reservation": {"id": "cr-1", "preference": "open"}}`)},
		{"args.capacity_reservation.preference", args(`{"capacity_reservation": {"preference": "any"}}`)},
		{"args.volumes[0].device", args(`{"volumes": [{"size_gib": 8}]}`)},
		{"args.volumes[1].device", args(`{"volumes": [{"device": "/dev/xvda"}, {"device": "/dev/xvda"}]}`)},
		{"args.volumes[0].type", args(`{"volumes": [{"device": "/dev/xvda", "type": "ssd"}]}`)},
		{"args.volumes[0].size_gib", args(`{"volumes": [{"device": "/dev/xvda", "size_gib": -1}]}`)},
		{"args.volumes[0].size_gib", args(`{"volumes": [{"device": "/dev/xvdb", "type": "io2", "iops": 100}]}`)},
		{"args.volumes[0].iops", args(`{"volumes": [{"device": "/dev/xvda", "size_gib": 8, "type": "io2"}]}`)},
		{"args.volumes[0].iops", args(`{"volumes": [{"device": "/dev/xvda", "type": "gp2", "iops": 3000}]}`)},
		{"args.volumes[0].throughput_mib", args(`{"volumes": [{"device": "/dev/xvda", "type": "gp3", "throughput_mib": 100}]}`)},
		{"args.volumes[0].kms_key_id", args(`{"volumes": [{"device": "/dev/xvda", "kms_key_id": "k"}]}`)},
		{"args.tags.nstance:managed", args(`{"tags": {"nstance:managed": "false"}}`)},
		{"args.tags.NSTANCE:x", args(`{"tags": {"NSTANCE:x": ""}}`)},
		{"args.tags.AWS:x", args(`{"tags": {"AWS:x": ""}}`)},
		{"args.tags.", args(`{"tags": {"": ""}}`)},
		{"args.tags.k", args(`{"tags": {"k": "` + strings.Repeat("ä", 257) + `"}}`)},
		{"args.metadata_tags", args(`{"metadata_tags": true, "tags": {"cost center": "7"}}`)},
		{"args.tags", args(`{"tags": {` + strings.Join(many, ",") + `}}`)},
	} {
		s := w.spec()
		c.change(&s)
		offline := aws.Kind().CheckSpec(provider.Settings{Region: region}, s)
		w.refused(nstance.Invalid, offline)
		require.Equal(t, c.field, strings.SplitN(offline.Error(), ": ", 2)[0], "%v", offline)
		_, err := w.Create(t.Context(), s)
		require.EqualError(t, err, offline.Error())
	}
	s := w.spec()
	s.Image = ""
	_, err := w.Create(t.Context(), s)
	require.ErrorContains(t, err, "image: ")
	s = w.spec()
	s.InstanceType = ""
	_, err = w.Create(t.Context(), s)
	require.ErrorContains(t, err, "instance_type: ")
	require.Empty(t, w.faults.Calls())
}

// TestArgumentsAreUsed: each argument is sent, in EC2's form.
func TestArgumentsAreUsed(t *testing.T) {
	w := newWorld(t, nil)
	p, calls := w.recorded()
	send := func(args string) {
		s := w.spec()
		s.Args = json.RawMessage(args)
		if strings.Contains(args, "cpu_credits") {
			s.InstanceType = "t3.micro"
		}
		require.NoError(t, aws.Kind().CheckSpec(provider.Settings{Region: region}, s))
		_, _ = p.Create(t.Context(), s) // what the test cloud thinks of it is tested elsewhere
	}
	send(`{"security_group_ids": ["sg-0123456789abcdef0"], "iam_instance_profile": "nstance", "key_name": "default", "ebs_optimized": true, "cpu_credits": "unlimited",
		"monitoring": true, "metadata_hop_limit": 2, "metadata_tags": true, "tenancy": "host", "host_id": "h-1", "placement_group": "pg", "placement_partition": 3,
		"capacity_reservation": {"id": "cr-1"}, "volumes": [{"device": "/dev/xvda", "size_gib": 16, "type": "gp3", "iops": 4000, "throughput_mib": 250,
		"encrypted": true, "kms_key_id": "alias/k", "snapshot_id": "snap-1", "keep_after_delete": true}]}`)
	send(`{"security_group_ids": ["sg-0123456789abcdef0"], "public_ip": true, "ipv6_addresses": 1, "iam_instance_profile": "arn:aws:iam::1:instance-profile/x",
		"capacity_reservation": {"preference": "none"}}`)
	send(`{"capacity_reservation": {"resource_group_arn": "arn:aws:resource-groups:x"}, "volumes": [{"device": "/dev/sdb", "size_gib": 1}]}`)
	require.Len(t, *calls, 3)
	for n, want := range []map[string]string{
		{
			"SecurityGroupId.1": "sg-0123456789abcdef0", "SubnetId": subnet, "IamInstanceProfile.Name": "nstance", "KeyName": "default", "EbsOptimized": "true",
			"CreditSpecification.CpuCredits": "unlimited", "Monitoring.Enabled": "true", "MetadataOptions.HttpPutResponseHopLimit": "2",
			"MetadataOptions.InstanceMetadataTags": "enabled", "Placement.Tenancy": "host", "Placement.HostId": "h-1", "Placement.GroupName": "pg",
			"Placement.PartitionNumber": "3", "CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId": "cr-1",
			"BlockDeviceMapping.1.DeviceName": "/dev/xvda", "BlockDeviceMapping.1.Ebs.VolumeSize": "16", "BlockDeviceMapping.1.Ebs.VolumeType": "gp3",
			"BlockDeviceMapping.1.Ebs.Iops": "4000", "BlockDeviceMapping.1.Ebs.Throughput": "250", "BlockDeviceMapping.1.Ebs.Encrypted": "true",
			"BlockDeviceMapping.1.Ebs.KmsKeyId": "alias/k", "BlockDeviceMapping.1.Ebs.SnapshotId": "snap-1", "BlockDeviceMapping.1.Ebs.DeleteOnTermination": "false",
			"NetworkInterface.1.DeviceIndex": "",
		},
		{
			"SecurityGroupId.1": "", "SubnetId": "", "NetworkInterface.1.DeviceIndex": "0", "NetworkInterface.1.SubnetId": subnet,
			"NetworkInterface.1.SecurityGroupId.1": "sg-0123456789abcdef0", "NetworkInterface.1.AssociatePublicIpAddress": "true",
			"NetworkInterface.1.Ipv6AddressCount": "1", "NetworkInterface.1.DeleteOnTermination": "true",
			"IamInstanceProfile.Arn": "arn:aws:iam::1:instance-profile/x", "CapacityReservationSpecification.CapacityReservationPreference": "none",
		},
		{
			"CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationResourceGroupArn": "arn:aws:resource-groups:x",
			"BlockDeviceMapping.1.Ebs.DeleteOnTermination":                                                   "true", "BlockDeviceMapping.1.Ebs.Encrypted": "", "CreditSpecification.CpuCredits": "",
			"Monitoring.Enabled": "", "Placement.Tenancy": "",
		},
	} {
		for key, value := range want {
			require.Equal(t, value, (*calls)[n].Get(key), "%s of request %d: %v", key, n, (*calls)[n])
		}
	}
}
