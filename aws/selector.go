package aws

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/nstance-go/nstance"
)

// Limits of what is looked up by tags: security groups on one network interface
// ("Amazon VPC quotas", VPC User Guide: 5, at most 16), and the tags to look for.
const (
	maxSecurityGroups = 16
	maxSelectorTags   = 10
)

// A subnetSelector finds one subnet by its zone and tags. The zone is part of it
// because an idempotency token counts within one zone ("Ensuring idempotency in Amazon
// EC2 API requests", EC2 Developer Guide): tags that move to a subnet of another zone must
// not lead to a second machine.
type subnetSelector struct {
	zone string
	tags map[string]string
}

const (
	selectZone = "zone="
	selectTag  = "tag:"

	subnetRemedy = "use an ID such as subnet-0123456789abcdef0, or zone=ZONE,tag:KEY=VALUE"
)

// isSelector reports whether an entry of a subnet pool is a selector, not an ID.
func isSelector(subnet string) bool {
	return strings.HasPrefix(subnet, selectZone) || strings.HasPrefix(subnet, selectTag)
}

// parseSubnet reads zone=ZONE,tag:KEY=VALUE with one or more tags. It fails with
// Invalid, field subnet.
func parseSubnet(text string) (subnetSelector, error) {
	s := subnetSelector{tags: map[string]string{}}
	wrong := func(why string, args ...any) (subnetSelector, error) {
		return s, nstance.FieldError("subnet", subnetRemedy, "%.128q "+why, append([]any{text}, args...)...)
	}
	for part := range strings.SplitSeq(text, ",") {
		if zone, ok := strings.CutPrefix(part, selectZone); ok {
			if !zoneName.MatchString(zone) || s.zone != "" {
				return wrong("does not name one zone such as eu-central-1a")
			}
			s.zone = zone
			continue
		}
		pair, ok := strings.CutPrefix(part, selectTag)
		key, value, hasValue := strings.Cut(pair, "=")
		if _, twice := s.tags[key]; !ok || !hasValue || key == "" || twice {
			return wrong("has the part %.64q, which is neither a zone nor a tag", part)
		}
		s.tags[key] = value
	}
	if s.zone == "" || len(s.tags) == 0 {
		return wrong("needs a zone and a tag")
	}
	return s, checkSelectorTags("subnet", s.tags)
}

// checkSelectorTags refuses tags that no resource of EC2 has.
func checkSelectorTags(field string, tags map[string]string) error {
	if len(tags) > maxSelectorTags {
		return nstance.FieldError(field, "use at most 10", "%d tags are too many to look for", len(tags))
	}
	for _, key := range slices.Sorted(maps.Keys(tags)) {
		if n := len([]rune(key)); n == 0 || n > maxTagKey {
			return nstance.FieldError(field, "use a key of 1 to 128 characters", "the key of a tag has %d characters", n)
		}
		if n := len([]rune(tags[key])); n > maxTagValue {
			return nstance.FieldError(field, "use at most 256 characters", "the value of tag %.64q has %d characters", key, n)
		}
	}
	return nil
}

// tagFilters fit what has all of the tags.
func tagFilters(tags map[string]string) (out []types.Filter) {
	for _, key := range slices.Sorted(maps.Keys(tags)) {
		out = append(out, filter("tag:"+key, tags[key]))
	}
	return out
}

// tagsText writes tags as k=v, sorted.
func tagsText(tags map[string]string) string {
	var out []string
	for _, key := range slices.Sorted(maps.Keys(tags)) {
		out = append(out, key+"="+tags[key])
	}
	return strings.Join(out, ", ")
}

// place replaces what spec and a name by tags with IDs, and returns both. Only what
// is named so is looked up; answers are remembered for a while.
func (p *Provider) place(ctx context.Context, spec nstance.MachineSpec, a *Args) (nstance.MachineSpec, *Args, error) {
	if len(a.SecurityGroupTags) == 0 && !isSelector(spec.Subnet) {
		return spec, a, nil
	}
	if spec.Subnet == "" {
		return spec, a, nstance.FieldError("args.security_group_tags", "set subnet_pool in the template", "without a subnet it is not known which VPC to look in")
	}
	subnet, vpc, err := p.subnetOf(ctx, spec.Subnet)
	if err != nil {
		return spec, a, err
	}
	spec.Subnet = subnet
	if len(a.SecurityGroupTags) == 0 {
		return spec, a, nil
	}
	groups, err := p.groupsOf(ctx, vpc, a.SecurityGroupTags)
	if err != nil {
		return spec, a, err
	}
	placed := *a
	placed.SecurityGroupIDs = slices.Compact(slices.Sorted(slices.Values(slices.Concat(a.SecurityGroupIDs, groups))))
	return spec, &placed, checkGroupCount(placed.SecurityGroupIDs)
}

func checkGroupCount(groups []string) error {
	if n := len(groups); n > maxSecurityGroups {
		return nstance.FieldError("args.security_group_tags", "use tags that fewer groups have", "%d security groups are more than the %d that a network interface can have", n, maxSecurityGroups)
	}
	return nil
}

// subnetOf returns the IDs of a subnet, named by its ID or a selector, and of its VPC.
func (p *Provider) subnetOf(ctx context.Context, subnet string) (id, vpc string, err error) {
	found, err := p.lookups.get(ctx, "subnet "+subnet, func(ctx context.Context) ([]string, error) { return p.findSubnet(ctx, subnet) })
	if err != nil {
		return "", "", err
	}
	return found[0], found[1], nil
}

// findSubnet returns the IDs of one subnet and its VPC. It fails with Invalid when
// none fits, or several.
func (p *Provider) findSubnet(ctx context.Context, subnet string) ([]string, error) {
	filters := []types.Filter{filter("subnet-id", subnet)}
	if isSelector(subnet) {
		s, err := parseSubnet(subnet)
		if err != nil {
			return nil, err
		}
		filters = append(tagFilters(s.tags), filter("availability-zone", s.zone))
	}
	var found []types.Subnet
	if err := p.subnets(ctx, filters, func(s types.Subnet) bool {
		found = append(found, s)
		return len(found) < 2
	}); err != nil {
		return nil, err
	}
	switch {
	case len(found) == 0:
		return nil, nstance.FieldError("subnet", "tag a subnet so, or correct shard.subnet_pools", "no subnet of this account and region is %.128q", subnet)
	case len(found) > 1:
		return nil, nstance.FieldError("subnet", "add a tag that only one of them has", "%s and %s, at least, are %.128q",
			aws.ToString(found[0].SubnetId), aws.ToString(found[1].SubnetId), subnet)
	}
	return []string{aws.ToString(found[0].SubnetId), aws.ToString(found[0].VpcId)}, nil
}

// groupsOf returns the IDs of the security groups of a VPC that have all of the tags.
func (p *Provider) groupsOf(ctx context.Context, vpc string, tags map[string]string) ([]string, error) {
	return p.lookups.get(ctx, "groups "+vpc+" "+strings.Join(pairs(tags), "\x00"), func(ctx context.Context) ([]string, error) {
		return p.findGroups(ctx, vpc, tags)
	})
}

// pairs distinguishes tags, whatever characters they have.
func pairs(tags map[string]string) (out []string) {
	for _, key := range slices.Sorted(maps.Keys(tags)) {
		out = append(out, key, tags[key])
	}
	return out
}

// findGroups reads until there are more groups than a network interface can have.
func (p *Provider) findGroups(ctx context.Context, vpc string, tags map[string]string) (ids []string, err error) {
	in := &ec2.DescribeSecurityGroupsInput{Filters: append(tagFilters(tags), filter("vpc-id", vpc)), MaxResults: aws.Int32(pageSize)}
	for len(ids) <= maxSecurityGroups {
		out, err := call(ctx, reading, p.ec2.DescribeSecurityGroups, in)
		if err != nil {
			return nil, err
		}
		for _, g := range out.SecurityGroups {
			ids = append(ids, aws.ToString(g.GroupId))
		}
		if in.NextToken = out.NextToken; aws.ToString(in.NextToken) == "" {
			break
		}
	}
	if len(ids) == 0 {
		return nil, nstance.FieldError("args.security_group_tags", "tag a group so, or correct the tags", "no security group of %s has the tags %.256s", vpc, tagsText(tags))
	}
	return ids, checkGroupCount(ids)
}
