package gcp

import (
	"context"
	"strings"

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/protobuf/proto"

	"github.com/nstance-go/nstance"
)

// The words for what happens to a machine when its host is maintained
// (Scheduling.onHostMaintenance).
const (
	terminateOnMaintenance = "TERMINATE"
	migrateOnMaintenance   = "MIGRATE"
)

// noMigration is part of the cloud's refusal of a machine that is to move to another host
// and cannot: "Instances with guest accelerators do not support live migration." Its pages
// on live migration say the same of TPUs, bare metal and some large types.
const noMigration = "live migration"

// maintain has body ask for the end of the machine when its host is maintained, where the
// machines of its type cannot move: those with accelerators, which are a property of types
// such as g2, a2 and a3 (MachineType.accelerators). What cannot be read counts as able to
// move, until the cloud says otherwise.
func (p *Provider) maintain(ctx context.Context, zone string, body *computepb.Instance) {
	if body.GetScheduling().GetOnHostMaintenance() != "" {
		return
	}
	name := lastPart(body.GetMachineType())
	moves, known := p.migrations.Load(name)
	if !known {
		t, err := p.types.Get(ctx, &computepb.GetMachineTypeRequest{Project: p.o.Project, Zone: zone, MachineType: name})
		if err != nil {
			return
		}
		moves = len(t.GetAccelerators()) == 0
		p.migrations.Store(name, moves)
	}
	if moves == false {
		body.Scheduling.OnHostMaintenance = proto.String(terminateOnMaintenance)
	}
}

// cannotMove reports whether a create was refused because its machine cannot move to
// another host, and has body ask for its end there instead.
func (p *Provider) cannotMove(body *computepb.Instance, refusal error) bool {
	if nstance.CodeOf(refusal) != nstance.Invalid || !strings.Contains(refusal.Error(), noMigration) || body.GetScheduling().GetOnHostMaintenance() != "" {
		return false
	}
	p.migrations.Store(lastPart(body.GetMachineType()), false)
	body.Scheduling.OnHostMaintenance = proto.String(terminateOnMaintenance)
	return true
}
