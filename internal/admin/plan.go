package admin

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
)

// maxConfig bounds a proposed configuration, in bytes: what a server accepts in
// one request.
const maxConfig = 200 << 10

func planCommand(env environment) *cobra.Command {
	var file, group string
	cmd := &cobra.Command{
		Use: "plan", Short: "Show what a change would do",
		Long: `Show what a change would do: which fields change, which instances are replaced, drained
or updated and why, how long that takes at most, and whether it would be held until
confirmed.

Without flags the change is the configuration that config refresh would read; with --file
another one, "-" for standard input; with --group a change of one group, with the flags
of group update.`,
		Args: arguments(),
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "proposed configuration, - for standard input")
	cmd.Flags().StringVar(&group, "group", "", "plan a change of this group, given by the flags below")
	f := newGroupForm(cmd)
	tenantFlag(cmd, &f.tenant)
	r, out := newRemote(cmd, env), newOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		req, err := planRequest(cmd, file, group, f)
		if err != nil {
			return err
		}
		return r.with(cmd.Context(), func(c *client) error {
			plan, err := planOf(cmd.Context(), c, req)
			return out.result(document{plan}, err, func(t *table) { writePlan(t, plan) })
		})
	}
	return cmd
}

func planRequest(cmd *cobra.Command, file, group string, f *groupForm) (*apiv1.PlanRequest, error) {
	switch {
	case group != "" && file != "":
		return nil, nstance.FieldError("--group", "use only one of the two", "--file is given as well")
	case group == "" && f.used():
		return nil, nstance.FieldError("--group", "name the group", "is missing")
	case group == "":
		data, err := proposed(cmd, file)
		return &apiv1.PlanRequest{Config: data}, err
	}
	req, err := f.updated()
	if err != nil {
		return nil, err
	}
	req.Group, req.Tenant = group, f.tenant
	return &apiv1.PlanRequest{Group: req}, nil
}

// proposed reads the proposed configuration; nothing if none is named.
func proposed(cmd *cobra.Command, file string) ([]byte, error) {
	if file == "" {
		return nil, nil
	}
	data, err := readInput(cmd, "file", file, 8*maxConfig)
	switch {
	case err != nil:
		return nil, err
	case len(data) > maxConfig:
		return nil, nstance.FieldError("--file", "put it at the configuration's source, and plan without --file", "has more than %d bytes, the limit of a request", maxConfig)
	case len(data) == 0:
		return nil, nstance.FieldError("--file", "name the configuration", "%s is empty", file)
	}
	return []byte(data), nil
}

func planOf(ctx context.Context, c *client, req *apiv1.PlanRequest) (*apiv1.PlanResponse, error) {
	if g := req.GetGroup(); g != nil { // whose tenant is found like everywhere
		found, err := c.group(ctx, nstance.TenantID(g.GetTenant()), g.GetGroup())
		if err != nil {
			return nil, err
		}
		g.Tenant = found.GetTenant()
	}
	return c.Plan(ctx, req)
}

func writePlan(t *table, p *apiv1.PlanResponse) {
	if len(p.GetGroups()) == 0 {
		t.say("no change")
	}
	for _, g := range p.GetGroups() {
		writeGroupPlan(t, g)
	}
	if p.GetGroupsOmitted() > 0 {
		t.say("%d more groups are not shown: the answer is too large", p.GetGroupsOmitted())
	}
	if p.GetHeld() {
		t.say("It would be held: it changes more than shard.max_change permits at once. See nstance-admin config confirm.")
	}
}

func writeGroupPlan(t *table, g *apiv1.GroupPlan) {
	t.say("group %s: %s", wire.GroupKeyOf(g), planSummary(g))
	for _, h := range g.GetHolds() {
		t.say("held by %s: %s", h.GetKind(), h.GetReason())
	}
	if len(g.GetFields()) > 0 {
		t.row("FIELD", "BEFORE", "AFTER", "EFFECT")
		for _, f := range g.GetFields() {
			t.row(f.GetPath(), f.GetBefore(), f.GetAfter(), f.GetEffect())
		}
	}
	if len(g.GetInstances()) > 0 {
		t.row("INSTANCE", "ACTION", "REASON")
		for _, i := range g.GetInstances() {
			t.row(i.GetId(), i.GetAction(), i.GetReason())
		}
	}
	t.say("")
}

// planSummary formats in a sentence what would happen.
func planSummary(g *apiv1.GroupPlan) string {
	counts := map[string]int{}
	for _, i := range g.GetInstances() {
		counts[i.GetAction()]++
	}
	out := []string{g.GetChange()}
	if g.GetSizeBefore() != g.GetSizeAfter() {
		out = append(out, fmt.Sprintf("size %d to %d", g.GetSizeBefore(), g.GetSizeAfter()))
	}
	for _, what := range []struct{ action, done string }{{"replace", "replaced"}, {"drain", "drained"}, {"delete", "deleted"}, {"push", "pushed to"}} {
		if n := counts[what.action]; n > 0 {
			out = append(out, strconv.Itoa(n)+" "+what.done)
		}
	}
	if g.GetInstancesOmitted() > 0 {
		out = append(out, strconv.Itoa(int(g.GetInstancesOmitted()))+" more that are not shown")
	}
	if g.GetCreates() > 0 {
		out = append(out, strconv.Itoa(int(g.GetCreates()))+" created"+shapePlan(g.GetShape()))
	}
	text := strings.Join(out, ", ")
	switch d := g.GetEstimate().AsDuration().Round(time.Second); {
	case d > 0:
		text += fmt.Sprintf(", within %s (%s)", d, g.GetEstimateBasis())
	case g.GetEstimateBasis() != "":
		text += " (" + g.GetEstimateBasis() + ")"
	}
	return text
}

// shapePlan formats what the first create would be, and why; empty: that is not known.
func shapePlan(s *apiv1.ShapePlan) string {
	if s == nil {
		return ""
	}
	words := slices.DeleteFunc([]string{s.GetInstanceType(), s.GetSubnet(), s.GetMarket()}, func(w string) bool { return w == "" })
	return " (first: " + strings.Join(words, " ") + ", " + s.GetChoice() + ")"
}
