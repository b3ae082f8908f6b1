package admin

import (
	"context"
	"fmt"
	"io"
	"os"
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

func (p *program) planCommand() *cobra.Command {
	var file, group string
	cmd := &cobra.Command{
		Use: "plan", Short: "Say what a change would do, without doing it",
		Long: `Say what a change would do: which fields change, who is replaced, drained or pushed
to and why, how long that takes at most, and whether it would be held until confirmed.

Without flags it is the configuration that config refresh would read; with --file another
one, "-" for standard input; with --group a change of one group, said with the flags of
group update.`,
		Args: arguments(),
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "proposed configuration, - for standard input")
	cmd.Flags().StringVar(&group, "group", "", "plan a change of this group, which the flags below say")
	f := newGroupForm(cmd)
	tenantFlag(cmd, &f.tenant)
	r, out := p.remote(cmd), p.output(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		req, err := p.planRequest(file, group, f)
		if err != nil {
			return err
		}
		return r.with(cmd.Context(), func(c *client) error {
			plan, err := p.plan(cmd.Context(), c, req)
			if err != nil {
				return err
			}
			return out.print(plan, func(t *table) { t.plan(plan) })
		})
	}
	return cmd
}

func (p *program) planRequest(file, group string, f *groupForm) (*apiv1.PlanRequest, error) {
	switch {
	case group != "" && file != "":
		return nil, nstance.FieldError("--group", "plan with one at a time", "--file is given as well")
	case group == "" && f.used():
		return nil, nstance.FieldError("--group", "name the group", "is missing")
	case group == "":
		data, err := p.proposed(file)
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
func (p *program) proposed(file string) ([]byte, error) {
	if file == "" {
		return nil, nil
	}
	in := p.stdin
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, nstance.FieldError("--file", "name a file that can be read", "%v", err)
		}
		defer f.Close()
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, maxConfig+1))
	switch {
	case err != nil:
		return nil, nstance.FieldError("--file", "name a file that can be read", "%v", err)
	case len(data) > maxConfig:
		return nil, nstance.FieldError("--file", "put it in place, and plan without --file", "has more than %d bytes, which no request may", maxConfig)
	case len(data) == 0:
		return nil, nstance.FieldError("--file", "name the configuration", "%s is empty", file)
	}
	return data, nil
}

func (p *program) plan(ctx context.Context, c *client, req *apiv1.PlanRequest) (Plan, error) {
	if g := req.GetGroup(); g != nil { // whose tenant is found like everywhere
		found, err := c.group(ctx, nstance.TenantID(g.GetTenant()), g.GetGroup())
		if err != nil {
			return Plan{}, err
		}
		g.Tenant = string(found.Tenant)
	}
	resp, err := c.Plan(ctx, req)
	if err != nil {
		return Plan{}, err
	}
	out := Plan{Digest: resp.GetDigest(), Held: resp.GetHeld(), Groups: []GroupPlan{}}
	for _, g := range resp.GetGroups() {
		out.Groups = append(out.Groups, groupPlanOf(g))
	}
	out.GroupsOmitted = int(resp.GetGroupsOmitted())
	return out, nil
}

func groupPlanOf(w *apiv1.GroupPlan) GroupPlan {
	g := GroupPlan{
		Tenant: nstance.TenantID(w.GetTenant()), Group: nstance.GroupID(w.GetGroup()), Change: w.GetChange(),
		SizeBefore: int(w.GetSizeBefore()), SizeAfter: int(w.GetSizeAfter()), Creates: int(w.GetCreates()),
		Fields: fieldsOf(w.GetFields()), EstimateBasis: w.GetEstimateBasis(), InstancesOmitted: int(w.GetInstancesOmitted()),
	}
	if w.GetEstimate() != nil {
		g.EstimateSeconds = w.GetEstimate().AsDuration().Seconds()
	}
	for _, i := range w.GetInstances() {
		g.Instances = append(g.Instances, PlannedInstance{nstance.InstanceID(i.GetId()), i.GetAction(), i.GetReason()})
	}
	for _, h := range w.GetHolds() {
		g.Holds = append(g.Holds, Hold{h.GetKind(), h.GetReason(), wire.TimeOf(h.GetSince()), wire.TimeOf(h.GetUntil())})
	}
	return g
}

func fieldsOf(w []*apiv1.FieldChange) []PlannedField {
	var out []PlannedField
	for _, f := range w {
		out = append(out, PlannedField{f.GetPath(), f.GetBefore(), f.GetAfter(), f.GetEffect()})
	}
	return out
}

func (t *table) plan(p Plan) {
	if len(p.Groups) == 0 {
		t.say("nothing would happen")
	}
	for _, g := range p.Groups {
		t.groupPlan(g)
	}
	if p.GroupsOmitted > 0 {
		t.say("%d more groups did not fit into the answer", p.GroupsOmitted)
	}
	if p.Held {
		t.say("It would be held: it changes more than shard.max_change permits at once. See nstance-admin config confirm.")
	}
}

func (t *table) groupPlan(g GroupPlan) {
	t.say("group %s: %s", nstance.GroupKey{Tenant: g.Tenant, Group: g.Group}, g.summary())
	for _, h := range g.Holds {
		t.say("held by %s: %s", h.Kind, h.Reason)
	}
	if len(g.Fields) > 0 {
		t.row("FIELD", "BEFORE", "AFTER", "EFFECT")
		for _, f := range g.Fields {
			t.row(f.Path, f.Before, f.After, f.Effect)
		}
	}
	if len(g.Instances) > 0 {
		t.row("INSTANCE", "ACTION", "REASON")
		for _, i := range g.Instances {
			t.row(string(i.ID), i.Action, i.Reason)
		}
	}
	t.say("")
}

// summary says in a sentence what would happen.
func (g GroupPlan) summary() string {
	counts := map[string]int{}
	for _, i := range g.Instances {
		counts[i.Action]++
	}
	out := []string{g.Change}
	if g.SizeBefore != g.SizeAfter {
		out = append(out, fmt.Sprintf("size %d to %d", g.SizeBefore, g.SizeAfter))
	}
	for _, what := range []struct{ action, done string }{{"replace", "replaced"}, {"drain", "drained"}, {"delete", "deleted"}, {"push", "pushed to"}} {
		if n := counts[what.action]; n > 0 {
			out = append(out, strconv.Itoa(n)+" "+what.done)
		}
	}
	if g.InstancesOmitted > 0 {
		out = append(out, strconv.Itoa(g.InstancesOmitted)+" more that did not fit into the answer")
	}
	if g.Creates > 0 {
		out = append(out, strconv.Itoa(g.Creates)+" created")
	}
	text := strings.Join(out, ", ")
	switch {
	case g.EstimateSeconds > 0:
		d := time.Duration(g.EstimateSeconds * float64(time.Second)).Round(time.Second)
		text += fmt.Sprintf(", within %s (%s)", d, g.EstimateBasis)
	case g.EstimateBasis != "":
		text += " (" + g.EstimateBasis + ")"
	}
	return text
}
