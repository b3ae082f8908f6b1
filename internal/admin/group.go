package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
)

func groupCommand(env environment) *cobra.Command {
	cmd := &cobra.Command{Use: "group", Short: "Groups and their sizes"}
	cmd.AddCommand(
		groupListCommand(env), groupGetCommand(env), groupCreateCommand(env), groupUpdateCommand(env), groupScaleCommand(env), groupDeleteCommand(env),
		groupPauseCommand(env), groupResumeCommand(env), groupRollbackCommand(env), groupRolloutCommand(env),
	)
	return cmd
}

func tenantFlag(cmd *cobra.Command, tenant *string) {
	cmd.Flags().StringVar(tenant, "tenant", "", "only of this tenant")
}

func groupListCommand(env environment) *cobra.Command {
	var tenant string
	cmd := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List the groups of the shard", Args: arguments()}
	tenantFlag(cmd, &tenant)
	r, out := newRemote(cmd, env), newOutput(cmd)
	cmd.RunE = r.run(func(c *client, _ []string) error {
		groups, err := c.groups(cmd.Context(), nstance.TenantID(tenant))
		return out.result(documents(groups), err, func(t *table) { writeGroups(t, groups) })
	})
	return cmd
}

// groups returns the groups of a tenant; empty means of all.
func (c *client) groups(ctx context.Context, tenant nstance.TenantID) ([]*apiv1.Group, error) {
	groups, err := allPages(func(page string) (*apiv1.ListGroupsResponse, error) {
		return c.ListGroups(ctx, &apiv1.ListGroupsRequest{Page: page})
	}, (*apiv1.ListGroupsResponse).GetGroups)
	return ofTenant(groups, tenant), err
}

func writeGroups(t *table, groups []*apiv1.Group) {
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

// pick returns the one group of that name among groups, a list that it may change.
func pick(groups []*apiv1.Group, tenant nstance.TenantID, name string) (*apiv1.Group, error) {
	found := slices.DeleteFunc(ofTenant(groups, tenant), func(g *apiv1.Group) bool { return g.GetGroup() != name })
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		msg := fmt.Sprintf("no group %q", name)
		if tenant != "" {
			msg += fmt.Sprintf(" of tenant %q", tenant)
		}
		return nil, fault(nstance.NotFound, nil, "see nstance-admin group list", msg)
	}
	return nil, nstance.FieldError("--tenant", "name the tenant", "%d tenants have a group %q", len(found), name)
}

// ofTenant returns those of a tenant; empty means all.
func ofTenant[T interface{ GetTenant() string }](list []T, tenant nstance.TenantID) []T {
	return slices.DeleteFunc(list, func(one T) bool { return tenant != "" && one.GetTenant() != string(tenant) })
}

func groupScaleCommand(env environment) *cobra.Command {
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
	r, out := newRemote(cmd, env), newOutput(cmd)
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
			resp, err := scaleGroup(cmd, c, g, size, yes, dryRun)
			return out.result(document{resp}, err, func(t *table) { writeScaling(t, g, resp.GetGroup().GetSize(), dryRun) })
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

func scaleGroup(cmd *cobra.Command, c *client, g *apiv1.Group, size int32, yes, dryRun bool) (*apiv1.UpdateGroupResponse, error) {
	if err := confirmFewer(cmd, g, size, yes || dryRun); err != nil {
		return nil, err
	}
	return c.UpdateGroup(cmd.Context(), &apiv1.UpdateGroupRequest{Tenant: g.GetTenant(), Group: g.GetGroup(), Size: &size, DryRun: dryRun})
}

// confirmFewer asks before a group gets fewer members.
func confirmFewer(cmd *cobra.Command, g *apiv1.Group, size int32, yes bool) error {
	less := int(g.GetSize() - size)
	if less <= 0 {
		return nil
	}
	return confirm(cmd, yes, fmt.Sprintf("scaling group %s from %d to %d drains and deletes %s", wire.GroupKeyOf(g), g.GetSize(), size, plural(less, "instance")))
}

func writeScaling(t *table, before *apiv1.Group, size int32, dryRun bool) {
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
