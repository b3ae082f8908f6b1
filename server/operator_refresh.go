package server

import (
	"context"
	"fmt"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
)

// RefreshConfig implements the RPC.
func (o operatorService) RefreshConfig(ctx context.Context, req *apiv1.RefreshConfigRequest) (*apiv1.RefreshConfigResponse, error) {
	if req.GetDryRun() {
		return o.rehearseRefresh(ctx)
	}
	changed, err := o.s.refresh(ctx, callerOf(ctx).because(""))
	return &apiv1.RefreshConfigResponse{Digest: o.s.config().Digest(), Changed: changed}, err
}

// rehearseRefresh fails as a refresh would now, and otherwise says what would be
// in force after it. It changes nothing.
func (o operatorService) rehearseRefresh(ctx context.Context) (*apiv1.RefreshConfigResponse, error) {
	t := callerOf(ctx).term
	conf, err := o.s.proposal(ctx, nil)
	if err != nil {
		return nil, err
	}
	resp := &apiv1.RefreshConfigResponse{Digest: conf.Digest(), Changed: conf.Digest() != o.s.config().Digest()}
	if !resp.GetChanged() {
		return resp, nil
	}
	t.groups.LookUpTypes(ctx, conf)
	excess, err := t.accepts.excess(conf)
	if err == nil && excess != "" {
		err = &nstance.Error{
			Code: nstance.Conflict, Msg: fmt.Sprintf("configuration %.12s would be held: %s", conf.Digest(), excess),
			Remedy: "look at nstance-admin plan",
		}
	}
	return resp, err
}
