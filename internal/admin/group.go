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
			return out.print(groups, func(t *table) { t.groups(groups) })
		})
	}
	return cmd
}

// groups returns the groups of a tenant; empty means of all.
func (c *client) groups(ctx context.Context, tenant nstance.TenantID) ([]Group, error) {
	groups := []Group{} // an empty list is [], not null
	err := eachPage(func(page string) (paged, error) {
		resp, err := c.ListGroups(ctx, &apiv1.ListGroupsRequest{Page: page})
		for _, g := range resp.GetGroups() {
			if g := groupOf(g); tenant == "" || g.Tenant == tenant {
				groups = append(groups, g)
			}
		}
		return resp, err
	})
	return groups, err
}

func (t *table) groups(groups []Group) {
	if len(groups) == 0 {
		t.say("no groups")
		return
	}
	t.row("TENANT", "GROUP", "TEMPLATE", "SIZE", "READY", "BOOTING", "LEAVING", "GONE", "STALE", "SOURCE", "HOLDS")
	for _, g := range groups {
		t.row(string(g.Tenant), string(g.Group), g.Template, strconv.Itoa(g.Size), strconv.Itoa(g.Ready), strconv.Itoa(g.Booting),
			strconv.Itoa(g.Leaving), strconv.Itoa(g.Gone), strconv.Itoa(g.Stale), source(g), holds(g.Holds))
	}
}

func holds(all []Hold) string {
	var out []string
	for _, h := range all {
		out = append(out, h.Kind+": "+h.Reason)
	}
	return strings.Join(out, "; ")
}

// group returns the one group of that name, or the error that says which there
// are.
func (c *client) group(ctx context.Context, tenant nstance.TenantID, name string) (Group, error) {
	groups, err := c.groups(ctx, tenant)
	if err != nil {
		return Group{}, err
	}
	return pick(groups, tenant, name)
}

// pick returns the one group of that name among groups.
func pick(groups []Group, tenant nstance.TenantID, name string) (Group, error) {
	var found []Group
	for _, g := range groups {
		if string(g.Group) == name && (tenant == "" || g.Tenant == tenant) {
			found = append(found, g)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return Group{}, fault(nstance.NotFound, nil, "nstance-admin group list shows those there are", fmt.Sprintf("no group %q%s", name, ofTenant(tenant)))
	}
	return Group{}, nstance.FieldError("--tenant", "name the tenant", "%d tenants have a group %q", len(found), name)
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
		Long:  "Change how many members a group has. Members that become superfluous are drained, then deleted.",
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
			s, err := p.scale(cmd.Context(), c, nstance.GroupKey{Tenant: nstance.TenantID(tenant), Group: nstance.GroupID(args[0])}, size, yes, dryRun)
			if err != nil {
				return err
			}
			return out.print(s, func(t *table) { t.scaling(s) })
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

func (p *program) scale(ctx context.Context, c *client, key nstance.GroupKey, size int32, yes, dryRun bool) (Scaling, error) {
	g, err := c.group(ctx, key.Tenant, string(key.Group))
	if err != nil {
		return Scaling{}, err
	}
	if less := g.Size - int(size); less > 0 && !dryRun {
		what := fmt.Sprintf("scaling group %s from %d to %d drains and deletes %s", g.key(), g.Size, size, plural(less, "instance"))
		if err := p.confirm(ctx, yes, what); err != nil {
			return Scaling{}, err
		}
	}
	resp, err := c.UpdateGroup(ctx, &apiv1.UpdateGroupRequest{Tenant: string(g.Tenant), Group: string(g.Group), Size: &size, DryRun: dryRun})
	if err != nil {
		return Scaling{}, err
	}
	return Scaling{Tenant: g.Tenant, Group: g.Group, Size: int(resp.GetGroup().GetSize()), PreviousSize: g.Size, DryRun: dryRun}, nil
}

func (t *table) scaling(s Scaling) {
	key := nstance.GroupKey{Tenant: s.Tenant, Group: s.Group}
	switch {
	case s.Size == s.PreviousSize:
		t.say("group %s has size %d already", key, s.Size)
	case s.DryRun:
		t.say("group %s would go from size %d to %d", key, s.PreviousSize, s.Size)
	default:
		t.say("group %s goes from size %d to %d", key, s.PreviousSize, s.Size)
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
		return fault(nstance.NotFound, err, "nstance-admin instance list shows those there are", err.Error())
	}
	return err
}
