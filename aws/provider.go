package aws

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/nstance-go/nstance"
)

// Create implements [nstance.Provider] by one call of RunInstances. Its client
// token makes it idempotent within the zone that the spec's subnet is in
// ("Ensuring idempotency in Amazon EC2 API requests", EC2 Developer Guide), so
// that a spec must not change its subnet after an ambiguous answer. A request for spot
// capacity that EC2 keeps open because its maximum price is too low is cancelled before the
// refusal is the answer. What is named by tags is looked up before.
func (p *Provider) Create(ctx context.Context, spec nstance.MachineSpec) (nstance.Machine, error) {
	a, err := decodeSpec(spec)
	if err != nil {
		return nstance.Machine{}, err
	}
	if spec.Image == "" {
		return nstance.Machine{}, nstance.FieldError("image", "set image in the template", "EC2 needs an image")
	}
	if spec.InstanceType == "" {
		return nstance.Machine{}, nstance.FieldError("instance_type", "set instance_type in the template", "without one EC2 would choose an old type")
	}
	if spec, a, err = p.place(ctx, spec, a); err != nil {
		return nstance.Machine{}, err
	}
	out, err := call(ctx, changing, p.ec2.RunInstances, launchRequest(spec, a))
	if err != nil {
		return nstance.Machine{}, p.closeRefused(ctx, spec, err)
	}
	if len(out.Instances) != 1 {
		return nstance.Machine{}, nstance.Errorf(nstance.Ambiguous, "RunInstances: EC2 answered with %d instances", len(out.Instances))
	}
	i := &out.Instances[0]
	if len(i.Tags) == 0 {
		if err := p.checkUntagged(ctx, spec, i); err != nil {
			return nstance.Machine{}, err
		}
	}
	return launched(spec, i)
}

// checkUntagged looks at an instance that EC2 answered a create with and whose
// tags it left out, which it does for one that had the same token before. Nil
// means that it is the machine of spec, or not visible yet.
func (p *Provider) checkUntagged(ctx context.Context, spec nstance.MachineSpec, i *types.Instance) error {
	_, err := p.own(ctx, nstance.Machine{ID: spec.ID, Owner: spec.Owner, ProviderID: aws.ToString(i.InstanceId)})
	switch nstance.CodeOf(err) {
	case "", nstance.Conflict:
		return err
	case nstance.NotFound, nstance.Unavailable:
		return nil // EC2 knew the token, which has a digest of the marks
	}
	return nstance.Errorf(nstance.Ambiguous, "instance %s was made, and its marks cannot be read: %w", aws.ToString(i.InstanceId), err)
}

// launched returns the machine that EC2 answered a create with. It may be an older
// one that had the same token: EC2 may then answer with that, although other
// parameters were asked for.
func launched(spec nstance.MachineSpec, i *types.Instance) (nstance.Machine, error) {
	older := func(difference string, args ...any) (nstance.Machine, error) {
		return nstance.Machine{}, nstance.Errorf(nstance.Conflict, "instance %s was made with this token before and "+difference, append([]any{aws.ToString(i.InstanceId)}, args...)...)
	}
	for _, v := range []struct{ field, want, got string }{
		{"image", spec.Image, aws.ToString(i.ImageId)},
		{"instance type", spec.InstanceType, string(i.InstanceType)},
		{"subnet", spec.Subnet, aws.ToString(i.SubnetId)},
	} {
		if v.want != "" && v.got != "" && v.got != v.want {
			return older("has %s %s, not %s", v.field, v.got, v.want)
		}
	}
	tags, want := tagsOf(i), marks(spec)
	if len(tags) == 0 {
		tags = want
	}
	for _, key := range []string{tagInstanceID, tagInstallation, tagCluster, tagShard, tagTenant} {
		if tags[key] != want[key] {
			return older("has tag %s=%s, not %s", key, tags[key], want[key])
		}
	}
	if stateOf(i) == types.InstanceStateNameTerminated {
		return older("is terminated: %s", reasonOf(i))
	}
	return machineOf(i, tags), nil
}

// Get implements [nstance.Provider]. EC2 shows a terminated instance for about an
// hour, with its reason: such a machine is NotFound with a cause.
func (p *Provider) Get(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
	i, err := p.find(ctx, filter("tag:"+tagInstanceID, string(id)))
	if err != nil {
		return nstance.Machine{}, err
	}
	return machineOf(i, tagsOf(i)), nil
}

// find returns the instance that all filters fit. Only an empty answer to a
// filter, or a terminated instance, is NotFound: the error for an unknown instance
// ID comes for new instances too.
func (p *Provider) find(ctx context.Context, filters ...types.Filter) (*types.Instance, error) {
	i, err := p.lookUp(ctx, filters...)
	switch {
	case err != nil:
		return nil, err
	case i == nil:
		return nil, nstance.Errorf(nstance.NotFound, "EC2 shows no instance with %s", describeFilters(filters))
	case stateOf(i) == types.InstanceStateNameTerminated:
		return nil, lost(i)
	}
	return i, nil
}

// lost is NotFound for a terminated instance, with its reason.
func lost(i *types.Instance) error {
	return &nstance.Error{Code: nstance.NotFound, Cause: causeOf(i), Words: wordsOf(i), Msg: "instance " + aws.ToString(i.InstanceId) + " is terminated: " + reasonOf(i)}
}

// lookUp returns the instance that all filters fit, rather one that is not
// terminated; nil if there is none.
func (p *Provider) lookUp(ctx context.Context, filters ...types.Filter) (found *types.Instance, err error) {
	for i, err := range p.describe(ctx, filters) {
		if err != nil {
			return nil, err
		}
		if found = i; stateOf(i) != types.InstanceStateNameTerminated {
			return i, nil
		}
	}
	return found, nil
}

// pageSize is the most that DescribeInstances answers at once.
const pageSize = 1000

// describe yields the instances that all filters fit, page by page. Whether there
// is another page, only the token says: one with few or no instances need not be
// the last.
func (p *Provider) describe(ctx context.Context, filters []types.Filter) iter.Seq2[*types.Instance, error] {
	return func(yield func(*types.Instance, error) bool) {
		in := &ec2.DescribeInstancesInput{Filters: filters, MaxResults: aws.Int32(pageSize)}
		for {
			out, err := call(ctx, reading, p.ec2.DescribeInstances, in)
			if err != nil {
				yield(nil, err)
				return
			}
			for _, r := range out.Reservations {
				for n := range r.Instances {
					if aws.ToString(r.Instances[n].InstanceId) == "" {
						yield(nil, nstance.Errorf(nstance.Unavailable, "the answer has an instance without its ID"))
						return
					}
					if !yield(&r.Instances[n], nil) {
						return
					}
				}
			}
			if aws.ToString(out.NextToken) == "" {
				return
			}
			in.NextToken = out.NextToken
		}
	}
}

// List implements [nstance.Provider]. It asks for machines in every state: one that is in a state
// of which this program does not know is there.
func (p *Provider) List(ctx context.Context, owner nstance.Owner) iter.Seq2[nstance.Machine, error] {
	return func(yield func(nstance.Machine, error) bool) {
		for i, err := range p.describe(ctx, ownerFilters(owner)) {
			if err != nil {
				yield(nstance.Machine{}, err)
				return
			}
			if stateOf(i) != types.InstanceStateNameTerminated && !yield(machineOf(i, tagsOf(i)), nil) {
				return
			}
		}
	}
}

// Delete implements [nstance.Provider]. Without a handle in m, the machine is
// looked for by its ID, and of one that was never seen the requests for spot capacity are
// cancelled that may be open: absence is proved when nothing can make it any more.
func (p *Provider) Delete(ctx context.Context, m nstance.Machine) error {
	i, err := p.own(ctx, m)
	if errors.Is(err, nstance.NotFound) && m.ProviderID == "" && m.Market != nstance.OnDemand {
		if err := p.closeRequests(ctx, m.ID); err != nil {
			return nstance.Errorf(nstance.Unavailable, "no machine %s is there, and a spot request may still make it: %v", m.ID, err)
		}
	}
	if err != nil || stateOf(i) == types.InstanceStateNameShuttingDown {
		return err
	}
	_, err = call(ctx, changing, p.ec2.TerminateInstances, &ec2.TerminateInstancesInput{InstanceIds: []string{*i.InstanceId}})
	if errors.Is(err, nstance.Conflict) { // of its state: of a Delete, Conflict says that the machine is another's
		err = nstance.Errorf(nstance.Unavailable, "%s", err)
	}
	return err
}

// own returns the instance of m if its tags are m's. EC2 compares them: an answer
// may lack tags that no filter asked for, so that a machine without tags need not
// be another's. Fails with Conflict when another machine has m's handle, and for
// a machine of another region, where EC2 would know none of the machines.
func (p *Provider) own(ctx context.Context, m nstance.Machine) (*types.Instance, error) {
	if !strings.HasPrefix(m.Zone, p.region) && m.Zone != "" {
		return nil, nstance.Errorf(nstance.Conflict, "machine %s is in zone %s, and this provider serves region %s", m.ID, m.Zone, p.region)
	}
	handle := filter("tag:"+tagInstanceID, string(m.ID))
	if m.ProviderID != "" {
		handle = filter("instance-id", m.ProviderID)
	}
	filters := append(ownerFilters(m.Owner), filter("tag:"+tagInstanceID, string(m.ID)), handle)
	i, err := p.lookUp(ctx, filters...)
	switch {
	case err != nil:
		return nil, err
	case i != nil && stateOf(i) == types.InstanceStateNameTerminated:
		return nil, lost(i)
	case i != nil:
		return i, nil
	}
	return nil, p.disowned(ctx, handle)
}

// disowned returns what it means that the machine with that handle does not have
// the tags that were asked for.
func (p *Provider) disowned(ctx context.Context, handle types.Filter) error {
	i, err := p.find(ctx, handle)
	if err == nil && len(i.Tags) == 0 {
		i, err = p.lookUp(ctx, handle, filter("tag-key", tagInstanceID))
		if err == nil && i == nil {
			err = nstance.Errorf(nstance.Unavailable, "EC2 shows no tags of the instance with %s: they are not visible yet, or were removed", describeFilters([]types.Filter{handle}))
		}
	}
	if err != nil {
		return err
	}
	tags := tagsOf(i)
	return nstance.Errorf(nstance.Conflict, "instance %s is machine %q of %+v", aws.ToString(i.InstanceId), tags[tagInstanceID], ownerOf(tags))
}

// ownerFilters fit what falls under owner.
func ownerFilters(o nstance.Owner) []types.Filter {
	out := []types.Filter{
		filter("tag:"+tagInstallation, o.Installation), filter("tag:"+tagCluster, string(o.Cluster)), filter("tag:"+tagShard, string(o.Shard)),
	}
	if o.Tenant != "" {
		out = append(out, filter("tag:"+tagTenant, string(o.Tenant)))
	}
	return out
}

// filter fits these values themselves, in which * and ? would stand for others.
func filter(name string, values ...string) types.Filter {
	values = slices.Clone(values)
	for i, v := range values {
		values[i] = literal(v, `*?`)
	}
	return types.Filter{Name: &name, Values: values}
}

// literal escapes the special characters of a filter's value ("List and filter
// your resources", EC2 User Guide).
func literal(s, special string) string {
	s = strings.ReplaceAll(s, `\`, `\\`)
	for _, r := range special {
		s = strings.ReplaceAll(s, string(r), `\`+string(r))
	}
	return s
}

func describeFilters(filters []types.Filter) string {
	var out []string
	for _, f := range filters {
		out = append(out, *f.Name+"="+strings.Join(f.Values, ","))
	}
	return strings.Join(out, " ")
}
