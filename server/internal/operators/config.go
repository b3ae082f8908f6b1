package operators

import (
	"context"
	"fmt"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
)

// GetConfigStatus implements the RPC. What is wrong with a configuration names
// groups of any tenant, and why it is held counts members of all tenants: only
// administrators see both.
func (*Service) GetConfigStatus(ctx context.Context, _ *apiv1.GetConfigStatusRequest) (*apiv1.GetConfigStatusResponse, error) {
	c := callerOf(ctx)
	forAdmin := func(reason string) string {
		if c.Role != nstance.RoleAdmin {
			return "an administrator can see why"
		}
		return reason
	}
	status := c.term.Configs.Status()
	resp := &apiv1.GetConfigStatusResponse{Digest: status.Digest, LoadedAt: wire.Time(status.AcceptedAt)}
	if status.HeldDigest != "" {
		resp.HeldDigest, resp.HeldAt, resp.HeldReason = status.HeldDigest, wire.Time(status.HeldAt), forAdmin(status.HeldReason)
	}
	if status.Refusal != nil {
		resp.RejectedAt, resp.RejectedError = wire.Time(status.RefusedAt), forAdmin(status.Refusal.Error())
	}
	return resp, nil
}

// GetConfig implements the RPC.
func (*Service) GetConfig(ctx context.Context, _ *apiv1.GetConfigRequest) (*apiv1.GetConfigResponse, error) {
	name, digest, data := callerOf(ctx).term.Configs.Document()
	if len(data) > maxRecord {
		return nil, nstance.Errorf(nstance.Invalid, "the configuration has %d bytes, more than an answer holds: read it from %s", len(data), name)
	}
	return &apiv1.GetConfigResponse{Name: name, Digest: digest, Content: data}, nil
}

// ConfirmConfig implements the RPC.
func (*Service) ConfirmConfig(ctx context.Context, req *apiv1.ConfirmConfigRequest) (*apiv1.ConfirmConfigResponse, error) {
	c := callerOf(ctx)
	return &apiv1.ConfirmConfigResponse{}, c.term.Configs.Confirm(ctx, req.GetDigest(), c.because("confirmed"), req.GetDryRun())
}

// RefreshConfig implements the RPC.
func (o *Service) RefreshConfig(ctx context.Context, req *apiv1.RefreshConfigRequest) (*apiv1.RefreshConfigResponse, error) {
	if req.GetDryRun() {
		return o.previewRefresh(ctx)
	}
	changed, err := callerOf(ctx).term.Configs.Refresh(ctx, callerOf(ctx).because(""))
	return &apiv1.RefreshConfigResponse{Digest: o.Config().Digest(), Changed: changed}, err
}

// previewRefresh fails as a refresh would now, and otherwise returns what would be in
// force after it. It changes nothing.
func (o *Service) previewRefresh(ctx context.Context) (*apiv1.RefreshConfigResponse, error) {
	t := callerOf(ctx).term
	conf, err := t.Configs.Parse(ctx, nil)
	if err != nil {
		return nil, err
	}
	resp := &apiv1.RefreshConfigResponse{Digest: conf.Digest(), Changed: conf.Digest() != o.Config().Digest()}
	if !resp.GetChanged() {
		return resp, nil
	}
	t.Groups.LookUpTypes(ctx, conf)
	excess, err := t.Configs.Excess(conf)
	if err == nil && excess != "" {
		err = &nstance.Error{
			Code: nstance.Conflict, Msg: fmt.Sprintf("configuration %.12s would be held: %s", conf.Digest(), excess),
			Remedy: "look at nstance-admin plan",
		}
	}
	return resp, err
}
