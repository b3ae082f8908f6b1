package admin

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
)

func (p *program) groupCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "group", Short: "Groups and their sizes"}
	cmd.AddCommand(
		p.groupListCommand(), p.groupGetCommand(), p.groupCreateCommand(), p.groupUpdateCommand(), p.groupScaleCommand(), p.groupDeleteCommand(),
		p.groupPauseCommand(), p.groupResumeCommand(), p.groupRollbackCommand(), p.groupRolloutCommand(),
	)
	return cmd
}

func tenantFlag(cmd *cobra.Command, tenant *string) {
	cmd.Flags().StringVar(tenant, "tenant", "", "only of this tenant")
}

func (p *program) groupListCommand() *cobra.Command {
	var tenant string
	cmd := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List the groups of the shard", Args: arguments()}
	tenantFlag(cmd, &tenant)
	r, out := p.remote(cmd), p.output(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return r.with(cmd.Context(), func(c *client) error {
			groups, err := c.groups(cmd.Context(), nstance.TenantID(tenant))
			if err != nil {
				return err
			}
			return out.print(documents(groups), func(t *table) { t.groups(groups) })
		})
	}
	return cmd
}

// groups returns the groups of a tenant; empty means of all.
func (c *client) groups(ctx context.Context, tenant nstance.TenantID) ([]*apiv1.Group, error) {
	var groups []*apiv1.Group
	err := eachPage(func(page string) (paged, error) {
		resp, err := c.ListGroups(ctx, &apiv1.ListGroupsRequest{Page: page})
		for _, g := range resp.GetGroups() {
			if tenant == "" || g.GetTenant() == string(tenant) {
				groups = append(groups, g)
			}
		}
		return resp, err
	})
	return groups, err
}

func (t *table) groups(groups []*apiv1.Group) {
	if len(groups) == 0 {
		t.say("no groups")
		return
	}
	t.row("TENANT", "GROUP", "TEMPLATE", "SIZE", "READY", "BOOTING", "LEAVING", "GONE", "STALE", "SOURCE", "HOLDS")
	for _, g := range groups {
		t.row(g.GetTenant(), g.GetGroup(), g.GetTemplate(), strconv.Itoa(int(g.GetSize())), strconv.Itoa(int(g.GetReady())), strconv.Itoa(int(g.GetBooting())),
			strconv.Itoa(int(g.GetLeaving())), strconv.Itoa(int(g.GetGone())), strconv.Itoa(int(g.GetStale())), source(g), holds(g.GetHolds()))
	}
}

func holds(all []*apiv1.Hold) string {
	var out []string
	for _, h := range all {
		out = append(out, h.GetKind()+": "+h.GetReason())
	}
	return strings.Join(out, "; ")
}

// group returns the one group of that name, or the error that names which there
// are.
func (c *client) group(ctx context.Context, tenant nstance.TenantID, name string) (*apiv1.Group, error) {
	groups, err := c.groups(ctx, tenant)
	if err != nil {
		return nil, err
	}
	return pick(groups, tenant, name)
}

// pick returns the one group of that name among groups.
func pick(groups []*apiv1.Group, tenant nstance.TenantID, name string) (*apiv1.Group, error) {
	var found []*apiv1.Group
	for _, g := range groups {
		if g.GetGroup() == name && (tenant == "" || g.GetTenant() == string(tenant)) {
			found = append(found, g)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return nil, fault(nstance.NotFound, nil, "see nstance-admin group list", fmt.Sprintf("no group %q%s", name, ofTenant(tenant)))
	}
	return nil, nstance.FieldError("--tenant", "name the tenant", "%d tenants have a group %q", len(found), name)
}

func ofTenant(tenant nstance.TenantID) string {
	if tenant == "" {
		return ""
	}
	return fmt.Sprintf(" of tenant %q", tenant)
}

func (p *program) groupScaleCommand() *cobra.Command {
	var tenant string
	var yes, dryRun bool
	cmd := &cobra.Command{
		Use:   "scale GROUP SIZE",
		Short: "Change how many members a group has",
		Long:  "Change how many members a group has. Surplus members are drained, then deleted.",
		Args:  arguments("GROUP", "SIZE"),
	}
	tenantFlag(cmd, &tenant)
	yesFlag(cmd, &yes)
	dryRunFlag(cmd, &dryRun)
	r, out := p.remote(cmd), p.output(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		size, err := parseSize(args[1])
		if err != nil {
			return err
		}
		return r.with(cmd.Context(), func(c *client) error {
			g, err := c.group(cmd.Context(), nstance.TenantID(tenant), args[0])
			if err != nil {
				return err
			}
			resp, err := p.scale(cmd.Context(), c, g, size, yes, dryRun)
			if err != nil {
				return err
			}
			return out.print(document{resp}, func(t *table) { t.scaling(g, resp.GetGroup().GetSize(), dryRun) })
		})
	}
	return cmd
}

func parseSize(s string) (int32, error) {
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil || n < 0 {
		return 0, nstance.FieldError("SIZE", "use 0 or more", "%q is not a size", s)
	}
	return int32(n), nil
}

func (p *program) scale(ctx context.Context, c *client, g *apiv1.Group, size int32, yes, dryRun bool) (*apiv1.UpdateGroupResponse, error) {
	if err := p.confirmFewer(ctx, g, size, yes || dryRun); err != nil {
		return nil, err
	}
	return c.UpdateGroup(ctx, &apiv1.UpdateGroupRequest{Tenant: g.GetTenant(), Group: g.GetGroup(), Size: &size, DryRun: dryRun})
}

// confirmFewer asks before a group gets fewer members.
func (p *program) confirmFewer(ctx context.Context, g *apiv1.Group, size int32, yes bool) error {
	less := int(g.GetSize() - size)
	if less <= 0 {
		return nil
	}
	return p.confirm(ctx, yes, fmt.Sprintf("scaling group %s from %d to %d drains and deletes %s", wire.GroupKeyOf(g), g.GetSize(), size, plural(less, "instance")))
}

func (t *table) scaling(before *apiv1.Group, size int32, dryRun bool) {
	key := wire.GroupKeyOf(before)
	switch {
	case size == before.GetSize():
		t.say("group %s has size %d already", key, size)
	case dryRun:
		t.say("group %s: size %d → %d would be accepted", key, before.GetSize(), size)
	default:
		t.say("group %s: size %d → %d", key, before.GetSize(), size)
	}
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}

// seek adds to a NotFound error where to look.
func seek(err error) error {
	if errors.Is(err, nstance.NotFound) {
		return fault(nstance.NotFound, err, "see nstance-admin instance list", err.Error())
	}
	return err
}
