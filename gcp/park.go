package gcp

import (
	"context"
	"slices"
	"strconv"

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/protobuf/proto"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
)

// ParkModes implements [nstance.Parker].
func (p *Provider) ParkModes() []nstance.ParkMode {
	return []nstance.ParkMode{nstance.ParkStopped, nstance.ParkHibernated}
}

// Park implements [nstance.Parker]. To hibernate is to suspend, which the guest
// has to support. Stopping a machine loses the content of its local SSDs.
func (p *Provider) Park(ctx context.Context, m nstance.Machine, mode nstance.ParkMode) error {
	zone, i, err := p.own(ctx, m)
	if err != nil {
		return err
	}
	number, status := strconv.FormatUint(i.GetId(), 10), i.GetStatus()
	switch {
	case marketOf(i.GetScheduling()) == nstance.Spot:
		return nstance.FieldError("warm_pool", "use on-demand capacity", "machine %s is spot capacity, which cannot be parked", m.ID)
	case mode != nstance.ParkStopped && mode != nstance.ParkHibernated:
		return nstance.FieldError("warm_pool.mode", "use stopped or hibernated", "%.64q is neither", mode)
	case statuses[status] == nstance.StatusStopped,
		mode == nstance.ParkStopped && status == "STOPPING", mode == nstance.ParkHibernated && status == "SUSPENDING":
		return nil
	case status != "RUNNING":
		return nstance.Errorf(nstance.Conflict, "machine %s is %s", m.ID, status)
	case mode == nstance.ParkHibernated && hasLocalSSD(i):
		return nstance.FieldError("warm_pool.mode", "use stopped", "machine %s has local SSDs, and would wake without their content", m.ID)
	}
	err = p.change(ctx, []string{"park", string(mode), number, i.GetLastStartTimestamp()}, func(ctx context.Context, request string) (operationHandle, error) {
		if mode == nstance.ParkHibernated {
			return p.instances.Suspend(ctx, &computepb.SuspendInstanceRequest{Project: p.o.Project, Zone: zone, Instance: number, RequestId: proto.String(request)})
		}
		q := &computepb.StopInstanceRequest{Project: p.o.Project, Zone: zone, Instance: number, RequestId: proto.String(request)}
		if hasLocalSSD(i) { // the cloud wants to be told
			q.DiscardLocalSsd = proto.Bool(true)
		}
		return p.instances.Stop(ctx, q)
	})
	return classify(err, p.path(zone, number), true)
}

// hasLocalSSD reports whether a machine has local SSDs, of args or of its type.
func hasLocalSSD(i *computepb.Instance) bool {
	return slices.ContainsFunc(i.GetDisks(), func(d *computepb.AttachedDisk) bool { return d.GetType() == "SCRATCH" })
}

// Wake implements [nstance.Parker]. That there is no capacity may show after the
// cloud has accepted it: then Get says that the machine is stopped, for want of
// capacity.
func (p *Provider) Wake(ctx context.Context, m nstance.Machine) error {
	zone, i, err := p.own(ctx, m)
	if err != nil {
		return err
	}
	number, status := strconv.FormatUint(i.GetId(), 10), i.GetStatus()
	switch status {
	case "RUNNING", "PROVISIONING", "STAGING":
		return nil
	case "TERMINATED", "STOPPED", "SUSPENDED":
	default:
		return nstance.Errorf(nstance.Conflict, "machine %s is %s", m.ID, status)
	}
	err = p.change(ctx, []string{"wake", number, i.GetLastStopTimestamp(), i.GetLastSuspendedTimestamp()}, func(ctx context.Context, request string) (operationHandle, error) {
		if status == "SUSPENDED" {
			return p.instances.Resume(ctx, &computepb.ResumeInstanceRequest{Project: p.o.Project, Zone: zone, Instance: number, RequestId: proto.String(request)})
		}
		return p.instances.Start(ctx, &computepb.StartInstanceRequest{Project: p.o.Project, Zone: zone, Instance: number, RequestId: proto.String(request)})
	})
	return classify(err, p.path(zone, number), true)
}

// ConsoleOutput implements [nstance.ConsoleReader] with the end of what the first
// serial port printed.
func (p *Provider) ConsoleOutput(ctx context.Context, m nstance.Machine) ([]byte, error) {
	zone, i, err := p.own(ctx, m)
	if err != nil {
		return nil, err
	}
	number := strconv.FormatUint(i.GetId(), 10)
	out, err := p.instances.GetSerialPortOutput(ctx, &computepb.GetSerialPortOutputInstanceRequest{
		Project: p.o.Project, Zone: zone, Instance: number, Port: proto.Int32(1), Start: proto.Int64(-clip.MaxConsole),
	})
	if err != nil {
		return nil, classify(err, p.path(zone, number), false)
	}
	text := []byte(out.GetContents())
	return clip.Console(text), nil
}
