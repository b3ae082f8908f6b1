package azure_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/azure"
	"github.com/nstance-go/nstance/provider/testcloud"
)

// TestPermissions makes every call with the documented role only, and again without each
// of its actions: each is needed.
func TestPermissions(t *testing.T) {
	actions := role(t)
	t.Run("suffice", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { require.Empty(t, exercise(t, actions)) })
	})
	for _, action := range actions {
		t.Run(action, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				left := slices.DeleteFunc(slices.Clone(actions), func(a string) bool { return a == action })
				errs := exercise(t, left)
				require.NotEmpty(t, errs, "nothing needs it")
				for _, err := range errs {
					require.Equal(t, nstance.Denied, nstance.CodeOf(err), "%v", err)
				}
			})
		})
	}
}

// exercise makes every call of the provider, and returns the refusals. The objects for a
// call are prepared by a caller with all permissions.
func exercise(t *testing.T, actions []string) (errs []error) {
	t.Helper()
	o := equipped()
	o.DualStack = []string{subnetA}
	o.Delays = testcloud.Delays{Start: time.Minute, Stop: time.Minute}
	o.Tokens = map[string][]string{"secret": nil, "limited": actions}
	c, connect := within(t, o)
	all := connect("secret", "")
	check := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	owner := newSpec(t).Owner
	made := func(p *azure.Provider, change func(*nstance.MachineSpec)) nstance.Machine {
		s := newSpec(t)
		if change != nil {
			change(&s)
		}
		m, err := p.Create(t.Context(), s)
		check(err)
		return m
	}
	m := made(all, nil)
	p := connect("limited", strings.ReplaceAll(m.ProviderID, "Microsoft.Compute/virtualMachines", "Microsoft.Network/networkInterfaces"))
	made(p, func(s *nstance.MachineSpec) {
		s.Args = args(t, map[string]any{
			"network_security_group":   "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/networkSecurityGroups/n",
			"user_assigned_identities": []string{"/subscriptions/s/resourceGroups/g/providers/Microsoft.ManagedIdentity/userAssignedIdentities/i"},
		})
	})
	made(p, func(s *nstance.MachineSpec) { s.Args = args(t, everything()) })
	made(p, func(s *nstance.MachineSpec) {
		s.Args = args(t, map[string]any{"capacity_reservation_group": reservation})
	})
	made(p, func(s *nstance.MachineSpec) { s.Args = args(t, map[string]any{"availability_set": set}) })
	c.FailCreates(1, "ZonalAllocationFailed", "no")
	broken := made(all, func(s *nstance.MachineSpec) { s.Args = args(t, everything()) })
	<-time.After(10 * time.Minute)
	_, err := p.Get(t.Context(), m.ID)
	check(err)
	for _, err := range p.List(t.Context(), owner) {
		check(err)
	}
	_, err = p.ResolveImage(t.Context(), nstance.ImageQuery{Owner: "pictures/house", Name: "worker-x"})
	check(err)
	_, err = p.FreeAddresses(t.Context(), []string{subnetA})
	check(err)
	_, err = p.TypeArchs(t.Context(), []string{"Standard_D2s_v5"})
	check(err)
	lb := nstance.LoadBalancer{ID: pool}
	check(p.JoinBalancer(t.Context(), lb, []nstance.Machine{m}))
	_, err = p.BalancerMembers(t.Context(), lb)
	check(err)
	check(p.LeaveBalancer(t.Context(), lb, []nstance.Machine{m}))
	_, err = p.ConsoleOutput(t.Context(), m)
	check(err)
	check(p.Park(t.Context(), m, nstance.ParkStopped))
	<-time.After(2 * time.Minute)
	check(p.Wake(t.Context(), m))
	<-time.After(2 * time.Minute)
	check(p.TakeAddress(t.Context(), c.Prefix(subnetA).Addr().Next().String()))
	for _, m := range []nstance.Machine{m, broken} {
		for range 8 {
			err = p.Delete(t.Context(), m)
			if nstance.CodeOf(err) == nstance.NotFound {
				break
			}
			check(err)
			<-time.After(time.Minute)
		}
	}
	return errs
}
