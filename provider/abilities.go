package provider

import (
	"context"
	"fmt"
	"iter"
	"math"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
)

// The operations of abilities, as Options.Observe names them.
const (
	opAccount       = "account"
	opResolveImage  = "resolve_image"
	opFreeAddresses = "free_addresses"
	opSubnetZones   = "subnet_zones"
	opShiftedZones  = "shifted_zones"
	opTypeArchs     = "type_archs"
	opPrices        = "prices"
	opZoneScores    = "zone_scores"
	opMembers       = "balancer_members"
	opJoin          = "join_balancer"
	opLeave         = "leave_balancer"
	opConsole       = "console_output"
	opPark          = "park"
	opWake          = "wake"
)

// Abilities are the optional interfaces of a provider. A missing ability is nil.
type Abilities struct {
	Account   nstance.AccountNamer
	Images    nstance.ImageResolver
	Subnets   nstance.SubnetCounter
	Zones     nstance.SubnetLocator
	Shifts    nstance.ZoneShifter
	Types     nstance.TypeLister
	Prices    nstance.PriceLister
	Scores    nstance.ZoneScorer
	Balancers nstance.Balancer
	Console   nstance.ConsoleReader
	Parking   nstance.Parker
	Notices   nstance.NoticeWatcher
	Nodes     nstance.NodeNamer
}

// NodeProviderID returns spec.providerID of the Kubernetes Node of m, empty while the
// machine is not known.
func (a Abilities) NodeProviderID(m nstance.Machine) string {
	switch {
	case m.ProviderID == "":
		return ""
	case a.Nodes != nil:
		return a.Nodes.NodeProviderID(m)
	}
	return "nstance:///" + string(m.ID)
}

// AbilitiesOf finds the abilities of p. A [Client] has those of the provider
// behind it, with the bounds of its options around them.
func AbilitiesOf(p nstance.Provider) Abilities {
	if c, ok := p.(*Client); ok {
		return c.Abilities()
	}
	var a Abilities
	a.Account, _ = p.(nstance.AccountNamer)
	a.Images, _ = p.(nstance.ImageResolver)
	a.Subnets, _ = p.(nstance.SubnetCounter)
	a.Zones, _ = p.(nstance.SubnetLocator)
	a.Shifts, _ = p.(nstance.ZoneShifter)
	a.Types, _ = p.(nstance.TypeLister)
	a.Prices, _ = p.(nstance.PriceLister)
	a.Scores, _ = p.(nstance.ZoneScorer)
	a.Balancers, _ = p.(nstance.Balancer)
	a.Console, _ = p.(nstance.ConsoleReader)
	a.Parking, _ = p.(nstance.Parker)
	a.Notices, _ = p.(nstance.NoticeWatcher)
	a.Nodes, _ = p.(nstance.NodeNamer)
	return a
}

// Abilities returns the abilities of the provider behind c. Each call takes one
// of the client's slots, ends within its timeout, has its error classified and
// is observed. Reads are repeated when they are throttled; joining and leaving a
// load balancer makes at most one call. A watch for notices does not end, so it
// takes no slot and has no timeout; its errors get a code. Naming a node makes no call.
func (c *Client) Abilities() Abilities {
	a := AbilitiesOf(c.p)
	if a.Account != nil {
		a.Account = boundAccount{c, a.Account}
	}
	if a.Images != nil {
		a.Images = boundImages{c, a.Images}
	}
	if a.Subnets != nil {
		a.Subnets = boundSubnets{c, a.Subnets}
	}
	if a.Zones != nil {
		a.Zones = boundZones{c, a.Zones}
	}
	if a.Shifts != nil {
		a.Shifts = boundShifts{c, a.Shifts}
	}
	if a.Types != nil {
		a.Types = boundTypes{c, a.Types}
	}
	if a.Prices != nil {
		a.Prices = boundPrices{c, a.Prices}
	}
	if a.Scores != nil {
		a.Scores = boundScores{c, a.Scores}
	}
	if a.Balancers != nil {
		a.Balancers = boundBalancers{c, a.Balancers}
	}
	if a.Console != nil {
		a.Console = boundConsole{c, a.Console}
	}
	if a.Parking != nil {
		a.Parking = boundParking{c, a.Parking}
	}
	if a.Notices != nil {
		a.Notices = classifiedNotices{a.Notices}
	}
	return a
}

type boundAccount struct {
	c *Client
	p nstance.AccountNamer
}

func (b boundAccount) Account(ctx context.Context) (string, error) {
	return read(ctx, b.c, opAccount, func(ctx context.Context) (string, error) {
		name, err := b.p.Account(ctx)
		if err == nil && name == "" {
			err = nstance.Errorf(nstance.Internal, "the provider answered with no account")
		}
		return name, err
	})
}

type boundImages struct {
	c *Client
	p nstance.ImageResolver
}

func (b boundImages) ResolveImage(ctx context.Context, q nstance.ImageQuery) (string, error) {
	return read(ctx, b.c, opResolveImage, func(ctx context.Context) (string, error) {
		id, err := b.p.ResolveImage(ctx, q)
		if err == nil && id == "" {
			err = nstance.Errorf(nstance.Internal, "the provider answered with no image")
		}
		return id, err
	})
}

type boundSubnets struct {
	c *Client
	p nstance.SubnetCounter
}

func (b boundSubnets) FreeAddresses(ctx context.Context, subnets []string) (map[string]int, error) {
	return read(ctx, b.c, opFreeAddresses, func(ctx context.Context) (map[string]int, error) {
		return b.p.FreeAddresses(ctx, subnets)
	})
}

type boundZones struct {
	c *Client
	p nstance.SubnetLocator
}

func (b boundZones) SubnetZones(ctx context.Context, subnets []string) (map[string]string, error) {
	return read(ctx, b.c, opSubnetZones, func(ctx context.Context) (map[string]string, error) {
		return b.p.SubnetZones(ctx, subnets)
	})
}

type boundShifts struct {
	c *Client
	p nstance.ZoneShifter
}

func (b boundShifts) ShiftedZones(ctx context.Context) ([]nstance.ZoneShift, error) {
	return read(ctx, b.c, opShiftedZones, b.p.ShiftedZones)
}

type boundTypes struct {
	c *Client
	p nstance.TypeLister
}

func (b boundTypes) TypeArchs(ctx context.Context, names []string) (map[string][]nstance.Arch, error) {
	return read(ctx, b.c, opTypeArchs, func(ctx context.Context) (map[string][]nstance.Arch, error) {
		return b.p.TypeArchs(ctx, names)
	})
}

type boundPrices struct {
	c *Client
	p nstance.PriceLister
}

func (b boundPrices) Prices(ctx context.Context, types []string) ([]nstance.Price, error) {
	return read(ctx, b.c, opPrices, func(ctx context.Context) ([]nstance.Price, error) {
		prices, err := b.p.Prices(ctx, types)
		for _, p := range prices {
			if !(p.PerHour > 0 && p.PerHour <= math.MaxFloat64) {
				return nil, nstance.Errorf(nstance.Internal, "the provider answered with the price %v of %s", p.PerHour, p.InstanceType)
			}
		}
		return prices, err
	})
}

type boundScores struct {
	c *Client
	p nstance.ZoneScorer
}

func (b boundScores) ZoneScores(ctx context.Context, types []string, machines int) (map[string]int, error) {
	return read(ctx, b.c, opZoneScores, func(ctx context.Context) (map[string]int, error) {
		return b.p.ZoneScores(ctx, types, machines)
	})
}

type boundBalancers struct {
	c *Client
	p nstance.Balancer
}

func (b boundBalancers) BalancerMembers(ctx context.Context, lb nstance.LoadBalancer) ([]string, error) {
	return read(ctx, b.c, opMembers, func(ctx context.Context) ([]string, error) { return b.p.BalancerMembers(ctx, lb) })
}

func (b boundBalancers) JoinBalancer(ctx context.Context, lb nstance.LoadBalancer, machines []nstance.Machine) error {
	_, err := once(ctx, b.c, opJoin, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, b.p.JoinBalancer(ctx, lb, machines)
	})
	return err
}

func (b boundBalancers) LeaveBalancer(ctx context.Context, lb nstance.LoadBalancer, machines []nstance.Machine) error {
	_, err := once(ctx, b.c, opLeave, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, b.p.LeaveBalancer(ctx, lb, machines)
	})
	return err
}

type boundConsole struct {
	c *Client
	p nstance.ConsoleReader
}

func (b boundConsole) ConsoleOutput(ctx context.Context, m nstance.Machine) ([]byte, error) {
	return read(ctx, b.c, opConsole, func(ctx context.Context) ([]byte, error) {
		out, err := b.p.ConsoleOutput(ctx, m)
		return clip.Console(out), err
	})
}

// A boundParking makes one call each. The caller repeats it until the machine is parked or
// runs.
type boundParking struct {
	c *Client
	p nstance.Parker
}

func (b boundParking) ParkModes() []nstance.ParkMode { return b.p.ParkModes() }

func (b boundParking) Park(ctx context.Context, m nstance.Machine, mode nstance.ParkMode) error {
	_, err := once(ctx, b.c, opPark, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, b.p.Park(ctx, m, mode)
	})
	return err
}

func (b boundParking) Wake(ctx context.Context, m nstance.Machine) error {
	_, err := once(ctx, b.c, opWake, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, b.p.Wake(ctx, m)
	})
	return err
}

type classifiedNotices struct{ p nstance.NoticeWatcher }

func (w classifiedNotices) WatchNotices(ctx context.Context, owner nstance.Owner) iter.Seq2[nstance.MachineNotice, error] {
	return func(yield func(nstance.MachineNotice, error) bool) {
		for n, err := range w.p.WatchNotices(ctx, owner) {
			if err != nil {
				err = classify(err)
			}
			if !yield(n, err) {
				return
			}
		}
	}
}

// read makes a read-only call, and repeats it as often as the options permit.
func read[T any](ctx context.Context, c *Client, op string, call func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout())
	defer cancel()
	for try := 0; ; try++ {
		v, err := once(ctx, c, op, call)
		if err == nil || !c.waitToRepeat(ctx, op, err, try) {
			return v, err
		}
	}
}

// once makes at most one call. Its error names the operation and has a code.
func once[T any](ctx context.Context, c *Client, op string, call func(context.Context) (T, error)) (v T, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout())
	defer cancel()
	release, err := c.acquire(ctx, op)
	if err != nil {
		return v, fmt.Errorf("%s: %w", op, err)
	}
	defer release()
	start := time.Now()
	v, err = call(ctx)
	if err != nil {
		var nothing T
		v, err = nothing, classify(err)
	}
	c.observe(op, err, time.Since(start))
	if err != nil {
		err = fmt.Errorf("%s: %w", op, err)
	}
	return v, err
}
