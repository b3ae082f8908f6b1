package providertest

import (
	"context"
	"encoding/json"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
)

// An abilityPromise is one sentence of the contract of an ability.
type abilityPromise struct {
	name  string
	check func(*bench, provider.Abilities)
}

var accountPromises = []abilityPromise{{"it has a name that stays", checkAccount}}

var imagePromises = []abilityPromise{
	{"machines start from the resolved image", checkImage},
	{"two looks agree", checkImageTwice},
	{"a name that nothing fits is not found", checkNoImage},
	{"a context that has ended is no answer", checkImageCancelled},
}

var subnetPromises = []abilityPromise{
	{"every subnet is counted", checkFree},
	{"a machine takes an address", checkFreeFalls},
	{"an unknown subnet is left out", checkNoSubnet},
	{"a context that has ended is no answer", checkFreeCancelled},
}

var typePromises = []abilityPromise{
	{"every type runs something", checkTypes},
	{"an unknown type is missing", checkNoType},
	{"a context that has ended is no answer", checkTypesCancelled},
}

var balancerPromises = []abilityPromise{
	{"a machine that joins is a member", checkJoin},
	{"joining again changes nothing", checkJoinAgain},
	{"a machine that leaves is no member any more, and the others stay", checkLeave},
	{"leaving again changes nothing", checkLeaveAgain},
	{"leaving as a machine that is gone changes nothing", checkLeaveGone},
	{"an unknown load balancer is not found", checkNoBalancer},
	{"unacceptable args are refused by name", checkBalancerArgs},
	{"a context that has ended fails every call and is no answer", checkBalancerCancelled},
}

// runAbilities checks the abilities for which the subject names something to
// use them on.
func runAbilities(t *testing.T, newSubject func(t *testing.T) Subject) {
	s := newSubject(t)
	for _, a := range []struct {
		name     string
		wanted   bool
		promises []abilityPromise
	}{
		{"account", provider.AbilitiesOf(s.Provider).Account != nil, accountPromises},
		{"images", s.Image != nstance.ImageQuery{}, imagePromises},
		{"subnets", len(s.Subnets) > 0, subnetPromises},
		{"types", len(s.Types) > 0, typePromises},
		{"load balancers", s.Balancer.ID != "", balancerPromises},
	} {
		if !a.wanted {
			continue
		}
		for _, p := range a.promises {
			t.Run(a.name+"/"+p.name, func(t *testing.T) {
				b := newBench(t, newSubject(t))
				p.check(b, b.abilities(a.name))
			})
		}
	}
}

// abilities requires the provider to have the named one.
func (b *bench) abilities(name string) provider.Abilities {
	b.Helper()
	can := provider.AbilitiesOf(b.Provider)
	has := map[string]bool{
		"account": can.Account != nil, "images": can.Images != nil, "subnets": can.Subnets != nil, "types": can.Types != nil, "load balancers": can.Balancers != nil,
	}
	require.True(b, has[name], "the subject names something for an ability that the provider does not have")
	return can
}

// ended returns a context that is over.
func (b *bench) ended() context.Context {
	ctx, cancel := context.WithCancel(b.Context())
	cancel()
	return ctx
}

func checkAccount(b *bench, can provider.Abilities) {
	first, err := can.Account.Account(b.Context())
	require.NoError(b, err)
	require.NotEmpty(b, first)
	again, err := can.Account.Account(b.Context())
	require.NoError(b, err)
	require.Equal(b, first, again)
}

func checkImage(b *bench, can provider.Abilities) {
	id, err := can.Images.ResolveImage(b.Context(), b.Image)
	require.NoError(b, err)
	require.NotEmpty(b, id)
	s := b.spec()
	if s.Image = id; b.Image.Arch != "" {
		s.Arch = b.Image.Arch
	}
	b.create(s)
}

func checkImageTwice(b *bench, can provider.Abilities) {
	first, err := can.Images.ResolveImage(b.Context(), b.Image)
	require.NoError(b, err)
	second, err := can.Images.ResolveImage(b.Context(), b.Image)
	require.NoError(b, err)
	require.Equal(b, first, second)
}

func checkNoImage(b *bench, can provider.Abilities) {
	q := b.Image
	q.Name = "no-such-image-" + b.owner.Installation
	id, err := can.Images.ResolveImage(b.Context(), q)
	b.refused(nstance.NotFound, err)
	require.Empty(b, id)
}

func checkImageCancelled(b *bench, can provider.Abilities) {
	id, err := can.Images.ResolveImage(b.ended(), b.Image)
	b.refused(nstance.Unavailable, err)
	require.Empty(b, id)
}

func checkFree(b *bench, can provider.Abilities) {
	free, err := can.Subnets.FreeAddresses(b.Context(), b.Subnets)
	require.NoError(b, err)
	for _, s := range b.Subnets {
		require.Contains(b, free, s)
		require.GreaterOrEqual(b, free[s], 0)
	}
}

func checkFreeFalls(b *bench, can provider.Abilities) {
	subnet := b.Subnets[0]
	before, err := can.Subnets.FreeAddresses(b.Context(), b.Subnets)
	require.NoError(b, err)
	s := b.spec()
	s.Subnet = subnet
	b.create(s)
	b.eventually("the address still counts as free", func(ctx context.Context) (bool, error) {
		now, err := can.Subnets.FreeAddresses(ctx, b.Subnets)
		return now[subnet] < before[subnet], err
	})
}

func checkNoSubnet(b *bench, can provider.Abilities) {
	unknown := "no-such-subnet-" + b.owner.Installation
	free, err := can.Subnets.FreeAddresses(b.Context(), []string{unknown})
	require.False(b, err == nil && free[unknown] > 0, "%d addresses are free in a subnet that is not there", free[unknown])
}

func checkFreeCancelled(b *bench, can provider.Abilities) {
	free, err := can.Subnets.FreeAddresses(b.ended(), b.Subnets)
	b.refused(nstance.Unavailable, err)
	require.Empty(b, free)
}

func checkTypes(b *bench, can provider.Abilities) {
	archs, err := can.Types.TypeArchs(b.Context(), b.Types)
	require.NoError(b, err)
	for _, name := range b.Types {
		require.NotEmpty(b, archs[name], "type %s", name)
	}
}

func checkNoType(b *bench, can provider.Abilities) {
	const unknown = "no-such-type"
	archs, err := can.Types.TypeArchs(b.Context(), append(slices.Clone(b.Types), unknown))
	require.NoError(b, err)
	require.NotContains(b, archs, unknown)
	require.Contains(b, archs, b.Types[0], "one unknown name hides no other")
}

func checkTypesCancelled(b *bench, can provider.Abilities) {
	archs, err := can.Types.TypeArchs(b.ended(), b.Types)
	b.refused(nstance.Unavailable, err)
	require.Empty(b, archs)
}

// member waits until m is a member of the load balancer, or is none.
func (b *bench) member(can provider.Abilities, m nstance.Machine, want bool) {
	b.Helper()
	b.eventually("BalancerMembers never came round", func(ctx context.Context) (bool, error) {
		in, err := can.Balancers.BalancerMembers(ctx, b.Balancer)
		return slices.Contains(in, m.ProviderID) == want, err
	})
}

// joined makes n machines and lets them join.
func (b *bench) joined(can provider.Abilities, n int) []nstance.Machine {
	b.Helper()
	var machines []nstance.Machine
	for range n {
		machines = append(machines, b.create(b.spec()))
	}
	require.NoError(b, can.Balancers.JoinBalancer(b.Context(), b.Balancer, machines))
	b.Cleanup(func() { // before the machines go
		_ = can.Balancers.LeaveBalancer(context.WithoutCancel(b.Context()), b.Balancer, machines)
	})
	for _, m := range machines {
		b.member(can, m, true)
	}
	return machines
}

func checkJoin(b *bench, can provider.Abilities) { b.joined(can, 2) }

func checkJoinAgain(b *bench, can provider.Abilities) {
	m := b.joined(can, 1)
	require.NoError(b, can.Balancers.JoinBalancer(b.Context(), b.Balancer, m))
	b.member(can, m[0], true)
}

func checkLeave(b *bench, can provider.Abilities) {
	m := b.joined(can, 2)
	require.NoError(b, can.Balancers.LeaveBalancer(b.Context(), b.Balancer, m[:1]))
	b.member(can, m[0], false)
	b.member(can, m[1], true)
}

func checkLeaveAgain(b *bench, can provider.Abilities) {
	m := b.joined(can, 1)
	for range 2 {
		require.NoError(b, can.Balancers.LeaveBalancer(b.Context(), b.Balancer, m))
		b.member(can, m[0], false)
	}
}

func checkLeaveGone(b *bench, can provider.Abilities) {
	m := b.joined(can, 1)
	b.remove(m[0])
	require.NoError(b, can.Balancers.LeaveBalancer(b.Context(), b.Balancer, m))
	b.member(can, m[0], false)
}

func checkNoBalancer(b *bench, can provider.Abilities) {
	m := []nstance.Machine{b.create(b.spec())}
	lb := b.Balancer
	if lb.ID = b.NoBalancer; lb.ID == "" {
		lb.ID = "no-such-balancer"
	}
	_, err := can.Balancers.BalancerMembers(b.Context(), lb)
	b.refused(nstance.NotFound, err)
	b.refused(nstance.NotFound, can.Balancers.JoinBalancer(b.Context(), lb, m))
	b.refused(nstance.NotFound, can.Balancers.LeaveBalancer(b.Context(), lb, m))
}

func checkBalancerArgs(b *bench, can provider.Abilities) {
	lb := b.Balancer
	lb.Args = json.RawMessage(`{"no_such_argument": true}`)
	_, err := can.Balancers.BalancerMembers(b.Context(), lb)
	b.refused(nstance.Invalid, err)
	require.ErrorContains(b, err, "no_such_argument")
}

func checkBalancerCancelled(b *bench, can provider.Abilities) {
	m := b.joined(can, 1)
	in, err := can.Balancers.BalancerMembers(b.ended(), b.Balancer)
	b.refused(nstance.Unavailable, err)
	require.Empty(b, in)
	b.refused(nstance.Unavailable, can.Balancers.JoinBalancer(b.ended(), b.Balancer, m))
	b.refused(nstance.Unavailable, can.Balancers.LeaveBalancer(b.ended(), b.Balancer, m))
	b.member(can, m[0], true)
}
