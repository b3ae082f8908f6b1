package admin

import (
	"strconv"
	"time"

	"github.com/spf13/cobra"

	apiv1 "github.com/nstance-go/nstance/api/v1"
)

func auditCommand(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use: "audit", Short: "Show who changed what, the newest first",
		Long: "Show the calls of operators and administrators that changed something, or may have, the newest first: from\n" +
			"the ledger in object storage, which every leader has. Dry runs and refused calls are not in it.",
		Args: arguments(),
	}
	r, out := newRemote(cmd, env), newOutput(cmd)
	req := &apiv1.ListActionsRequest{}
	var since, until string
	cmd.Flags().StringVar(&req.By, "by", "", "only of this caller, such as admin-0123456789abcdef")
	cmd.Flags().StringVar(&req.Method, "method", "", "only calls of this method, such as UpdateGroup")
	cmd.Flags().Int32Var(&req.Limit, "limit", 100, "number of calls, up to 1000")
	cmd.Flags().StringVar(&since, "since", "", "only calls since then: how long ago, or a time")
	cmd.Flags().StringVar(&until, "until", "", "only calls before then: how long ago, or a time")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := setPeriod(time.Now(), since, until, &req.Since, &req.Until); err != nil {
			return err
		}
		return r.with(cmd.Context(), func(c *client) error {
			list, err := readLedger(cmd, req.GetLimit(), func(page string) (*apiv1.ListActionsResponse, error) {
				req.Page = page
				return c.ListActions(cmd.Context(), req)
			}, (*apiv1.ListActionsResponse).GetActions)
			return out.result(documents(list), err, func(t *table) { writeActions(t, list) })
		})
	}
	return cmd
}

func writeActions(t *table, list []*apiv1.Action) {
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
		t.row(stampOf(a.GetAt()), a.GetBy(), a.GetRole(), a.GetTenant(), a.GetMethod(), a.GetRequest(), a.GetError(), omitted)
	}
}
