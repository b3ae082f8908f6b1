package gcp_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/gcp"
	"github.com/nstance-go/nstance/gcp/gcetest"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/testcloud"
)

const (
	kmsKey     = "projects/keys/locations/us-central1/keyRings/ring/cryptoKeys/disks"
	capable    = "projects/test-project/global/images/capable"
	nodeGroup  = "compute.googleapis.com/node-group-name"
	policyPath = "https://www.googleapis.com/compute/v1/projects/test-project/regions/us-central1/resourcePolicies/"
)

// equipped returns a cloud that has what args can name.
func equipped() *gcetest.Options {
	var types []gcetest.MachineType
	for _, name := range []string{
		"e2-small", "e2-standard-4", "n1-standard-1", "n2-standard-2", "n2-standard-16", "n2d-standard-2", "c2-standard-4", "c3-standard-4", "c3d-standard-4", "n4-standard-2",
	} {
		types = append(types, gcetest.MachineType{Name: name, Arch: nstance.AMD64})
	}
	return &gcetest.Options{
		Types: types,
		Images: []gcetest.Image{
			{Project: "debian-cloud", Name: "debian-12-bookworm-v20261001", Family: "debian-12", Arch: nstance.AMD64, Created: time.Date(2026, 10, 1, 0, 0, 0, 0, time.UTC)},
			{Name: "capable", Arch: nstance.AMD64, Features: []string{"SEV_CAPABLE", "SEV_SNP_CAPABLE", "TDX_CAPABLE"}},
		},
		Subnets: []gcetest.Subnet{
			{Name: "default", Range: netip.MustParsePrefix("10.0.0.0/20"), Secondary: map[string]netip.Prefix{"pods": netip.MustParsePrefix("10.64.0.0/22")}},
			{Name: "storage", Network: "storage", Range: netip.MustParsePrefix("10.1.0.0/24")},
			{Name: "dual", Network: "dual", Range: netip.MustParsePrefix("10.2.0.0/24"), StackType: "IPV4_IPV6", IPv6: "EXTERNAL"},
			{Name: "inner", Network: "inner", Range: netip.MustParsePrefix("10.3.0.0/24"), StackType: "IPV4_IPV6", IPv6: "INTERNAL"},
		},
		Keys: []string{kmsKey}, Snapshots: []gcetest.Snapshot{{Name: "data", SizeGB: 20}},
		Policies:     []gcetest.PlacementPolicy{{Name: "close", Compact: true}, {Name: "apart"}},
		Reservations: []gcetest.Reservation{{Name: "kept", Type: "n2-standard-2", Count: 2}},
		NodeGroups:   []gcetest.NodeGroup{{Name: "own", Size: 1, Labels: map[string]string{"license": "byol"}}},
		Delays:       testcloud.Delays{Stop: time.Millisecond},
	}
}

// rigged returns a spec with args for a machine type.
func rigged(t *testing.T, machineType, args string) nstance.MachineSpec {
	t.Helper()
	s := spec(t)
	s.InstanceType, s.Args = machineType, json.RawMessage(args)
	return s
}

// shown returns a machine as the cloud shows it.
func shown(t *testing.T, url string, id nstance.InstanceID) map[string]any {
	t.Helper()
	var out map[string]any
	require.Eventually(t, func() bool {
		q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("%s/compute/v1/projects/%s/zones/%s/instances/%s", url, project, zone, id), nil)
		require.NoError(t, err)
		q.Header.Set("Authorization", "Bearer "+token)
		r, err := http.DefaultClient.Do(q)
		if err != nil {
			return false
		}
		defer func() { _ = r.Body.Close() }()
		out = nil
		return r.StatusCode == http.StatusOK && json.NewDecoder(r.Body).Decode(&out) == nil
	}, time.Minute, time.Millisecond)
	return out
}

// at returns what stands at a path such as networkInterfaces.0.networkIP.
func at(t *testing.T, v any, path string) any {
	t.Helper()
	for part := range strings.SplitSeq(path, ".") {
		switch x := v.(type) {
		case map[string]any:
			v = x[part]
		case []any:
			var i int
			_, err := fmt.Sscanf(part, "%d", &i)
			require.NoError(t, err)
			require.Less(t, i, len(x), path)
			v = x[i]
		default:
			return nil
		}
	}
	return v
}

// validated checks a spec as a server does without credentials.
func validated(s nstance.MachineSpec) error {
	return gcp.Kind().CheckSpec(provider.Settings{Zone: zone, Options: []byte(`{"project": "test-project"}`)}, s)
}

// TestArgsArrive: what args ask for is what the cloud makes.
func TestArgsArrive(t *testing.T) {
	for name, c := range map[string]struct {
		machineType, args string
		change            func(*nstance.MachineSpec)
		want              map[string]any
	}{
		"local SSDs": {"n2-standard-16", `{"local_ssds": 2, "local_ssd_interface": "SCSI"}`, nil, map[string]any{
			"disks.1.type": "SCRATCH", "disks.1.interface": "SCSI", "disks.2.autoDelete": true, "disks.2.deviceName": "local-ssd-1",
		}},
		"a local SSD": {"n1-standard-1", `{"local_ssds": 1}`, nil, map[string]any{"disks.1.interface": "NVME"}},
		"a key":       {"e2-small", `{"kms_key": "` + kmsKey + `", "kms_service_account": "keys@test-project.iam.gserviceaccount.com"}`, nil, map[string]any{"disks.0.diskEncryptionKey.kmsKeyName": kmsKey, "disks.0.diskEncryptionKey.kmsKeyServiceAccount": "keys@test-project.iam.gserviceaccount.com"}},
		"a device":    {"e2-small", `{"disks": [{"device_name": "data", "size_gb": 10}]}`, nil, map[string]any{"disks.1.deviceName": "data", "disks.1.autoDelete": true}},
		"aliases": {"e2-small", `{"alias_ranges": [{"range": "/24", "name": "pods"}, {"range": "/28"}]}`, nil, map[string]any{
			"networkInterfaces.0.aliasIpRanges.0.ipCidrRange": "10.64.0.0/24", "networkInterfaces.0.aliasIpRanges.1.ipCidrRange": "10.0.0.16/28",
			"networkInterfaces.0.networkIP": "10.0.0.2",
		}},
		"interfaces": {"e2-standard-4", `{"interfaces": [{"subnet": "storage", "nic_type": "GVNIC"}, {"network": "dual", "external_ip": true, "network_tier": "STANDARD"}]}`, nil, map[string]any{
			"networkInterfaces.1.networkIP": "10.1.0.2", "networkInterfaces.1.nicType": "GVNIC", "networkInterfaces.2.networkIP": "10.2.0.2",
			"networkInterfaces.2.accessConfigs.0.networkTier": "STANDARD",
		}},
		"IPv6": {"e2-small", `{"stack_type": "IPV4_IPV6", "external_ipv6": true}`, func(s *nstance.MachineSpec) { s.Subnet = "dual" }, map[string]any{
			"networkInterfaces.0.stackType": "IPV4_IPV6", "networkInterfaces.0.ipv6AccessConfigs.0.externalIpv6": "2600:1900:4000:0:0:1::",
		}},
		"internal IPv6": {"e2-small", `{"stack_type": "IPV6_ONLY"}`, func(s *nstance.MachineSpec) { s.Subnet = "inner" }, map[string]any{
			"networkInterfaces.0.ipv6Address": "fd20:1:2:3:0:1::", "networkInterfaces.0.networkIP": nil,
		}},
		"a network tier": {"e2-small", `{"external_ip": true, "network_tier": "STANDARD"}`, nil, map[string]any{"networkInterfaces.0.accessConfigs.0.networkTier": "STANDARD"}},
		"a reservation": {"n2-standard-2", `{"reservation": {"name": "kept"}}`, nil, map[string]any{
			"reservationAffinity.consumeReservationType": "SPECIFIC_RESERVATION", "reservationAffinity.values.0": "kept",
		}},
		"a shared reservation": {"n2-standard-2", `{"reservation": {"name": "projects/other/reservations/kept"}}`, nil, map[string]any{"reservationAffinity.values.0": "projects/other/reservations/kept"}},
		"no reservation":       {"n2-standard-2", `{"reservation": {"use": "none"}}`, nil, map[string]any{"reservationAffinity.consumeReservationType": "NO_RESERVATION"}},
		"any reservation":      {"n2-standard-2", `{"reservation": {"use": "any"}}`, nil, map[string]any{"reservationAffinity.consumeReservationType": "ANY_RESERVATION"}},
		"no reservation for spot": {"n2-standard-2", `{"reservation": {"use": "none"}}`, func(s *nstance.MachineSpec) { s.Market = nstance.Spot }, map[string]any{
			"reservationAffinity": nil, "scheduling.provisioningModel": "SPOT",
		}},
		"SEV_SNP": {"n2d-standard-2", `{"confidential": "SEV_SNP", "min_cpu_platform": "AMD Milan"}`, withImage, map[string]any{"confidentialInstanceConfig.confidentialInstanceType": "SEV_SNP", "scheduling.onHostMaintenance": "TERMINATE"}},
		"TDX":     {"c3-standard-4", `{"confidential": "TDX"}`, withImage, map[string]any{"confidentialInstanceConfig.confidentialInstanceType": "TDX", "scheduling.onHostMaintenance": "TERMINATE"}},
		"SEV that moves": {"n2d-standard-2", `{"confidential": "SEV", "on_host_maintenance": "MIGRATE"}`, withImage, map[string]any{
			"confidentialInstanceConfig.confidentialInstanceType": "SEV", "scheduling.onHostMaintenance": "MIGRATE", "scheduling.automaticRestart": true,
		}},
		"SEV on spot":     {"n2d-standard-2", `{"confidential": "SEV"}`, func(s *nstance.MachineSpec) { withImage(s); s.Market = nstance.Spot }, map[string]any{"scheduling.onHostMaintenance": "TERMINATE"}},
		"compact":         {"n2-standard-2", `{"placement_policy": "close", "on_host_maintenance": "TERMINATE"}`, nil, map[string]any{"resourcePolicies.0": policyPath + "close"}},
		"spread":          {"n2-standard-2", `{"placement_policy": "projects/test-project/regions/us-central1/resourcePolicies/apart"}`, nil, map[string]any{"resourcePolicies.0": policyPath + "apart"}},
		"sole tenancy":    {"n2-standard-2", `{"node_affinities": [{"key": "` + nodeGroup + `", "values": ["own"]}, {"key": "license", "operator": "NOT_IN", "values": ["none"]}]}`, nil, map[string]any{"scheduling.nodeAffinities.0.operator": "IN", "scheduling.nodeAffinities.1.operator": "NOT_IN", "scheduling.nodeAffinities.0.values.0": "own"}},
		"maintenance":     {"e2-small", `{"on_host_maintenance": "TERMINATE", "automatic_restart": false}`, nil, map[string]any{"scheduling.onHostMaintenance": "TERMINATE", "scheduling.automaticRestart": false}},
		"without either":  {"e2-small", `{}`, nil, map[string]any{"scheduling.onHostMaintenance": "MIGRATE", "scheduling.automaticRestart": true}},
		"neither of spot": {"e2-small", `{"on_host_maintenance": "MIGRATE", "automatic_restart": true}`, func(s *nstance.MachineSpec) { s.Market = nstance.Spot }, map[string]any{"scheduling.onHostMaintenance": "TERMINATE", "scheduling.automaticRestart": false}},
	} {
		t.Run(name, func(t *testing.T) {
			cloud, url := serve(t, equipped())
			p := open(t, url, "")
			s := rigged(t, c.machineType, c.args)
			if c.change != nil {
				c.change(&s)
			}
			require.NoError(t, validated(s))
			_, err := p.Create(t.Context(), s)
			require.NoError(t, err)
			i := shown(t, url, s.ID)
			for path, want := range c.want {
				require.Equal(t, want, at(t, i, path), path)
			}
			again, err := p.Create(t.Context(), s)
			require.NoError(t, err)
			require.Equal(t, s.ID, again.ID)
			require.Len(t, cloud.Machines(), 1)
		})
	}
}

// TestSpotNeverRestarts: a request for a spot machine says that it is not restarted. The
// reference of the API names true as the default, which the cloud refuses for one.
func TestSpotNeverRestarts(t *testing.T) {
	for _, model := range []string{"SPOT", "PREEMPTIBLE"} {
		cloud := gcetest.New(&gcetest.Options{Token: token})
		var sent map[string]any
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				body, err := io.ReadAll(r.Body)
				if err != nil || json.Unmarshal(body, &sent) != nil {
					t.Errorf("the request is %q: %v", body, err)
				}
				r.Body = io.NopCloser(bytes.NewReader(body))
			}
			cloud.ServeHTTP(w, r)
		}))
		s := spec(t)
		s.Market, s.Args = nstance.Spot, json.RawMessage(`{"spot_model": "`+model+`"}`)
		_, err := open(t, server.URL, "").Create(t.Context(), s)
		server.Close()
		require.NoError(t, cloud.Close())
		require.NoError(t, err)
		require.Equal(t, false, at(t, sent, "scheduling.automaticRestart"), model)
	}
}

func withImage(s *nstance.MachineSpec) { s.Image = capable }

// TestDisksArrive: every disk has its type, size, figures, key and marks, and goes with the
// machine.
func TestDisksArrive(t *testing.T) {
	cloud, url := serve(t, equipped())
	p := open(t, url, "")
	other := strings.Replace(kmsKey, "disks", "logs", 1)
	s := rigged(t, "n4-standard-2", `{
		"disk_type": "hyperdisk-balanced", "disk_size_gb": 20, "disk_iops": 4000, "disk_throughput": 200, "kms_key": "`+kmsKey+`",
		"disks": [
			{"type": "hyperdisk-extreme", "size_gb": 64, "iops": 5000},
			{"type": "hyperdisk-balanced", "snapshot": "data", "kms_key": "`+kmsKey+`"},
			{"type": "hyperdisk-throughput", "size_gb": 2048, "throughput": 100}
		]}`)
	require.NoError(t, validated(s))
	m, err := p.Create(t.Context(), s)
	require.NoError(t, err)
	disks := cloud.DiskStates()
	require.Len(t, disks, 4)
	for i, want := range []gcetest.DiskState{
		{Type: "hyperdisk-balanced", SizeGB: 20, IOPS: 4000, Throughput: 200, Key: kmsKey},
		{Type: "hyperdisk-extreme", SizeGB: 64, IOPS: 5000, Key: kmsKey},
		{Type: "hyperdisk-balanced", Snapshot: "data", Key: kmsKey},
		{Type: "hyperdisk-throughput", SizeGB: 2048, Throughput: 100, Key: kmsKey},
	} {
		require.Equal(t, string(s.ID), disks[i].Labels["nstance-instance-id"])
		want.Path, want.Labels = disks[i].Path, disks[i].Labels
		require.Equal(t, want, disks[i])
	}
	require.Eventually(t, func() bool { return nstance.CodeOf(p.Delete(t.Context(), m)) == nstance.NotFound }, time.Minute, time.Millisecond)
	require.Empty(t, cloud.DiskStates())

	s = rigged(t, "e2-small", `{"kms_key": "`+other+`"}`)
	require.NoError(t, validated(s))
	_, err = p.Create(t.Context(), s)
	require.ErrorIs(t, err, nstance.Invalid)
	require.ErrorContains(t, err, "cloudkms.cryptoKeyVersions.useToEncrypt", "the cloud's own words")
}

// TestBoundsOfArgs: what is as large as the cloud permits is accepted, and nothing larger.
func TestBoundsOfArgs(t *testing.T) {
	labels := func(n int) string {
		all := map[string]string{}
		for i := range n {
			all["l"+strconv.Itoa(i)] = "x"
		}
		b, err := json.Marshal(map[string]any{"labels": all})
		require.NoError(t, err)
		return string(b)
	}
	for field, c := range map[string]struct{ most, more string }{
		"args.labels":           {labels(53), labels(54)}, // and 11 of the system
		"args.max_run_duration": {`{"max_run_duration": "2880h"}`, `{"max_run_duration": "2880h0m1s"}`},
	} {
		require.NoError(t, validated(rigged(t, "e2-small", c.most)), field)
		require.ErrorContains(t, validated(rigged(t, "e2-small", c.more)), field)
	}
}

// TestArgsRefused: what no machine can have is refused by validation, which names field and
// remedy, and nothing is sent.
func TestArgsRefused(t *testing.T) {
	for _, c := range []struct{ machineType, args, field string }{
		{"n2-standard-2", `{"local_ssds": 3}`, "args.local_ssds"},
		{"n2-standard-16", `{"local_ssds": 1}`, "args.local_ssds"},
		{"n1-standard-1", `{"local_ssds": 9}`, "args.local_ssds"},
		{"c2-standard-4", `{"local_ssds": 16}`, "args.local_ssds"},
		{"e2-small", `{"local_ssds": 1}`, "args.local_ssds"},
		{"c3-standard-4", `{"local_ssds": 1}`, "args.local_ssds"},
		{"n2-standard-2", `{"local_ssd_interface": "NVME"}`, "args.local_ssd_interface"},
		{"n2-standard-2", `{"local_ssds": 1, "local_ssd_interface": "SATA"}`, "args.local_ssd_interface"},
		{"n2-standard-2", `{"disks": [{"type": "local-ssd"}]}`, "args.disks[0].type"},
		{"n2-standard-2", `{"disks": [{"size_gb": 5}]}`, "args.disks[0].size_gb"},
		{"n2-standard-2", `{"disks": [{"device_name": "a"}, {"device_name": "a"}]}`, "args.disks[1].device_name"},
		{"n2-standard-2", `{"disks": [{"device_name": "A b"}]}`, "args.disks[0].device_name"},
		{"n2-standard-2", `{"disks": [{"snapshot": "A b"}]}`, "args.disks[0].snapshot"},
		{"n2-standard-2", `{"disks": [{"kms_key": "disks"}]}`, "args.disks[0].kms_key"},
		{"n2-standard-2", `{"disks": [{"iops": 5000, "size_gb": 100}]}`, "args.disks[0].iops"},
		{"n2-standard-2", `{"disks": [{"type": "pd-ssd", "throughput": 500, "size_gb": 100}]}`, "args.disks[0].throughput"},
		{"n2-standard-2", `{"disks": [{"type": "hyperdisk-extreme", "throughput": 500, "size_gb": 100}]}`, "args.disks[0].throughput"},
		{"n2-standard-2", `{"disks": [{"type": "hyperdisk-balanced", "iops": 100, "size_gb": 100}]}`, "args.disks[0].iops"},
		{"n2-standard-2", `{"disks": [{"type": "hyperdisk-balanced", "iops": 5000}]}`, "args.disks[0].size_gb"},
		{"n2-standard-2", `{"disk_type": "pd-extreme", "disk_iops": 500, "disk_size_gb": 100}`, "args.disk_iops"},
		{"n4-standard-2", `{"disk_type": "hyperdisk-balanced", "disk_throughput": 500}`, "args.disk_size_gb"},
		{"e2-small", `{"disks": [{"type": "hyperdisk-balanced"}]}`, "args.disks[0].type"},
		{"e2-small", `{"kms_key": "projects/p/keys/k"}`, "args.kms_key"},
		{"e2-small", `{"kms_service_account": "nobody", "kms_key": "` + kmsKey + `"}`, "args.kms_service_account"},
		{"e2-small", `{"kms_service_account": "keys@test-project.iam.gserviceaccount.com"}`, "args.kms_service_account"},
		{"e2-small", `{"alias_ranges": [{"range": "10.0.1.0/24"}]}`, "args.alias_ranges[0].range"},
		{"e2-small", `{"alias_ranges": [{"range": "/33"}]}`, "args.alias_ranges[0].range"},
		{"e2-small", `{"alias_ranges": [{"range": "/24", "name": "A"}]}`, "args.alias_ranges[0].name"},
		{"e2-small", `{"alias_ranges": [{"range": "/24"}], "stack_type": "IPV6_ONLY"}`, "args.alias_ranges"},
		{"e2-small", `{"network_tier": "STANDARD"}`, "args.network_tier"},
		{"e2-small", `{"external_ip": true, "stack_type": "IPV6_ONLY"}`, "args.external_ip"},
		{"e2-small", `{"external_ipv6": true}`, "args.external_ipv6"},
		{"e2-small", `{"stack_type": "IPV6"}`, "args.stack_type"},
		{"e2-small", `{"interfaces": [{"nic_type": "GVNIC"}]}`, "args.interfaces[0].network"},
		{"e2-small", `{"interfaces": [{"network": "a", "subnet": "b"}]}`, "args.interfaces[0].network"},
		{"e2-small", `{"interfaces": [{"network": "a", "external_ipv6": true}]}`, "args.interfaces[0].external_ipv6"},
		{"n2-standard-2", `{"interfaces": [{"network": "a"}, {"network": "b"}]}`, "args.interfaces"},
		{"n2-standard-2", `{"reservation": {"use": "none", "name": "kept"}}`, "args.reservation"},
		{"n2-standard-2", `{"reservation": {"use": "some"}}`, "args.reservation.use"},
		{"n2-standard-2", `{"reservation": {"name": "A b"}}`, "args.reservation.name"},
		{"n2-standard-2", `{"reservation": {"name": "kept"}, "node_affinities": [{"key": "license", "values": ["byol"]}]}`, "args.reservation"},
		{"n2-standard-2", `{"node_affinities": [{"key": "license", "values": []}]}`, "args.node_affinities[0].values"},
		{"n2-standard-2", `{"node_affinities": [{"key": "-", "values": ["a"]}]}`, "args.node_affinities[0].key"},
		{"n2-standard-2", `{"node_affinities": [{"key": "license", "operator": "IS", "values": ["a"]}]}`, "args.node_affinities[0].operator"},
		{"n2-standard-2", `{"node_affinities": [{"key": "license", "values": ["a"]}], "placement_policy": "close"}`, "args.placement_policy"},
		{"n2-standard-2", `{"placement_policy": "A b"}`, "args.placement_policy"},
		{"e2-small", `{"placement_policy": "apart"}`, "args.placement_policy"},
		{"e2-small", `{"confidential": "SEV"}`, "args.confidential"},
		{"n2d-standard-2", `{"confidential": "TDX"}`, "args.confidential"},
		{"c3-standard-4", `{"confidential": "SEV"}`, "args.confidential"},
		{"n2d-standard-2", `{"confidential": "SEV_SNP"}`, "args.min_cpu_platform"},
		{"n2d-standard-2", `{"confidential": "SEV", "local_ssds": 1, "local_ssd_interface": "SCSI"}`, "args.local_ssd_interface"},
		{"n2d-standard-2", `{"confidential": "SEV", "nested_virtualization": true}`, "args.nested_virtualization"},
		{"c3-standard-4", `{"confidential": "TDX", "on_host_maintenance": "MIGRATE"}`, "args.on_host_maintenance"},
		{"n1-standard-1", `{"accelerators": [{"type": "nvidia-tesla-t4", "count": 1}], "on_host_maintenance": "MIGRATE"}`, "args.on_host_maintenance"},
		{"e2-small", `{"on_host_maintenance": "STOP"}`, "args.on_host_maintenance"},
	} {
		t.Run(c.machineType+" "+c.args, func(t *testing.T) {
			s := rigged(t, c.machineType, c.args)
			var e *nstance.Error
			require.ErrorAs(t, validated(s), &e)
			require.Equal(t, c.field, e.Field)
			require.NotEmpty(t, e.Remedy)
			require.Equal(t, nstance.Invalid, nstance.CodeOf(e))
			cloud, p := newCloud(t, equipped())
			_, err := p.Create(t.Context(), s)
			require.ErrorIs(t, err, nstance.Invalid)
			require.Empty(t, cloud.Machines())
		})
	}
	t.Run("a reservation for spot", func(t *testing.T) {
		s := rigged(t, "n2-standard-2", `{"reservation": {"name": "kept"}}`)
		s.Market = nstance.Spot
		require.ErrorContains(t, validated(s), "args.reservation")
	})
	t.Run("local SSDs that are hibernated", func(t *testing.T) {
		s := rigged(t, "n2-standard-2", `{"local_ssds": 1}`)
		s.Park = nstance.ParkHibernated
		require.ErrorContains(t, validated(s), "args.local_ssds")
		s.Park = nstance.ParkStopped
		require.NoError(t, validated(s))
	})
}

// TestHostsWithoutRoom: a reservation and sole-tenant nodes that are full are no capacity,
// so that other machine types are tried.
func TestHostsWithoutRoom(t *testing.T) {
	for name, c := range map[string]struct {
		room       int
		args, text string
	}{
		"a reservation":                     {2, `{"reservation": {"name": "kept"}}`, "does not have available resources"},
		"a sole-tenant node":                {1, `{"node_affinities": [{"key": "` + nodeGroup + `", "values": ["own"]}]}`, "No feasible nodes"},
		"no node with the label":            {0, `{"node_affinities": [{"key": "license", "values": ["none"]}]}`, "No feasible nodes"},
		"a reservation of other properties": {0, `{"reservation": {"name": "kept"}, "labels": {"other": "type"}}`, "No available resources"},
	} {
		t.Run(name, func(t *testing.T) {
			cloud, p := newCloud(t, equipped())
			machineType := "n2-standard-2"
			if strings.Contains(c.args, "other") {
				machineType = "n2-standard-16"
			}
			for range c.room {
				_, err := p.Create(t.Context(), rigged(t, machineType, c.args))
				require.NoError(t, err)
			}
			_, err := p.Create(t.Context(), rigged(t, machineType, c.args))
			require.Equal(t, nstance.Capacity, nstance.CodeOf(err), "%v", err)
			require.ErrorContains(t, err, c.text)
			require.Len(t, cloud.Machines(), c.room)
		})
	}
}

// TestCloudRefuses: what does not show offline is refused by the cloud for good.
func TestCloudRefuses(t *testing.T) {
	for _, c := range []struct{ machineType, subnet, args, text string }{
		{"n2-standard-2", "default", `{"placement_policy": "close"}`, "TERMINATE"},
		{"n2-standard-2", "default", `{"placement_policy": "none"}`, "not found"},
		{"n2-standard-2", "default", `{"reservation": {"name": "none"}}`, "do not exist"},
		{"n2-standard-2", "default", `{"stack_type": "IPV4_IPV6"}`, "IPV4_ONLY"},
		{"n2-standard-2", "inner", `{"stack_type": "IPV4_IPV6", "external_ipv6": true}`, "no external IPv6"},
		{"n2-standard-2", "default", `{"alias_ranges": [{"range": "/24", "name": "services"}]}`, "secondary range"},
		{"n2-standard-2", "default", `{"interfaces": [{"network": "default"}]}`, "distinct"},
		{"n2-standard-2", "default", `{"disks": [{"snapshot": "none"}]}`, "not found"},
		{"n2-standard-2", "default", `{"disks": [{"snapshot": "data", "size_gb": 10}]}`, "smaller"},
		{"n2d-standard-2", "default", `{"confidential": "SEV"}`, "SEV_CAPABLE"},
	} {
		t.Run(c.args, func(t *testing.T) {
			cloud, p := newCloud(t, equipped())
			s := rigged(t, c.machineType, c.args)
			s.Subnet = c.subnet
			require.NoError(t, validated(s))
			_, err := p.Create(t.Context(), s)
			require.Equal(t, nstance.Invalid, nstance.CodeOf(err), "%v", err)
			require.ErrorContains(t, err, c.text)
			require.Empty(t, cloud.Machines())
		})
	}
}

// TestAddresses: internal addresses come first, and IPv6 addresses are among them.
func TestAddresses(t *testing.T) {
	_, url := serve(t, equipped())
	p := open(t, url, "")
	s := rigged(t, "e2-standard-4", `{"external_ip": true, "stack_type": "IPV4_IPV6", "external_ipv6": true, "interfaces": [{"subnet": "inner", "stack_type": "IPV4_IPV6"}]}`)
	s.Subnet = "dual"
	_, err := p.Create(t.Context(), s)
	require.NoError(t, err)
	m, err := p.Get(t.Context(), s.ID)
	require.NoError(t, err)
	var got []string
	for _, a := range m.Addresses {
		got = append(got, a.String())
	}
	require.Equal(t, []string{"10.2.0.2", "10.3.0.2", "fd20:1:2:3:0:1::"}, got[:3])
	require.Equal(t, netip.MustParseAddr("2600:1900:4000:0:0:1::").String(), got[4])
	require.True(t, strings.HasPrefix(got[3], "203.0.113."))
}

// TestParkWithLocalSSD: a machine with local SSDs can be stopped, and is not suspended.
func TestParkWithLocalSSD(t *testing.T) {
	_, p := newCloud(t, equipped())
	s := rigged(t, "n2-standard-2", `{"local_ssds": 1}`)
	_, err := p.Create(t.Context(), s)
	require.NoError(t, err)
	var m nstance.Machine
	status := func(want nstance.MachineStatus) func() bool {
		return func() bool {
			m, err = p.Get(t.Context(), s.ID)
			return err == nil && m.Status == want
		}
	}
	require.Eventually(t, status(nstance.StatusRunning), time.Minute, time.Millisecond)
	require.ErrorContains(t, p.Park(t.Context(), m, nstance.ParkHibernated), "local SSDs")
	require.NoError(t, p.Park(t.Context(), m, nstance.ParkStopped))
	require.Eventually(t, status(nstance.StatusStopped), time.Minute, time.Millisecond)
	require.NoError(t, p.Wake(t.Context(), m))
	require.Eventually(t, status(nstance.StatusRunning), time.Minute, time.Millisecond)
}
