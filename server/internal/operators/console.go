package operators

import (
	"context"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
)

// GetConsoleOutput implements the RPC. It fails with Conflict where the provider
// keeps no console output.
func (*Service) GetConsoleOutput(ctx context.Context, req *apiv1.GetConsoleOutputRequest) (*apiv1.GetConsoleOutputResponse, error) {
	c := callerOf(ctx)
	v, err := c.instance(req.GetId())
	if err != nil {
		return nil, err
	}
	console := c.term.Internals.Abilities().Console
	if console == nil {
		return nil, &nstance.Error{
			Code: nstance.Conflict, Field: "id", Msg: "the provider keeps no console output", Remedy: "look at the machine itself",
		}
	}
	if v.Machine.ProviderID == "" {
		return nil, &nstance.Error{Code: nstance.Conflict, Field: "id", Msg: "no machine of " + req.GetId() + " has been seen yet", Remedy: "repeat it later"}
	}
	ctx, cancel := c.term.Bound(ctx)
	defer cancel()
	out, err := console.ConsoleOutput(ctx, v.Machine)
	if err != nil {
		return nil, err
	}
	return &apiv1.GetConsoleOutputResponse{Output: out}, nil
}
