package aws

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"regexp"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/nstance-go/nstance"
)

// TakeAddress implements [nstance.AddressMover]: the address becomes a secondary
// private one of this server's network interface, in one call, from wherever it
// is in the same subnet. An Elastic IP address that belongs to it moves along
// (AssignPrivateIpAddresses, EC2 API Reference).
func (p *Provider) TakeAddress(ctx context.Context, address string) error {
	held, nic, err := p.holds(ctx, address)
	if err != nil || held {
		return err
	}
	_, err = call(ctx, changing, p.ec2.AssignPrivateIpAddresses, &ec2.AssignPrivateIpAddressesInput{
		NetworkInterfaceId: &nic, PrivateIpAddresses: []string{address}, AllowReassignment: aws.Bool(true),
	})
	return err
}

// HoldsAddress implements [nstance.AddressMover].
func (p *Provider) HoldsAddress(ctx context.Context, address string) (bool, error) {
	held, _, err := p.holds(ctx, address)
	return held, err
}

// holds reports whether this server's network interface has the address, and
// which interface that is.
func (p *Provider) holds(ctx context.Context, address string) (held bool, nic string, err error) {
	if a, err := netip.ParseAddr(address); err != nil || !a.Is4() {
		return false, "", nstance.FieldError("address", "use an IPv4 address of this server's subnet", "%.64q is not an IPv4 address", address)
	}
	nic, err = p.networkInterface(ctx)
	if err != nil {
		return false, "", err
	}
	out, err := call(ctx, reading, p.ec2.DescribeNetworkInterfaces, &ec2.DescribeNetworkInterfacesInput{
		Filters: []types.Filter{filter("network-interface-id", nic)},
	})
	if err != nil {
		return false, "", err
	}
	if len(out.NetworkInterfaces) != 1 {
		return false, "", nstance.Errorf(nstance.Unavailable, "EC2 shows no network interface %s in this region and account", nic)
	}
	for _, a := range out.NetworkInterfaces[0].PrivateIpAddresses {
		held = held || aws.ToString(a.PrivateIpAddress) == address
	}
	return held, nic, nil
}

var interfaceIDs = regexp.MustCompile(`^eni-[0-9a-f]+$`)

// networkInterface returns the ID of the interface that the options name, or of
// the first one of the instance that the server runs on.
func (p *Provider) networkInterface(ctx context.Context) (string, error) {
	p.mu.Lock()
	id := p.ownInterface
	p.mu.Unlock()
	if id != "" {
		return id, nil
	}
	mac, err := p.readMetadata(ctx, "mac")
	if err == nil {
		id, err = p.readMetadata(ctx, "network/interfaces/macs/"+mac+"/interface-id")
	}
	if err == nil && !interfaceIDs.MatchString(id) {
		err = fmt.Errorf("%.64q is none", id)
	}
	if err != nil {
		return "", nstance.Errorf(nstance.Unavailable, "the metadata service does not name this server's network interface; set shard.provider.options.network_interface: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ownInterface = id
	return id, nil
}

// maxMetadata bounds an answer of the metadata service.
const maxMetadata = 1 << 10

func (p *Provider) readMetadata(ctx context.Context, path string) (string, error) {
	out, err := p.metadata.GetMetadata(ctx, &imds.GetMetadataInput{Path: path})
	if err != nil {
		return "", err
	}
	b, err := io.ReadAll(io.LimitReader(out.Content, maxMetadata))
	return strings.TrimSpace(string(b)), closeWith(out.Content, err)
}

func closeWith(c io.Closer, err error) error {
	if closed := c.Close(); err == nil {
		err = closed
	}
	return err
}
