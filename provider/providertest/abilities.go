package providertest

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
)

// An abilityPromise is one sentence of the contract of an ability.
type abilityPromise struct {
	name  string
	check func(*fixture, provider.Abilities)
}

var accountPromises = []abilityPromise{{"its name does not change", checkAccount}}

var nodePromises = []abilityPromise{
	{"a machine's provider ID does not change", checkNodeName},
	{"machines differ after the last slash", checkNodeNames},
}

var imagePromises = []abilityPromise{
	{"machines start from the resolved image", checkImage},
	{"two lookups agree", checkImageTwice},
	{"a name without a match is not found", checkNoImage},
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

var pricePromises = []abilityPromise{
	{"a spot machine of the type has one price in each zone", checkPrices},
	{"an unknown type is left out", checkNoPrice},
	{"a context that has ended is no answer", checkPricesCancelled},
}

var balancerPromises = []abilityPromise{
	{"a machine that joins is a member", checkJoin},
	{"joining again changes nothing", checkJoinAgain},
	{"a machine that leaves is no longer a member, and the others stay", checkLeave},
	{"leaving again changes nothing", checkLeaveAgain},
	{"leaving as a machine that is gone changes nothing", checkLeaveGone},
	{"an unknown load balancer is not found", checkNoBalancer},
	{"unacceptable args are refused by name", checkBalancerArgs},
	{"a context that has ended fails every call and is no answer", checkBalancerCancelled},
}

// checkAbilities checks the abilities for which the subject has an input.
func (r *suiteRun) checkAbilities(s Subject) {
	can := provider.AbilitiesOf(s.Provider)
	for _, a := range []struct {
		name     string
		has      bool
		ability  string
		given    bool
		input    string
		promises []abilityPromise
	}{
		{"account", can.Account != nil, "nstance.AccountNamer", can.Account != nil, "", accountPromises},
		{"nodes", can.Nodes != nil, "nstance.NodeNamer", can.Nodes != nil, "", nodePromises},
		{"images", can.Images != nil, "nstance.ImageResolver", s.Image != nstance.ImageQuery{}, "Subject.Image", imagePromises},
		{"subnets", can.Subnets != nil, "nstance.SubnetCounter", len(s.Subnets) > 0, "Subject.Subnets", subnetPromises},
		{"types", can.Types != nil, "nstance.TypeLister", len(s.Types) > 0, "Subject.Types", typePromises},
		{"prices", can.Prices != nil, "nstance.PriceLister", s.Priced != "", "Subject.Priced", pricePromises},
		{"parking", can.Parking != nil, "nstance.Parker", len(s.Park) > 0, "Subject.Park", parkPromises},
		{"load balancers", can.Balancers != nil, "nstance.Balancer", s.Balancer.ID != "", "Subject.Balancer", balancerPromises},
	} {
		switch name := "ability/" + a.name; {
		case !a.has && !a.given:
			r.skip(name, "the provider is no "+a.ability)
		case !a.given:
			r.skip(name, a.input+" is empty")
		case !a.has:
			r.check(name, func(b *fixture) { b.Fatalf("%s is set, but the provider is no %s", a.input, a.ability) })
		default:
			for _, p := range a.promises {
				r.check(name+"/"+p.name, func(b *fixture) { p.check(b, b.can) })
			}
		}
	}
	if can.Zones != nil {
		r.skip("ability/zones", "this suite has no subtest for nstance.SubnetLocator")
	}
	if can.Scores != nil {
		r.skip("ability/scores", "this suite has no subtest for nstance.ZoneScorer")
	}
	if can.Shifts != nil {
		r.skip("ability/shifts", "this suite has no subtest for nstance.ZoneShifter")
	}
	if can.Console != nil {
		r.skip("ability/console", "this suite has no subtest for nstance.ConsoleReader")
	}
	if can.Notices != nil {
		r.skip("ability/notices", "this suite has no subtest for nstance.NoticeWatcher")
	}
}

// endedContext returns a context that has ended.
func (b *fixture) endedContext() context.Context {
	ctx, cancel := context.WithCancel(b.Context())
	cancel()
	return ctx
}

func checkAccount(b *fixture, can provider.Abilities) {
	first, err := can.Account.Account(b.Context())
	require.NoError(b, err)
	require.NotEmpty(b, first)
	again, err := can.Account.Account(b.Context())
	require.NoError(b, err)
	require.Equal(b, first, again)
}

// checkNodeName compares what a machine gives by each answer of the provider, and by
// the two fields that outlive a leader.
func checkNodeName(b *fixture, can provider.Abilities) {
	created := b.create(b.spec())
	known := b.waitKnown(created.ID)
	want := can.Nodes.NodeProviderID(known)
	require.NotEmpty(b, want)
	for _, m := range append(b.waitListed(b.owner, 1), created, nstance.Machine{ID: known.ID, ProviderID: known.ProviderID, Zone: known.Zone}) {
		require.Equal(b, want, can.Nodes.NodeProviderID(m), "of %+v", m)
	}
	require.Empty(b, can.Nodes.NodeProviderID(nstance.Machine{ID: known.ID}), "a machine that is not known")
}

func checkNodeNames(b *fixture, can provider.Abilities) {
	last := map[string]nstance.InstanceID{}
	for range 3 {
		m := b.waitKnown(b.create(b.spec()).ID)
		id := can.Nodes.NodeProviderID(m)
		part := id[strings.LastIndexByte(id, '/')+1:]
		require.NotEmpty(b, part, "the provider ID %q ends in a slash", id)
		require.Emptyf(b, last[part], "two machines have %q after the last slash", part)
		last[part] = m.ID
	}
}

func checkImage(b *fixture, can provider.Abilities) {
	id, err := can.Images.ResolveImage(b.Context(), b.Image)
	require.NoError(b, err)
	require.NotEmpty(b, id)
	s := b.spec()
	if s.Image = id; b.Image.Arch != "" {
		s.Arch = b.Image.Arch
	}
	b.create(s)
}

func checkImageTwice(b *fixture, can provider.Abilities) {
	first, err := can.Images.ResolveImage(b.Context(), b.Image)
	require.NoError(b, err)
	second, err := can.Images.ResolveImage(b.Context(), b.Image)
	require.NoError(b, err)
	require.Equal(b, first, second)
}

func checkNoImage(b *fixture, can provider.Abilities) {
	q := b.Image
	q.Name = "no-such-image-" + b.owner.Installation
	id, err := can.Images.ResolveImage(b.Context(), q)
	b.requireCode(nstance.NotFound, err)
	require.Empty(b, id)
}

func checkImageCancelled(b *fixture, can provider.Abilities) {
	id, err := can.Images.ResolveImage(b.endedContext(), b.Image)
	b.requireCode(nstance.Unavailable, err)
	require.Empty(b, id)
}

func checkFree(b *fixture, can provider.Abilities) {
	free, err := can.Subnets.FreeAddresses(b.Context(), b.Subnets)
	require.NoError(b, err)
	for _, s := range b.Subnets {
		require.Contains(b, free, s)
		require.GreaterOrEqual(b, free[s], 0)
	}
}

func checkFreeFalls(b *fixture, can provider.Abilities) {
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

func checkNoSubnet(b *fixture, can provider.Abilities) {
	unknown := "no-such-subnet-" + b.owner.Installation
	free, err := can.Subnets.FreeAddresses(b.Context(), []string{unknown})
	require.False(b, err == nil && free[unknown] > 0, "%d addresses are free in a subnet that does not exist", free[unknown])
}

func checkFreeCancelled(b *fixture, can provider.Abilities) {
	free, err := can.Subnets.FreeAddresses(b.endedContext(), b.Subnets)
	b.requireCode(nstance.Unavailable, err)
	require.Empty(b, free)
}

func checkTypes(b *fixture, can provider.Abilities) {
	archs, err := can.Types.TypeArchs(b.Context(), b.Types)
	require.NoError(b, err)
	for _, name := range b.Types {
		require.NotEmpty(b, archs[name], "type %s", name)
	}
}

func checkNoType(b *fixture, can provider.Abilities) {
	const unknown = "no-such-type"
	archs, err := can.Types.TypeArchs(b.Context(), append(slices.Clone(b.Types), unknown))
	require.NoError(b, err)
	require.NotContains(b, archs, unknown)
	require.Contains(b, archs, b.Types[0], "an unknown name does not hide the others")
}

func checkTypesCancelled(b *fixture, can provider.Abilities) {
	archs, err := can.Types.TypeArchs(b.endedContext(), b.Types)
	b.requireCode(nstance.Unavailable, err)
	require.Empty(b, archs)
}

func checkPrices(b *fixture, can provider.Abilities) {
	prices, err := can.Prices.Prices(b.Context(), []string{b.Priced})
	require.NoError(b, err)
	zones := map[string]bool{}
	for _, p := range prices {
		require.Equal(b, b.Priced, p.InstanceType, "the price of another type")
		require.NotEmpty(b, p.Zone, "%+v", p)
		require.Positive(b, p.PerHour, "%+v", p)
		if p.Market == nstance.Spot {
			require.False(b, zones[p.Zone], "two prices in zone %s", p.Zone)
			zones[p.Zone] = true
		}
	}
	require.NotEmpty(b, zones, "no price of a spot machine")
}

func checkNoPrice(b *fixture, can provider.Abilities) {
	const unknown = "no-such-type"
	prices, err := can.Prices.Prices(b.Context(), []string{b.Priced, unknown})
	require.NoError(b, err)
	require.NotEmpty(b, prices, "an unknown name does not hide the others")
	for _, p := range prices {
		require.NotEqual(b, unknown, p.InstanceType)
	}
}

func checkPricesCancelled(b *fixture, can provider.Abilities) {
	prices, err := can.Prices.Prices(b.endedContext(), []string{b.Priced})
	b.requireCode(nstance.Unavailable, err)
	require.Empty(b, prices)
}

// waitMember waits until m is a member of the load balancer, or is not one.
func (b *fixture) waitMember(can provider.Abilities, m nstance.Machine, want bool) {
	b.Helper()
	b.eventually("BalancerMembers never showed the change", func(ctx context.Context) (bool, error) {
		in, err := can.Balancers.BalancerMembers(ctx, b.Balancer)
		return slices.Contains(in, m.ProviderID) == want, err
	})
}

// createJoined makes n machines that join the load balancer.
func (b *fixture) createJoined(can provider.Abilities, n int) []nstance.Machine {
	b.Helper()
	var machines []nstance.Machine
	for range n {
		machines = append(machines, b.create(b.spec()))
	}
	require.NoError(b, can.Balancers.JoinBalancer(b.Context(), b.Balancer, machines))
	b.Cleanup(func() { // before the machines are deleted
		_ = can.Balancers.LeaveBalancer(context.WithoutCancel(b.Context()), b.Balancer, machines)
	})
	for _, m := range machines {
		b.waitMember(can, m, true)
	}
	return machines
}

func checkJoin(b *fixture, can provider.Abilities) { b.createJoined(can, 2) }

func checkJoinAgain(b *fixture, can provider.Abilities) {
	m := b.createJoined(can, 1)
	require.NoError(b, can.Balancers.JoinBalancer(b.Context(), b.Balancer, m))
	b.waitMember(can, m[0], true)
}

func checkLeave(b *fixture, can provider.Abilities) {
	m := b.createJoined(can, 2)
	require.NoError(b, can.Balancers.LeaveBalancer(b.Context(), b.Balancer, m[:1]))
	b.waitMember(can, m[0], false)
	b.waitMember(can, m[1], true)
}

func checkLeaveAgain(b *fixture, can provider.Abilities) {
	m := b.createJoined(can, 1)
	for range 2 {
		require.NoError(b, can.Balancers.LeaveBalancer(b.Context(), b.Balancer, m))
		b.waitMember(can, m[0], false)
	}
}

func checkLeaveGone(b *fixture, can provider.Abilities) {
	m := b.createJoined(can, 1)
	b.remove(m[0])
	require.NoError(b, can.Balancers.LeaveBalancer(b.Context(), b.Balancer, m))
	b.waitMember(can, m[0], false)
}

func checkNoBalancer(b *fixture, can provider.Abilities) {
	m := []nstance.Machine{b.create(b.spec())}
	lb := b.Balancer
	if lb.ID = b.NoBalancer; lb.ID == "" {
		lb.ID = "no-such-balancer"
	}
	_, err := can.Balancers.BalancerMembers(b.Context(), lb)
	b.requireCode(nstance.NotFound, err)
	b.requireCode(nstance.NotFound, can.Balancers.JoinBalancer(b.Context(), lb, m))
	b.requireCode(nstance.NotFound, can.Balancers.LeaveBalancer(b.Context(), lb, m))
}

func checkBalancerArgs(b *fixture, can provider.Abilities) {
	lb := b.Balancer
	lb.Args = json.RawMessage(`{"no_such_argument": true}`)
	_, err := can.Balancers.BalancerMembers(b.Context(), lb)
	b.requireCode(nstance.Invalid, err)
	require.ErrorContains(b, err, "no_such_argument")
}

func checkBalancerCancelled(b *fixture, can provider.Abilities) {
	m := b.createJoined(can, 1)
	in, err := can.Balancers.BalancerMembers(b.endedContext(), b.Balancer)
	b.requireCode(nstance.Unavailable, err)
	require.Empty(b, in)
	b.requireCode(nstance.Unavailable, can.Balancers.JoinBalancer(b.endedContext(), b.Balancer, m))
	b.requireCode(nstance.Unavailable, can.Balancers.LeaveBalancer(b.endedContext(), b.Balancer, m))
	b.waitMember(can, m[0], true)
}
