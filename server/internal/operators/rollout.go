package operators

import (
	"context"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/validate"
	"github.com/nstance-go/nstance/reconcile"
)

// existing returns a group that the caller may know of.
func (c caller) existing(tenant, group string) (reconcile.GroupView, error) {
	key := nstance.GroupKey{Tenant: nstance.TenantID(tenant), Group: nstance.GroupID(group)}
	if key.Tenant == "" {
		key.Tenant = c.Tenant
	}
	if err := validate.Name("group", key.Group); err != nil {
		return reconcile.GroupView{}, err
	}
	if !c.sees(key.Tenant) {
		return reconcile.GroupView{}, nstance.Errorf(nstance.NotFound, "no group %s", key)
	}
	return c.term.Reconciler.Group(key)
}

// command carries out a command for a group, unless it is a dry run, and returns the
// group as it is afterwards, and as it was before.
func (c caller) command(tenant, group string, dryRun bool, do func(nstance.GroupKey) error) (*apiv1.Group, reconcile.GroupView, error) {
	was, err := c.existing(tenant, group)
	if err != nil || dryRun {
		return groupMessage(was), was, err
	}
	if err := do(was.Key); err != nil {
		return nil, was, err
	}
	is, err := c.term.Reconciler.Group(was.Key)
	return groupMessage(is), was, err
}

// because returns the reason for a command, with the caller's name.
func (c caller) because(reason string) string {
	who := "asked for by " + c.Subject
	if reason == "" {
		return who
	}
	who = " (" + who + ")"
	return clip.Text(reason, max(0, longestReason-len(who))) + who
}

// longestReason is how many bytes of a reason are kept.
const longestReason = 256

// PauseGroup implements the RPC.
func (*Service) PauseGroup(ctx context.Context, req *apiv1.PauseGroupRequest) (*apiv1.PauseGroupResponse, error) {
	c := callerOf(ctx)
	g, was, err := c.command(req.GetTenant(), req.GetGroup(), req.GetDryRun(), func(key nstance.GroupKey) error {
		return c.term.Reconciler.Pause(ctx, key, c.because(req.GetReason()))
	})
	return &apiv1.PauseGroupResponse{Group: g, Unchanged: was.Paused}, err
}

// ResumeGroup implements the RPC.
func (*Service) ResumeGroup(ctx context.Context, req *apiv1.ResumeGroupRequest) (*apiv1.ResumeGroupResponse, error) {
	c := callerOf(ctx)
	g, was, err := c.command(req.GetTenant(), req.GetGroup(), req.GetDryRun(), func(key nstance.GroupKey) error {
		return c.term.Reconciler.Resume(ctx, key, c.because(""))
	})
	return &apiv1.ResumeGroupResponse{Group: g, Unchanged: !was.Paused && was.Halted == "" && was.Failures == 0}, err
}

// RollbackGroup implements the RPC.
func (*Service) RollbackGroup(ctx context.Context, req *apiv1.RollbackGroupRequest) (*apiv1.RollbackGroupResponse, error) {
	c := callerOf(ctx)
	g, _, err := c.command(req.GetTenant(), req.GetGroup(), false, func(key nstance.GroupKey) error {
		switch {
		case !req.GetUndo():
			return c.term.Reconciler.Rollback(ctx, key, c.because(""), req.GetDryRun())
		case req.GetDryRun():
			return nil
		}
		return c.term.Reconciler.UndoRollback(ctx, key, c.because(""))
	})
	return &apiv1.RollbackGroupResponse{Group: g}, err
}
