package azure_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/azure"
	"github.com/nstance-go/nstance/azure/armtest"
	"github.com/nstance-go/nstance/provider/testcloud"
)

const (
	deleteDisk = "DisksClient.BeginDelete"
	deleteIP   = "PublicIPAddressesClient.BeginDelete"
)

// inZone returns a spec in a subnet and a zone, with a part of each kind that has a PUT of its
// own.
func inZone(t *testing.T, subnet, zone string) nstance.MachineSpec {
	t.Helper()
	s := newSpec(t)
	s.Subnet, s.Args = subnet+"?zone="+zone, args(t, map[string]any{
		"public_ip": true, "data_disks": []map[string]any{{"size_gb": 64, "type": "PremiumV2_LRS", "iops": 4000}},
	})
	return s
}

// refuse has the next create of a machine refused at once. Its parts stay.
func (s site) refuse(spec nstance.MachineSpec) {
	s.t.Helper()
	refusal := &armtest.Refusal{Status: http.StatusConflict, Code: "SkuNotAvailable", Message: "sold out"}
	s.cloud.Faults.Next(putVM, testcloud.Fault{Answer: refusal.ServeHTTP})
	_, err := s.p.Create(s.t.Context(), spec)
	code(s.t, nstance.Capacity, err)
}

// deletes returns how many parts were asked to be deleted.
func (s site) deletes() int {
	calls := s.cloud.Faults.Calls()
	return calls[deleteNIC] + calls[deleteDisk] + calls[deleteIP]
}

// TestAnotherShape: what was made for a shape that was refused is not used for another one
// where it is in another place or of another kind, and is used where it is not.
func TestAnotherShape(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*nstance.MachineSpec)
		subnet string
		zone   string
		kind   string
		nics   int // PUTs of the interface: also to give it its public address and to take that away
		disks  int
	}{
		"same":   {func(*nstance.MachineSpec) {}, subnetA, "1", "PremiumV2_LRS", 2, 1},
		"subnet": {func(s *nstance.MachineSpec) { s.Subnet = subnetB + "?zone=2" }, subnetB, "2", "PremiumV2_LRS", 5, 2},
		"zone":   {func(s *nstance.MachineSpec) { s.Subnet = subnetA + "?zone=2" }, subnetA, "2", "PremiumV2_LRS", 2, 2},
		"kind": {func(s *nstance.MachineSpec) {
			s.Args = []byte(strings.Replace(string(s.Args), "PremiumV2_LRS", "UltraSSD_LRS", 1))
		}, subnetA, "1", "UltraSSD_LRS", 2, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, nil)
			spec := inZone(t, subnetA, "1")
			s.refuse(spec)
			c.change(&spec)
			m, err := s.p.Create(t.Context(), spec)
			require.NoError(t, err)
			require.Equal(t, c.zone, m.Zone)
			require.Contains(t, s.read("Microsoft.Network/networkInterfaces", string(m.ID)), `"`+c.subnet+`"`)
			disk := s.read("Microsoft.Compute/disks", string(m.ID)+"-data-0")
			require.Contains(t, disk, `"zones":["`+c.zone+`"]`)
			require.Contains(t, disk, c.kind)
			require.Equal(t, c.nics, s.cloud.Faults.Calls()[putNIC])
			require.Equal(t, c.disks, s.cloud.Faults.Calls()[putDisk])
			gone(t, s.cloud, s.p, m)
		})
	}
}

// TestReservedInterface: an interface that Azure still holds for the refused machine is asked
// for later, with its refusal in the error.
func TestReservedInterface(t *testing.T) {
	t.Parallel()
	s := newSite(t, &armtest.Options{Network: 20 * time.Millisecond})
	spec := newSpec(t)
	s.refuse(spec)
	spec.Subnet = subnetB
	held := &armtest.Refusal{Status: http.StatusBadRequest, Code: "NicReservedForAnotherVm", Message: "reserved for 180 seconds"}
	s.cloud.Faults.Next(deleteNIC, testcloud.Fault{Answer: held.ServeHTTP})
	_, err := s.p.Create(t.Context(), spec)
	code(t, nstance.Unavailable, err)
	require.ErrorContains(t, err, "it is in subnet "+subnetA)
	require.ErrorContains(t, err, "reserved for 180 seconds")
	m, err := s.p.Create(t.Context(), spec)
	require.NoError(t, err)
	require.Contains(t, s.read("Microsoft.Network/networkInterfaces", string(m.ID)), subnetB)
}

// TestPartsInUse: the parts of a machine that exists stay, also before Azure shows it, and so
// do those with other marks.
func TestPartsInUse(t *testing.T) {
	t.Parallel()
	s := newSite(t, &armtest.Options{Delays: testcloud.Delays{Visible: time.Hour}})
	hidden := inZone(t, subnetA, "1")
	_, err := s.p.Create(t.Context(), hidden)
	require.NoError(t, err)
	s.cloud.SetDelays(testcloud.Delays{})
	shown := inZone(t, subnetA, "1")
	_, err = s.p.Create(t.Context(), shown)
	require.NoError(t, err)
	left := s.cloud.Left()

	other, err := azure.New(options(t, s.server))
	require.NoError(t, err)
	ask := func(spec nstance.MachineSpec, subnet string, want nstance.Code) {
		t.Helper()
		spec.Subnet = subnet
		_, err := other.Create(t.Context(), spec)
		code(t, want, err)
		require.ElementsMatch(t, left, s.cloud.Left())
	}
	ask(shown, subnetB+"?zone=2", nstance.Conflict)
	ask(shown, subnetA+"?zone=2", nstance.Conflict)
	require.Zero(t, s.deletes())
	ask(hidden, subnetA+"?zone=2", nstance.Unavailable)
	deletes := s.deletes()

	s.refuse(newSpec(t))
	foreign := newSpec(t)
	s.refuse(foreign)
	left = s.cloud.Left()
	foreign.Owner.Shard = "b"
	ask(foreign, subnetB, nstance.Conflict)
	require.Equal(t, deletes, s.deletes())
}

// TestZoneOfPublicAddress: a public address in one zone, which the interface has already, is
// replaced by one for all zones.
func TestZoneOfPublicAddress(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	spec := inZone(t, subnetA, "1")
	tags := `{"nstance-instance-id": "` + string(spec.ID) + `", "nstance-installation": "inst", "nstance-cluster-id": "c", "nstance-shard": "a", "nstance-tenant": "default"}`
	s.put("Microsoft.Network/publicIPAddresses/"+string(spec.ID)+"-ipv4",
		`{"location": "westeurope", "sku": {"name": "Standard"}, "zones": ["1"], "tags": `+tags+`, "properties": {"publicIPAllocationMethod": "Static"}}`)
	s.refuse(spec)
	require.Zero(t, s.cloud.Faults.Calls()[deleteIP])
	spec.Subnet = subnetA + "?zone=2"
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	m, err := s.p.Create(ctx, spec)
	require.NoError(t, err)
	require.NotContains(t, s.read("Microsoft.Network/publicIPAddresses", string(spec.ID)+"-ipv4"), "zones")
	gone(t, s.cloud, s.p, m)
}
