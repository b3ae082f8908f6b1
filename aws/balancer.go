package aws

import (
	"context"
	"slices"

	"github.com/aws/aws-sdk-go-v2/aws"
	elb "github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2"
	"github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2/types"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
)

// BalancerMembers implements [nstance.Balancer]. A target that drains is no member
// any more: no new connection goes to it.
func (p *Provider) BalancerMembers(ctx context.Context, lb nstance.LoadBalancer) ([]string, error) {
	targets, err := p.targets(ctx, lb)
	if err != nil {
		return nil, err
	}
	members := []string{}
	for _, t := range targets {
		members = append(members, *t.Id)
	}
	slices.Sort(members)
	return slices.Compact(members), nil
}

// targets returns what the target group sends traffic to, or is about to.
func (p *Provider) targets(ctx context.Context, lb nstance.LoadBalancer) ([]types.TargetDescription, error) {
	if _, err := decodeBalancer(lb); err != nil {
		return nil, err
	}
	out, err := call(ctx, reading, p.balancer.DescribeTargetHealth, &elb.DescribeTargetHealthInput{TargetGroupArn: &lb.ID})
	if err != nil {
		return nil, err
	}
	var targets []types.TargetDescription
	for _, t := range out.TargetHealthDescriptions {
		if t.Target != nil && t.Target.Id != nil && !leaving(t.TargetHealth) {
			targets = append(targets, *t.Target)
		}
	}
	return targets, nil
}

func leaving(h *types.TargetHealth) bool {
	return h != nil && (h.State == types.TargetHealthStateEnumDraining || h.Reason == types.TargetHealthReasonEnumNotRegistered)
}

// JoinBalancer implements [nstance.Balancer]. The target group must be of target
// type instance. Elastic Load Balancing takes running instances only.
func (p *Provider) JoinBalancer(ctx context.Context, lb nstance.LoadBalancer, machines []nstance.Machine) error {
	a, err := decodeBalancer(lb)
	if err != nil || len(machines) == 0 {
		return err
	}
	in := &elb.RegisterTargetsInput{TargetGroupArn: &lb.ID}
	for _, m := range machines {
		in.Targets = append(in.Targets, types.TargetDescription{Id: aws.String(m.ProviderID), Port: positive(a.Port)})
	}
	_, err = call(ctx, changing, p.balancer.RegisterTargets, in)
	return err
}

// LeaveBalancer implements [nstance.Balancer]. It deregisters the machines from
// every port: without the port that a target was registered with, Elastic Load
// Balancing would change nothing and report no error.
func (p *Provider) LeaveBalancer(ctx context.Context, lb nstance.LoadBalancer, machines []nstance.Machine) error {
	targets, err := p.targets(ctx, lb)
	if err != nil {
		return err
	}
	stays := func(t types.TargetDescription) bool {
		return !slices.ContainsFunc(machines, func(m nstance.Machine) bool { return m.ProviderID == *t.Id })
	}
	targets = slices.DeleteFunc(targets, stays)
	if len(targets) == 0 {
		return nil
	}
	_, err = call(ctx, changing, p.balancer.DeregisterTargets, &elb.DeregisterTargetsInput{TargetGroupArn: &lb.ID, Targets: targets})
	return err
}

func decodeBalancer(lb nstance.LoadBalancer) (*BalancerArgs, error) {
	var a BalancerArgs
	if err := provider.DecodeArgs(lb.Args, &a); err != nil {
		return nil, err
	}
	if a.Port < 0 || a.Port > 65535 {
		return nil, nstance.FieldError("args.port", "use 1 to 65535", "%d is not a port", a.Port)
	}
	if lb.ID == "" {
		return nil, nstance.FieldError("id", "use the ARN of the target group", "is empty")
	}
	return &a, nil
}
