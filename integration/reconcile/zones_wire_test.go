//go:build servers

package reconcile_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/provider/testcloud"
)

// A zonedSite is a cloud with a subnet in each of two zones.
type zonedSite struct {
	newSite        func(testcloud.Hypervisor) *site
	typ            string
	subnets, zones []string
}

var zonedSites = map[string]zonedSite{
	"ec2": {
		newSite: ec2Site, typ: "m5.large",
		subnets: []string{"subnet-0123456789abcdef0", "subnet-0123456789abcdef1"}, zones: []string{"us-east-1a", "us-east-1b"},
	},
	"gce": {
		newSite: func(h testcloud.Hypervisor) *site { return gceSiteIn(h, "us-central1-b") }, typ: "e2-small",
		subnets: []string{"default", "default?zone=us-central1-b"}, zones: []string{"us-central1-a", "us-central1-b"},
	},
	"azure": {
		newSite: armSite, typ: "Standard_D2s_v5",
		subnets: []string{azureSubnet + "?zone=1", azureSubnet + "?zone=3"}, zones: []string{"1", "3"},
	},
}

// site returns the cloud. Machines are where the group has them made.
func (z zonedSite) site(h testcloud.Hypervisor) *site {
	s := z.newSite(h)
	shape := s.shape
	s.shape = func(spec *nstance.MachineSpec) {
		subnet := spec.Subnet
		shape(spec)
		spec.Subnet = subnet
	}
	return s
}

// A zonedCloud is one whose provider knows the zones of subnets.
type zonedCloud struct {
	*wireCloud
	nstance.SubnetLocator
}

// members returns how many machines a cloud has in each of the site's zones.
func (z zonedSite) members(o *wireCloud) (n [2]int) {
	for _, m := range o.site.cloud.Machines() {
		for i, zone := range z.zones {
			if m.Zone == zone && !m.Status.Dead() {
				n[i]++
			}
		}
	}
	return n
}

// TestServersSpreadByZone: members are spread over the zones of each cloud; where a zone has no
// capacity any more they are made in the other one, and again in both once it has.
func TestServersSpreadByZone(t *testing.T) {
	for name, z := range zonedSites {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, simcloud.Options{})
				overHTTP(z.site)(w)
				defer w.close()
				o := w.outside.(*wireCloud)
				w.wrap = func(to *leaderEnv) { to.provider = zonedCloud{o, o.provider.(nstance.SubnetLocator)} }
				g := webGroup(4)
				g.Definition.InstanceTypes, g.Definition.Subnets = []string{z.typ}, z.subnets
				g.Spread.By = nstance.SpreadZone
				require.NoError(t, g.Spread.MaxShare.UnmarshalText([]byte("50%")))
				w.startLeader(g)
				w.advance(10 * time.Minute)
				w.requireMembers(4)
				require.Equal(t, [2]int{2, 2}, z.members(o))

				first := testcloud.Shape{Type: z.typ, Zone: z.zones[0], Spot: true}
				o.site.capacity.Set(first, 0)
				for _, m := range o.site.cloud.Machines() {
					if m.Zone == z.zones[0] {
						require.NoError(t, o.site.cloud.Reclaim(m.Handle, 30*time.Second))
					}
				}
				o.site.capacity.Set(first, 0) // also what the reclaimed ones leave
				w.advance(10 * time.Minute)
				w.requireMembers(4)
				require.Equal(t, [2]int{0, 4}, z.members(o))

				o.site.capacity.Set(first, 9)
				w.advance(time.Hour) // until the zone is tried again
				for _, m := range o.site.cloud.Machines()[:2] {
					require.NoError(t, o.site.cloud.Fail(m.Handle))
				}
				w.advance(15 * time.Minute)
				w.requireMembers(4)
				require.Equal(t, [2]int{2, 2}, z.members(o))
			})
		})
	}
}
