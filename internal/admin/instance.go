package admin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
)

func (p *program) instanceCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "instance", Short: "Instances and what happened to them"}
	cmd.AddCommand(p.instanceListCommand(), p.instanceGetCommand(), p.instanceConsoleCommand(), p.instanceCreateCommand(), p.instanceDeleteCommand(), p.instanceDrainCommand(), p.instancePreserveCommand())
	return cmd
}

func (p *program) instanceListCommand() *cobra.Command {
	var tenant, group, sortBy string
	var states, conditions []string
	cmd := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List the instances of the shard", Args: arguments()}
	tenantFlag(cmd, &tenant)
	cmd.Flags().StringSliceVar(&states, "state", nil, "only in these states, such as booting or draining; may be repeated")
	_ = cmd.RegisterFlagCompletionFunc("state", completions(listedStates))
	cmd.Flags().StringSliceVarP(&conditions, "label", "l", nil, "only with all of these: NAME=VALUE of market, type, agent or reason, or a condition such as drifted; may be repeated")
	choice(cmd, &sortBy, "sort", "", "order", "id", "age", "state", "group", "report")
	cmd.Flags().StringVar(&group, "group", "", "only of this group")
	r, out := p.remote(cmd), p.output(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return r.with(cmd.Context(), func(c *client) error {
			f, err := newInstanceFilter(states, conditions)
			if err != nil {
				return err
			}
			list, err := c.instances(cmd.Context(), nstance.TenantID(tenant), group)
			if err != nil {
				return err
			}
			list = f.apply(list)
			sortInstances(list, sortBy)
			return out.print(list, func(t *table) { t.instances(list) })
		})
	}
	return cmd
}

// instances returns the instances of a tenant and a group; empty means of all.
// A group that does not exist is NotFound, because an empty answer would hide
// a mistyped name.
func (c *client) instances(ctx context.Context, tenant nstance.TenantID, group string) ([]Instance, error) {
	list := []Instance{}
	err := eachPage(func(page string) (paged, error) {
		resp, err := c.ListInstances(ctx, &apiv1.ListInstancesRequest{Group: group, Page: page})
		for _, i := range resp.GetInstances() {
			if i := instanceOf(i); tenant == "" || i.Tenant == tenant {
				list = append(list, i)
			}
		}
		return resp, err
	})
	if err != nil {
		return nil, err
	}
	if len(list) == 0 && group != "" {
		if _, err := c.group(ctx, tenant, group); nstance.CodeOf(err) == nstance.NotFound {
			return nil, err
		}
	}
	return list, nil
}

func (t *table) instances(list []Instance) {
	if len(list) == 0 {
		t.say("no instances")
		return
	}
	t.row("ID", "TENANT", "GROUP", "STATE", "MARKET", "TYPE", "PROVIDER ID", "AGENT", "REPORT", "AGE", "CONDITIONS")
	for _, i := range list {
		t.row(string(i.ID), string(i.Tenant), string(i.Group), string(i.State), string(i.Market), i.InstanceType, i.ProviderID,
			connection(i.Connected), t.age(i.LastReportAt), t.age(i.CreatedAt), remarks(i))
	}
}

// remarks are what is special about an instance; one made by request counts in
// no size, and looks like one too many otherwise.
func remarks(i Instance) string {
	all := i.Conditions
	if i.OnDemand {
		all = append([]string{"by-request"}, all...)
	}
	return strings.Join(all, ",")
}

func connection(connected bool) string {
	if connected {
		return "connected"
	}
	return ""
}

func (p *program) instanceGetCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "get ID", Short: "Show an instance and its story",
		Long: "Show an instance and what happened to it, oldest first. One that is gone still has its story for as\n" +
			"long as the server's journal reaches back.",
		Args: instanceArgument,
	}
	r, out := p.remote(cmd), p.output(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return r.with(cmd.Context(), func(c *client) error {
			id, err := c.instanceID(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			s, err := c.story(cmd.Context(), id)
			if err != nil {
				return seek(err)
			}
			return out.print(s, func(t *table) { t.story(s) })
		})
	}
	return cmd
}

// story returns an instance with its events.
func (c *client) story(ctx context.Context, id nstance.InstanceID) (Story, error) {
	resp, err := c.GetInstance(ctx, &apiv1.GetInstanceRequest{Id: string(id)})
	if err != nil {
		return Story{}, err
	}
	s := Story{Instance: instanceOf(resp.GetInstance()), Events: []nstance.Event{}}
	for _, e := range resp.GetEvents() {
		s.Events = append(s.Events, wire.EventOf(e))
	}
	if len(s.Events) >= newestEvents {
		s.Events, err = c.events(ctx, eventQuery{instance: string(id), limit: maxEvents, all: true}, time.Now())
	}
	return s, err
}

// newestEvents is how much of a story comes with the instance: the end of it.
const newestEvents = 1000

func (t *table) story(s Story) {
	t.facts(s.Instance)
	if d := s.Drain; d != nil {
		t.row("Drain:", drainText(*d))
	}
	for _, f := range s.Drift {
		t.row("Differs:", fmt.Sprintf("%s: %q, its group desires %q (%s)", f.Path, f.Before, f.After, f.Effect))
	}
	if s.LastReport != nil {
		t.probes(*s.LastReport)
		t.files(*s.LastReport)
	}
	if len(s.Events) == 0 {
		return
	}
	t.say("")
	t.eventHead()
	for _, e := range s.Events {
		t.event(e)
	}
}

func (t *table) facts(i Instance) {
	for _, f := range []struct{ name, value string }{
		{"ID", string(i.ID)},
		{"Group", i.key().String() + madeBy(i)},
		{"State", string(i.State)},
		{"Conditions", strings.Join(i.Conditions, ", ")},
		{"Created", t.since(i.Reason, stamp(i.CreatedAt), t.age(i.CreatedAt))},
		{"Registered", stamp(i.RegisteredAt)},
		{"Last report", t.since("", stamp(i.LastReportAt), t.age(i.LastReportAt))},
		{"Agent", connection(i.Connected)},
		{"Usage", usage(i.LastReport)},
		{"Provider ID", i.ProviderID},
		{"Type", i.InstanceType},
		{"Market", i.marketText()},
		{"Addresses", strings.Join(i.Addresses, ", ")},
		{"Infra hash", i.InfraHash},
		{"Runtime hash", runtimeText(i)},
	} {
		if f.value != "" {
			t.row(f.name+":", f.value)
		}
	}
}

func madeBy(i Instance) string {
	if i.OnDemand {
		return ", made by request, beside its size"
	}
	return ""
}

// runtimeText says which configuration a machine has, of what can be changed
// while it runs.
func runtimeText(i Instance) string {
	if slices.Contains(i.Conditions, "runtime_drifted") {
		return i.RuntimeHash + ", which is not its group's"
	}
	return i.RuntimeHash
}

// probes lists the outcomes of what a machine's owner wants probed.
func (t *table) probes(r nstance.Report) {
	for _, p := range r.Probes {
		what := "good"
		if !p.OK {
			what = strings.TrimSpace("fails: " + p.Message)
		}
		t.row("Probe "+p.Name+":", what)
	}
}

// files lists a machine's files as it has reported them.
func (t *table) files(r nstance.Report) {
	if r.FilesError != "" {
		t.row("Files:", r.FilesError)
	}
	for _, f := range r.Files {
		what := f.Digest
		if f.Error != "" {
			what = strings.TrimSpace(f.Digest + " " + f.Error)
		}
		t.row("File "+f.Path+":", cmp.Or(what, "missing"))
	}
}

func (t *table) since(why, at, age string) string {
	if at == "" {
		return ""
	}
	if why != "" {
		why = ", " + why
	}
	return fmt.Sprintf("%s, %s ago%s", at, age, why)
}

func usage(r *nstance.Report) string {
	if r == nil {
		return ""
	}
	u := r.OneMinute
	return fmt.Sprintf("cpu %.0f%%, memory %.0f%%, disk %.0f%%, load %.2f", u.CPUPercent, u.MemoryPercent, u.DiskPercent, u.Load)
}

// byWhom says who empties a machine.
func byWhom(e nstance.Executor) string {
	if e == "" || e == nstance.ExecutorNone {
		return "nobody"
	}
	return "the " + string(e)
}

func drainText(d nstance.Drain) string {
	s := fmt.Sprintf("generation %d until %s by %s", d.Generation, stamp(d.Deadline), byWhom(d.Executor))
	for _, c := range d.Causes {
		s += ", " + string(c.Kind)
		if c.Message != "" {
			s += " (" + c.Message + ")"
		}
	}
	return s
}

func (p *program) instanceDeleteCommand() *cobra.Command {
	var yes, dryRun, noDrain bool
	cmd := &cobra.Command{
		Use: "delete ID", Short: "Drain and delete an instance",
		Long: "Drain and delete an instance. One that its group manages is replaced: to have fewer, scale the group.",
		Args: instanceArgument,
	}
	cmd.Flags().BoolVar(&noDrain, "no-drain", false, "delete it without draining it first")
	yesFlag(cmd, &yes)
	dryRunFlag(cmd, &dryRun)
	r, out := p.remote(cmd), p.output(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return r.with(cmd.Context(), func(c *client) error {
			id, err := c.instanceID(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			what := Removal{Instance: id, Action: "delete", DryRun: dryRun, NoDrain: noDrain}
			how := "drains it, then deletes it"
			if noDrain {
				how = "deletes it without a drain"
			}
			if err := p.approve(cmd.Context(), c, what, yes, how); err != nil {
				return err
			}
			_, err = c.DeleteInstance(cmd.Context(), &apiv1.DeleteInstanceRequest{Id: string(id), NoDrain: noDrain, DryRun: dryRun})
			if err != nil {
				return seek(err)
			}
			return out.print(what, func(t *table) { t.removal(what) })
		})
	}
	return cmd
}

func (p *program) instanceDrainCommand() *cobra.Command {
	var yes, dryRun bool
	var reason string
	cmd := &cobra.Command{
		Use: "drain ID", Short: "Drain an instance, after which it is deleted",
		Long: "Drain an instance, after which it is deleted. One that its group manages is replaced.",
		Args: instanceArgument,
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the journal")
	yesFlag(cmd, &yes)
	dryRunFlag(cmd, &dryRun)
	r, out := p.remote(cmd), p.output(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return r.with(cmd.Context(), func(c *client) error {
			id, err := c.instanceID(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			what := Removal{Instance: id, Action: "drain", DryRun: dryRun}
			if err := p.approve(cmd.Context(), c, what, yes, "drains it, then deletes it"); err != nil {
				return err
			}
			resp, err := c.DrainInstance(cmd.Context(), &apiv1.DrainInstanceRequest{Id: string(id), Reason: reason, DryRun: dryRun})
			if err != nil {
				return seek(err)
			}
			if what.Drain = wire.DrainOf(resp.GetDrain()); dryRun {
				what.Drain = nil
			}
			return out.print(what, func(t *table) { t.removal(what) })
		})
	}
	return cmd
}

// approve asks whether an instance shall go, and refuses for one that is gone.
func (p *program) approve(ctx context.Context, c *client, what Removal, yes bool, how string) error {
	s, err := c.story(ctx, what.Instance)
	if err != nil {
		return seek(err)
	}
	if s.State == nstance.Deleted {
		return fault(nstance.NotFound, nil, "nstance-admin instance get shows its story", fmt.Sprintf("instance %s is deleted already", s.ID))
	}
	return p.confirm(ctx, yes || what.DryRun, fmt.Sprintf("instance %s of group %s is %s; this %s%s", s.ID, s.key(), s.State, how, replaced(s.Instance)))
}

func replaced(i Instance) string {
	if i.OnDemand {
		return ""
	}
	return ", and its group replaces it"
}

func (t *table) removal(r Removal) {
	switch {
	case r.DryRun:
		t.say("instance %s: %s would be accepted", r.Instance, r.Action)
	case r.Drain != nil && !r.Drain.Deadline.IsZero():
		t.say("instance %s: drain until %s by %s, then it is deleted", r.Instance, stamp(r.Drain.Deadline), byWhom(r.Drain.Executor))
	default:
		t.say("instance %s: %s accepted", r.Instance, r.Action)
	}
}

// marketText says in which market an instance is, and which was asked for if that
// is another.
func (i *Instance) marketText() string {
	if i.MarketAsked == "" {
		return string(i.Market)
	}
	return string(i.Market) + ", asked for " + string(i.MarketAsked)
}
