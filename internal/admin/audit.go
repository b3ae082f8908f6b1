package admin

import (
	"context"
	"strconv"

	"github.com/spf13/cobra"

	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
)

func (p *program) auditCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "audit", Short: "Show who changed what, the newest first",
		Long: "Show the calls of operators and administrators that changed something, or may have, the newest first: from\n" +
			"the ledger in object storage, which every leader has. Dry runs and refused calls are not in it.",
		Args: arguments(),
	}
	r, out := p.remote(cmd), p.output(cmd)
	req := &apiv1.ListActionsRequest{}
	var since, until string
	cmd.Flags().StringVar(&req.By, "by", "", "only of this caller, such as admin-0123456789abcdef")
	cmd.Flags().StringVar(&req.Method, "method", "", "only calls of this method, such as UpdateGroup")
	cmd.Flags().Int32Var(&req.Limit, "limit", 100, "number of calls, up to 1000")
	cmd.Flags().StringVar(&since, "since", "", "only calls since then: how long ago, or a time")
	cmd.Flags().StringVar(&until, "until", "", "only calls before then: how long ago, or a time")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := setPeriod(p.now(), since, until, &req.Since, &req.Until); err != nil {
			return err
		}
		return r.with(cmd.Context(), func(c *client) error {
			list, err := p.actions(cmd.Context(), c, req)
			if err != nil {
				return err
			}
			return out.print(documents(list), func(t *table) { t.actions(list) })
		})
	}
	return cmd
}

// actions returns as many actions as the request says, and warns of what cannot be read.
func (p *program) actions(ctx context.Context, c *client, req *apiv1.ListActionsRequest) ([]*apiv1.Action, error) {
	var list []*apiv1.Action
	warned := map[string]bool{}
	err := eachPage(func(page string) (paged, error) {
		req.Page = page
		resp, err := c.ListActions(ctx, req)
		list = append(list, resp.GetActions()...)
		p.warnUnread(resp.GetProblems(), warned)
		if len(list) >= int(req.GetLimit()) && resp != nil {
			resp.NextPage = ""
		}
		return resp, err
	})
	return list[:min(len(list), int(req.GetLimit()))], err
}

func (t *table) actions(list []*apiv1.Action) {
	if len(list) == 0 {
		t.say("no calls")
		return
	}
	t.row("TIME", "BY", "ROLE", "TENANT", "METHOD", "REQUEST", "FAILED", "OMITTED")
	for _, a := range list {
		omitted := ""
		if a.GetOmitted() > 0 {
			omitted = strconv.Itoa(int(a.GetOmitted()))
		}
		t.row(stamp(wire.TimeOf(a.GetAt())), a.GetBy(), a.GetRole(), a.GetTenant(), a.GetMethod(), a.GetRequest(), a.GetError(), omitted)
	}
}
