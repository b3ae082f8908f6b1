package gcp

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	compute "cloud.google.com/go/compute/apiv1"
	"cloud.google.com/go/compute/apiv1/computepb"
	"cloud.google.com/go/compute/metadata"

	"github.com/nstance-go/nstance"
)

// maxMoves is how often one TakeAddress begins again because something changed
// meanwhile.
const maxMoves = 3

// TakeAddress implements [nstance.AddressMover] with an alias address of the
// machine's first network interface. The cloud has no swap: the address is taken
// from the machine of the provider's own zone that has it, and when that is done, given to
// this one.
func (p *Provider) TakeAddress(ctx context.Context, address string) error {
	addr, err := parseAddress(address)
	if err != nil {
		return err
	}
	for range maxMoves {
		err = p.moveAddress(ctx, addr)
		if nstance.CodeOf(err) != nstance.Conflict {
			return err
		}
	}
	return nstance.Errorf(nstance.Ambiguous, "address %s may have moved: %v", addr, err)
}

// HoldsAddress implements [nstance.AddressMover].
func (p *Provider) HoldsAddress(ctx context.Context, address string) (bool, error) {
	addr, err := parseAddress(address)
	if err != nil {
		return false, err
	}
	self, err := p.self(ctx)
	if err != nil || holds(self, addr) {
		return err == nil, err
	}
	_, err = p.rangeOf(ctx, self, addr)
	return false, err
}

func parseAddress(address string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(address)
	if err != nil || !addr.Is4() {
		return addr, nstance.FieldError("shard.leader_address", "write an IPv4 address of the server's subnet", "%.64q is no such address", address)
	}
	return addr, nil
}

// self reads the machine on which the server runs.
func (p *Provider) self(ctx context.Context) (*computepb.Instance, error) {
	if err := before(ctx); err != nil {
		return nil, err
	}
	name := p.o.Instance
	if name == "" {
		var err error
		if name, err = metadata.InstanceNameWithContext(ctx); err != nil {
			return nil, nstance.Errorf(nstance.Unavailable, "the metadata service does not name this machine: %w", err)
		}
	}
	i, err := p.instance(ctx, p.zone, name)
	if nstance.CodeOf(err) == nstance.NotFound {
		return nil, nstance.FieldError("shard.provider.options.instance", "name the server's machine", "zone %s has no machine %s", p.zone, name)
	}
	if err == nil && len(i.GetNetworkInterfaces()) == 0 {
		err = nstance.Errorf(nstance.Internal, "machine %s has no network interface", name)
	}
	return i, err
}

func holds(i *computepb.Instance, addr netip.Addr) bool {
	return slices.ContainsFunc(i.GetNetworkInterfaces(), func(n *computepb.NetworkInterface) bool {
		return slices.ContainsFunc(n.GetAliasIpRanges(), func(r *computepb.AliasIpRange) bool { return isAddress(r, addr) })
	})
}

// isAddress reports whether a range is that one address: the cloud writes it
// with or without its length.
func isAddress(r *computepb.AliasIpRange, addr netip.Addr) bool {
	text, bits, _ := strings.Cut(r.GetIpCidrRange(), "/")
	return text == addr.String() && (bits == "" || bits == "32")
}

// rangeOf returns the name of the subnet's range that holds an address; "" is
// the primary one.
func (p *Provider) rangeOf(ctx context.Context, i *computepb.Instance, addr netip.Addr) (string, error) {
	s, err := p.subnet(ctx, p.o.subnetPath(p.zone, i.GetNetworkInterfaces()[0].GetSubnetwork()), false)
	if err != nil {
		return "", err
	}
	if r, err := netip.ParsePrefix(s.GetIpCidrRange()); err == nil && r.Contains(addr) {
		return "", nil
	}
	for _, second := range s.GetSecondaryIpRanges() {
		if r, err := netip.ParsePrefix(second.GetIpCidrRange()); err == nil && r.Contains(addr) {
			return second.GetRangeName(), nil
		}
	}
	return "", nstance.Errorf(nstance.NotFound, "subnet %s has no address %s", s.GetName(), addr)
}

// moveAddress makes one attempt.
func (p *Provider) moveAddress(ctx context.Context, addr netip.Addr) error {
	self, err := p.self(ctx)
	if err != nil || holds(self, addr) {
		return err
	}
	name, err := p.rangeOf(ctx, self, addr)
	if err != nil {
		return err
	}
	if err := p.releaseAddress(ctx, addr); err != nil {
		return err
	}
	aliases := append(aliasesOf(self), alias{addr.String() + "/32", name})
	return p.setAliases(ctx, self, aliases)
}

// releaseAddress takes an address from the machines of the zone that have it.
func (p *Provider) releaseAddress(ctx context.Context, addr netip.Addr) error {
	client, err := compute.NewInstancesRESTClient(ctx, p.bound(ctx)...)
	if err != nil {
		return err
	}
	it := client.List(ctx, &computepb.ListInstancesRequest{Project: p.o.Project, Zone: p.zone})
	var holders []*computepb.Instance
	err = eachPage(ctx, "instances", it.InternalFetch, func() any { return it.Response }, func(page []*computepb.Instance) bool {
		for _, i := range page {
			if holds(i, addr) {
				holders = append(holders, i)
			}
		}
		return true
	})
	if err != nil {
		return err
	}
	for _, i := range holders {
		rest := slices.DeleteFunc(aliasesOf(i), func(a alias) bool { return a.Range == addr.String()+"/32" || a.Range == addr.String() })
		if err := p.setAliases(ctx, i, rest); err != nil {
			return err
		}
	}
	return nil
}

// An alias is an alias range as the API writes it.
type alias struct {
	Range string `json:"ipCidrRange"`
	Name  string `json:"subnetworkRangeName,omitempty"`
}

func aliasesOf(i *computepb.Instance) []alias {
	out := []alias{} // not nil: an absent list would change nothing
	for _, r := range i.GetNetworkInterfaces()[0].GetAliasIpRanges() {
		out = append(out, alias{r.GetIpCidrRange(), r.GetSubnetworkRangeName()})
	}
	return out
}

// setAliases replaces the alias ranges of a machine's first network interface,
// and waits until that is done. The SDK cannot send an empty list, and
// updateNetworkInterface is a PATCH, so this request is made by hand.
func (p *Provider) setAliases(ctx context.Context, i *computepb.Instance, aliases []alias) error {
	nic := i.GetNetworkInterfaces()[0]
	body := map[string]any{"fingerprint": nic.GetFingerprint(), "aliasIpRanges": aliases}
	query := url.Values{"networkInterface": {nic.GetName()}, "requestId": {requestID("aliases", i.GetName(), fmt.Sprint(body))}}
	op := &computepb.Operation{}
	if err := p.send(ctx, http.MethodPatch, p.path(p.zone, i.GetName())+"/updateNetworkInterface", query, body, op); err != nil {
		return classify(err, p.path(p.zone, i.GetName()), true)
	}
	return p.wait(ctx, p.zone, op)
}
