package aws

import (
	"cmp"
	"context"
	"slices"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/aws-sdk-go-v2/service/sts"

	"github.com/nstance-go/nstance"
)

// Account implements [nstance.AccountNamer] by GetCallerIdentity, which needs no
// permission. EC2 itself does not name the account where there is no machine.
func (p *Provider) Account(ctx context.Context) (string, error) {
	out, err := call(ctx, reading, p.identity.GetCallerIdentity, &sts.GetCallerIdentityInput{})
	if err != nil {
		return "", err
	}
	if aws.ToString(out.Account) == "" {
		return "", nstance.Errorf(nstance.Unavailable, "STS answered without an account")
	}
	return *out.Account + "/" + p.region, nil
}

// architectures are what EC2 calls those that we know.
var architectures = map[types.ArchitectureType]nstance.Arch{
	types.ArchitectureTypeX8664: nstance.AMD64,
	types.ArchitectureTypeArm64: nstance.ARM64,
}

// ResolveImage implements [nstance.ImageResolver]. It wants an owner: a name alone
// fits images that any account may have published. Images that were deregistered are
// left out, and so are those that an account's setting "Allowed AMIs" hides.
func (p *Provider) ResolveImage(ctx context.Context, q nstance.ImageQuery) (string, error) {
	if q.Owner == "" {
		return "", nstance.FieldError("owner", "name an account ID, self, amazon or aws-marketplace", "is empty, so that any account's image would fit")
	}
	in := &ec2.DescribeImagesInput{Owners: []string{q.Owner}, Filters: []types.Filter{filter("state", "available")}, MaxResults: aws.Int32(pageSize)}
	if q.Name != "" {
		in.Filters = append(in.Filters, types.Filter{Name: aws.String("name"), Values: []string{literal(q.Name, "?")}})
	}
	if q.Arch != "" {
		name, err := architecture(q.Arch)
		if err != nil {
			return "", err
		}
		in.Filters = append(in.Filters, filter("architecture", name))
	}
	var newest types.Image
	for {
		out, err := call(ctx, reading, p.ec2.DescribeImages, in)
		if err != nil {
			return "", err
		}
		for _, i := range out.Images {
			if newest.ImageId == nil || compareImages(i, newest) > 0 {
				newest = i
			}
		}
		if in.NextToken = out.NextToken; aws.ToString(in.NextToken) == "" {
			break
		}
	}
	if newest.ImageId == nil {
		return "", nstance.Errorf(nstance.NotFound, "no image of %s is named %s and available here", q.Owner, cmp.Or(q.Name, "*"))
	}
	return *newest.ImageId, nil
}

func architecture(arch nstance.Arch) (string, error) {
	for name, a := range architectures {
		if a == arch {
			return string(name), nil
		}
	}
	return "", nstance.FieldError("arch", "use amd64 or arm64", "%.64q is not known", arch)
}

// compareImages orders by the time of creation, which is in ISO 8601.
func compareImages(a, b types.Image) int {
	return cmp.Or(cmp.Compare(aws.ToString(a.CreationDate), aws.ToString(b.CreationDate)), cmp.Compare(aws.ToString(a.ImageId), aws.ToString(b.ImageId)))
}

// maxFilterValues is how many values a filter may have ("List and filter your
// resources", EC2 User Guide).
const maxFilterValues = 200

// FreeAddresses implements [nstance.SubnetCounter]. EC2 counts IPv4 addresses
// only, and those of stopped machines as used.
func (p *Provider) FreeAddresses(ctx context.Context, subnets []string) (map[string]int, error) {
	free := map[string]int{}
	err := p.eachSubnet(ctx, subnets, func(s types.Subnet) {
		if s.AvailableIpAddressCount != nil {
			free[aws.ToString(s.SubnetId)] = int(*s.AvailableIpAddressCount)
		}
	})
	if err != nil {
		return nil, err
	}
	return free, nil
}

// SubnetZones implements [nstance.SubnetLocator]. A subnet is in one zone for ever.
func (p *Provider) SubnetZones(ctx context.Context, subnets []string) (map[string]string, error) {
	zones := map[string]string{}
	err := p.eachSubnet(ctx, subnets, func(s types.Subnet) {
		if zone := aws.ToString(s.AvailabilityZone); zone != "" {
			zones[aws.ToString(s.SubnetId)] = zone
		}
	})
	if err != nil {
		return nil, err
	}
	return zones, nil
}

// eachSubnet calls do with what EC2 says about each of the subnets that it knows.
func (p *Provider) eachSubnet(ctx context.Context, subnets []string, do func(types.Subnet)) error {
	for some := range slices.Chunk(subnets, maxFilterValues) {
		in := &ec2.DescribeSubnetsInput{Filters: []types.Filter{filter("subnet-id", some...)}, MaxResults: aws.Int32(pageSize)}
		for {
			out, err := call(ctx, reading, p.ec2.DescribeSubnets, in)
			if err != nil {
				return err
			}
			for _, s := range out.Subnets {
				do(s)
			}
			if in.NextToken = out.NextToken; aws.ToString(in.NextToken) == "" {
				break
			}
		}
	}
	return nil
}

// maxTypes is how many types DescribeInstanceTypes answers at once.
const maxTypes = 100

// TypeArchs implements [nstance.TypeLister]. Names are asked for by a filter: as
// names, one that is unknown would fail the whole call.
func (p *Provider) TypeArchs(ctx context.Context, names []string) (map[string][]nstance.Arch, error) {
	archs := map[string][]nstance.Arch{}
	for some := range slices.Chunk(names, maxTypes) {
		in := &ec2.DescribeInstanceTypesInput{Filters: []types.Filter{filter("instance-type", some...)}, MaxResults: aws.Int32(maxTypes)}
		for {
			out, err := call(ctx, reading, p.ec2.DescribeInstanceTypes, in)
			if err != nil {
				return nil, err
			}
			for _, t := range out.InstanceTypes {
				archs[string(t.InstanceType)] = archsOf(t)
			}
			if in.NextToken = out.NextToken; aws.ToString(in.NextToken) == "" {
				break
			}
		}
	}
	return archs, nil
}

// archsOf returns those of a type's architectures that we know: the older ones
// have i386 besides.
func archsOf(t types.InstanceTypeInfo) []nstance.Arch {
	var out []nstance.Arch
	if t.ProcessorInfo != nil {
		for _, name := range t.ProcessorInfo.SupportedArchitectures {
			if a, ok := architectures[name]; ok {
				out = append(out, a)
			}
		}
	}
	slices.Sort(out)
	return out
}
