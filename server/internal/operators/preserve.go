package operators

import (
	"context"
	"time"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
)

const (
	preserveFor    = 24 * time.Hour // if nothing is asked for
	longestToKeep  = 30 * 24 * time.Hour
	preserveRemedy = "use 0 to 720h; 0 ends it"
)

// PreserveInstance implements the RPC.
func (o *Service) PreserveInstance(ctx context.Context, req *apiv1.PreserveInstanceRequest) (*apiv1.PreserveInstanceResponse, error) {
	c := callerOf(ctx)
	v, err := c.instance(req.GetId())
	if err != nil {
		return nil, err
	}
	keep := preserveFor
	if req.GetDuration() != nil {
		keep = req.GetDuration().AsDuration()
	}
	switch {
	case keep < 0 || keep > longestToKeep:
		return nil, nstance.FieldError("duration", preserveRemedy, "%s is out of range", keep)
	case v.State == nstance.Deleting || v.State == nstance.Failed:
		return nil, nstance.Errorf(nstance.Conflict, "the deletion of %s has begun", v.ID)
	case keep == 0 && v.PreservedUntil.IsZero():
		return nil, nstance.Errorf(nstance.Conflict, "%s is not preserved", v.ID)
	}
	if !req.GetDryRun() {
		if err := c.term.Reconciler.Preserve(ctx, v.ID, o.Now().Add(keep), c.because("")); err != nil {
			return nil, err
		}
		if v, err = c.instance(req.GetId()); err != nil {
			return nil, err
		}
	}
	return &apiv1.PreserveInstanceResponse{Instance: instanceMessage(v)}, nil
}
