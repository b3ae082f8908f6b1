package aws

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/aws-sdk-go-v2/service/ssm"
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
// fits images that any account may have published. A name that begins with resolve:ssm:
// is that of a parameter instead, and one that begins with tag: has the tags of the image, as
// tag:KEY=VALUE with commas between: an account sees the tags of its own images only ("Tag
// your Amazon EC2 resources", EC2 User Guide). Images that were deregistered are left out, and so are
// those that an account's setting "Allowed AMIs" hides.
func (p *Provider) ResolveImage(ctx context.Context, q nstance.ImageQuery) (string, error) {
	if name, ok := strings.CutPrefix(q.Name, parameterPrefix); ok {
		return p.imageOfParameter(ctx, name, q)
	}
	if q.Owner == "" {
		return "", nstance.FieldError("owner", "name an account ID, self, amazon or aws-marketplace", "is empty, so that any account's image would fit")
	}
	more, err := imageFilters(q.Name)
	if err != nil {
		return "", err
	}
	id, err := p.newestImage(ctx, q, more...)
	if err == nil && id == "" {
		err = nstance.Errorf(nstance.NotFound, "no image of %s is named %s and available here", q.Owner, cmp.Or(q.Name, "*"))
	}
	return id, err
}

// imageFilters fit the images of a name, in which * stands for any text, or of tags.
func imageFilters(name string) ([]types.Filter, error) {
	switch {
	case name == "":
		return nil, nil
	case !strings.HasPrefix(name, selectTag):
		return []types.Filter{{Name: aws.String("name"), Values: []string{literal(name, "?")}}}, nil
	}
	tags := map[string]string{}
	for part := range strings.SplitSeq(name, ",") {
		pair, ok := strings.CutPrefix(part, selectTag)
		key, value, hasValue := strings.Cut(pair, "=")
		if _, twice := tags[key]; !ok || !hasValue || twice {
			return nil, nstance.FieldError("name", "write tag:KEY=VALUE, with commas between several", "%.128q has the part %.64q, which is no tag", name, part)
		}
		tags[key] = value
	}
	return tagFilters(tags), checkSelectorTags("name", tags)
}

// newestImage returns the ID of the newest available image with q's owner and
// architecture, each if given, that all of the filters fit; "" if there is none.
func (p *Provider) newestImage(ctx context.Context, q nstance.ImageQuery, more ...types.Filter) (string, error) {
	in := &ec2.DescribeImagesInput{Filters: append([]types.Filter{filter("state", "available")}, more...), MaxResults: aws.Int32(pageSize)}
	if q.Owner != "" {
		in.Owners = []string{q.Owner}
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
			return aws.ToString(newest.ImageId), nil
		}
	}
}

// parameterPrefix begins the names of images that are the value of a parameter, as in
// RunInstances. EC2 itself would look the parameter up at each launch, so that machines of
// one definition would differ.
const parameterPrefix = "resolve:ssm:"

// imageOfParameter returns the image that a parameter of the Parameter Store names:
// name, or name:version or name:label ("Reference AMIs using Systems Manager parameters",
// EC2 User Guide). The image must have q's architecture, and its owner if q has one.
func (p *Provider) imageOfParameter(ctx context.Context, name string, q nstance.ImageQuery) (string, error) {
	out, err := call(ctx, reading, p.parameters.GetParameter, &ssm.GetParameterInput{Name: &name})
	if err != nil {
		return "", fmt.Errorf("parameter %.128q: %w", name, err) // AWS's own words do not name it
	}
	if out.Parameter == nil {
		return "", nstance.Errorf(nstance.Unavailable, "the answer about parameter %.128q shows none", name)
	}
	id := aws.ToString(out.Parameter.Value)
	if !imageID.MatchString(id) {
		return "", nstance.FieldError("name", "name a parameter whose value is an image ID: those of AWS end in image_id, or have an ami- name", "the value of parameter %.128q is not the ID of an image", name)
	}
	found, err := p.newestImage(ctx, q, filter("image-id", id))
	if err == nil && found == "" {
		err = nstance.Errorf(nstance.NotFound, "parameter %.128q names image %s, and no such image with architecture %s%s is available here", name, id, cmp.Or(string(q.Arch), "of any kind"), ofOwner(q.Owner))
	}
	return found, err
}

var imageID = regexp.MustCompile(`^ami-[0-9a-f]{8,17}$`)

func ofOwner(owner string) string {
	if owner == "" {
		return ""
	}
	return " of " + owner
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
	err := p.eachSubnet(ctx, subnets, func(name string, s types.Subnet) {
		if s.AvailableIpAddressCount != nil {
			free[name] = int(*s.AvailableIpAddressCount)
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
	err := p.eachSubnet(ctx, subnets, func(name string, s types.Subnet) {
		if zone := aws.ToString(s.AvailabilityZone); zone != "" {
			zones[name] = zone
		}
	})
	if err != nil {
		return nil, err
	}
	return zones, nil
}

// eachSubnet calls do with what EC2 says about each of the subnets that it knows, and
// the name by which the caller knows it: its ID, or a selector.
func (p *Provider) eachSubnet(ctx context.Context, subnets []string, do func(name string, s types.Subnet)) error {
	names, err := p.subnetNames(ctx, subnets)
	if err != nil {
		return err
	}
	for some := range slices.Chunk(slices.Sorted(maps.Keys(names)), maxFilterValues) {
		if err := p.subnets(ctx, []types.Filter{filter("subnet-id", some...)}, func(s types.Subnet) bool {
			for _, name := range names[aws.ToString(s.SubnetId)] {
				do(name, s)
			}
			return true
		}); err != nil {
			return err
		}
	}
	return nil
}

// subnetNames returns the names of subnets by their IDs. Selectors that do not fit
// one subnet are left out.
func (p *Provider) subnetNames(ctx context.Context, subnets []string) (map[string][]string, error) {
	names := map[string][]string{}
	for _, name := range subnets {
		if !isSelector(name) {
			names[name] = append(names[name], name)
			continue
		}
		switch id, _, err := p.subnetOf(ctx, name); {
		case err == nil:
			names[id] = append(names[id], name)
		case nstance.CodeOf(err) != nstance.Invalid:
			return nil, err
		}
	}
	return names, nil
}

// subnets calls do with the subnets that all filters fit, page by page, while it
// returns true.
func (p *Provider) subnets(ctx context.Context, filters []types.Filter, do func(types.Subnet) bool) error {
	in := &ec2.DescribeSubnetsInput{Filters: filters, MaxResults: aws.Int32(pageSize)}
	for {
		out, err := call(ctx, reading, p.ec2.DescribeSubnets, in)
		if err != nil {
			return err
		}
		for _, s := range out.Subnets {
			if !do(s) {
				return nil
			}
		}
		if in.NextToken = out.NextToken; aws.ToString(in.NextToken) == "" {
			return nil
		}
	}
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
