package admin

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
)

func instanceCreateCommand(env environment) *cobra.Command {
	var tenant, id, instanceType, text, bootstrapFile string
	var vars, balancers []string
	var dryRun bool
	cmd := &cobra.Command{
		Use: "create GROUP", Short: "Create one instance on demand, beside a group's size",
		Long: "Create one instance on demand, beside a group's size, from the group's definition with the overrides given here. It is not\n" +
			"counted, replaced, or removed without reports; it ends when it is reclaimed, deleted or at its maximum age. A\n" +
			"repeated command with the same --id returns the same instance.",
		Args: arguments("GROUP"),
	}
	tenantFlag(cmd, &tenant)
	cmd.Flags().StringVar(&id, "id", "", "ID of the instance, at most 5 minutes old (default a new one)")
	cmd.Flags().StringVar(&instanceType, "instance-type", "", "machine type, instead of the group's")
	cmd.Flags().StringArrayVar(&vars, "var", nil, "variable, as name=value; may be repeated")
	cmd.Flags().StringSliceVar(&balancers, "load-balancer", nil, "load balancer of the configuration, instead of the group's; may be repeated")
	cmd.Flags().StringVar(&text, "args", "", "arguments of the provider, a JSON object, or @FILE that holds one")
	cmd.Flags().StringVar(&bootstrapFile, "bootstrap-data", "", bootstrapDataUsage+" (default the group's)")
	dryRunFlag(cmd, &dryRun)
	r, out := newRemote(cmd, env), newOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		req := &apiv1.CreateInstanceRequest{Id: id, InstanceType: instanceType, LoadBalancers: balancers, DryRun: dryRun}
		var err error
		if req.Vars, err = variables(vars); err != nil {
			return err
		}
		if req.Args, err = textOrFile("--args", text); err != nil {
			return err
		}
		if req.BootstrapData, err = bootstrapData(bootstrapFile); err != nil {
			return err
		}
		return r.with(cmd.Context(), func(c *client) error {
			resp, err := c.createInstance(cmd.Context(), req, nstance.TenantID(tenant), args[0])
			return out.result(document{resp}, err, func(t *table) {
				made := resp.GetInstance()
				if dryRun {
					t.say("instance %s of group %s would be made", made.GetId(), wire.GroupKeyOf(made))
					return
				}
				t.say("instance %s of group %s is %s", made.GetId(), wire.GroupKeyOf(made), made.GetState())
			})
		})
	}
	return cmd
}

// createInstance asks for an instance, and chooses its ID unless the request has one.
func (c *client) createInstance(ctx context.Context, req *apiv1.CreateInstanceRequest, tenant nstance.TenantID, name string) (*apiv1.CreateInstanceResponse, error) {
	g, err := c.group(ctx, tenant, name)
	if err != nil {
		return nil, err
	}
	req.Tenant, req.Group = g.GetTenant(), name
	if req.GetId() == "" {
		id, err := nstance.NewInstanceID(nstance.InstanceKind(g.GetKind()), time.Now())
		if err != nil {
			return nil, err
		}
		req.Id = string(id)
	}
	return c.CreateInstance(ctx, req)
}
