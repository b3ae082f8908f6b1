package aws

import (
	"context"
	"encoding/base64"
	"errors"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/smithy-go"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
)

// ParkModes implements [nstance.Parker].
func (*Provider) ParkModes() []nstance.ParkMode { return parkModes() }

// Park implements [nstance.Parker]. A machine that fails to hibernate shuts down
// instead, and is stopped all the same ("Hibernate your Amazon EC2 instance", EC2
// User Guide): it boots when it is woken.
func (p *Provider) Park(ctx context.Context, m nstance.Machine, mode nstance.ParkMode) error {
	if mode != nstance.ParkStopped && mode != nstance.ParkHibernated {
		return nstance.FieldError("warm_pool.mode", "use stopped or hibernated", "%.64q is neither", mode)
	}
	i, err := p.own(ctx, m)
	if err != nil {
		return err
	}
	switch stateOf(i) {
	case types.InstanceStateNameStopping, types.InstanceStateNameStopped:
		return nil
	case types.InstanceStateNameRunning:
	default:
		return nstance.Errorf(nstance.Conflict, "instance %s is %s and cannot be stopped", *i.InstanceId, stateOf(i))
	}
	if i.InstanceLifecycle == types.InstanceLifecycleTypeSpot {
		return nstance.FieldError("warm_pool", "use on-demand capacity", "instance %s is spot capacity, which can only be terminated", *i.InstanceId)
	}
	in := &ec2.StopInstancesInput{InstanceIds: []string{*i.InstanceId}}
	if mode == nstance.ParkHibernated {
		in.Hibernate = aws.Bool(true)
	}
	_, err = call(ctx, changing, p.ec2.StopInstances, in)
	return err
}

// Wake implements [nstance.Parker].
func (p *Provider) Wake(ctx context.Context, m nstance.Machine) error {
	i, err := p.own(ctx, m)
	if err != nil {
		return err
	}
	switch stateOf(i) {
	case types.InstanceStateNamePending, types.InstanceStateNameRunning:
		return nil
	case types.InstanceStateNameStopped:
	default:
		return nstance.Errorf(nstance.Conflict, "instance %s is %s and cannot be started yet", *i.InstanceId, stateOf(i))
	}
	_, err = call(ctx, changing, p.ec2.StartInstances, &ec2.StartInstancesInput{InstanceIds: []string{*i.InstanceId}})
	return err
}

// ConsoleOutput implements [nstance.ConsoleReader]. Types of the Nitro system
// answer with what is on the console now, others with what was there when the
// machine's state last changed ("Instance console output", EC2 User Guide). A
// terminated machine keeps its output for an hour.
func (p *Provider) ConsoleOutput(ctx context.Context, m nstance.Machine) ([]byte, error) {
	handle := m.ProviderID
	if handle == "" {
		i, err := p.own(ctx, m)
		if err != nil {
			return nil, err
		}
		handle = *i.InstanceId
	}
	in := &ec2.GetConsoleOutputInput{InstanceId: &handle, Latest: aws.Bool(true)}
	out, err := call(ctx, reading, p.ec2.GetConsoleOutput, in)
	if answered(err, "UnsupportedOperation") {
		in.Latest = nil
		out, err = call(ctx, reading, p.ec2.GetConsoleOutput, in)
	}
	if answered(err, "InvalidInstanceID.NotFound") {
		if _, found := p.find(ctx, filter("instance-id", handle)); found != nil {
			return nil, found
		}
	}
	if err != nil {
		return nil, err
	}
	text, err := base64.StdEncoding.DecodeString(aws.ToString(out.Output))
	if err != nil {
		return nil, nstance.Errorf(nstance.Internal, "GetConsoleOutput: EC2 answered with something that is not base64: %w", err)
	}
	return clip.Console(text), nil
}

// answered reports whether err is AWS's answer with this code.
func answered(err error, code string) bool {
	e, ok := errors.AsType[smithy.APIError](err)
	return ok && e.ErrorCode() == code
}
