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
	cmd := &cobra.Command{Use: "instance", Short: "Instances and their history"}
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
			return out.print(documents(list), func(t *table) { t.instances(list) })
		})
	}
	return cmd
}

// instances returns the instances of a tenant and a group; empty means of all.
// A group that does not exist is NotFound, because an empty answer would hide
// a mistyped name.
func (c *client) instances(ctx context.Context, tenant nstance.TenantID, group string) ([]*apiv1.Instance, error) {
	var list []*apiv1.Instance
	err := eachPage(func(page string) (paged, error) {
		resp, err := c.ListInstances(ctx, &apiv1.ListInstancesRequest{Group: group, Page: page})
		for _, i := range resp.GetInstances() {
			if tenant == "" || i.GetTenant() == string(tenant) {
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

func (t *table) instances(list []*apiv1.Instance) {
	if len(list) == 0 {
		t.say("no instances")
		return
	}
	t.row("ID", "TENANT", "GROUP", "STATE", "MARKET", "TYPE", "ZONE", "PROVIDER ID", "AGENT", "VERSION", "REPORT", "AGE", "CONDITIONS")
	for _, i := range list {
		t.row(i.GetId(), i.GetTenant(), i.GetGroup(), i.GetState(), i.GetMarket(), i.GetInstanceType(), i.GetZone(), i.GetProviderId(),
			connection(i.GetConnected()), i.GetLastReport().GetSoftware(), t.age(wire.TimeOf(i.GetLastReportAt())), t.age(wire.TimeOf(i.GetCreatedAt())), remarks(i))
	}
}

// remarks are what is special about an instance; one made by request counts in
// no size, and looks like one too many otherwise.
func remarks(i *apiv1.Instance) string {
	all := i.GetConditions()
	if i.GetOnDemand() {
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
		Use: "get ID", Short: "Show an instance and its events",
		Long: "Show an instance and its events, oldest first. Of an instance that has ended the ledger has the story; events\n" +
			"are shown as long as they are in the server's journal.",
		Args: instanceArgument,
	}
	r, out := p.remote(cmd), p.output(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return r.withInstance(cmd.Context(), args[0], func(c *client, id nstance.InstanceID) error {
			s, err := c.instanceHistory(cmd.Context(), id)
			if err != nil {
				return seek(err)
			}
			p.warnUnread(s.GetProblems(), map[string]bool{})
			return out.print(document{s}, func(t *table) { t.instanceHistory(s) })
		})
	}
	return cmd
}

// instanceHistory returns an instance with its events.
func (c *client) instanceHistory(ctx context.Context, id nstance.InstanceID) (*apiv1.GetInstanceResponse, error) {
	s, err := c.GetInstance(ctx, &apiv1.GetInstanceRequest{Id: string(id)})
	if err != nil {
		return nil, err
	}
	if len(s.GetEvents()) >= newestEvents {
		s.Events, err = c.events(ctx, eventQuery{instance: string(id), limit: maxEvents, all: true}, time.Now())
	}
	return s, err
}

// newestEvents is how many events come with an instance: the newest ones.
const newestEvents = 1000

func (t *table) instanceHistory(s *apiv1.GetInstanceResponse) {
	i := s.GetInstance()
	t.facts(i)
	if d := i.GetDrain(); d != nil {
		t.row("Drain:", drainText(d))
	}
	for _, f := range i.GetDrift() {
		t.row("Differs:", fmt.Sprintf("%s: %q, its group desires %q (%s)", f.GetPath(), f.GetBefore(), f.GetAfter(), f.GetEffect()))
	}
	t.life(s.GetLife())
	t.probes(i.GetLastReport())
	t.files(i.GetLastReport())
	if len(s.GetEvents()) == 0 {
		return
	}
	t.say("")
	t.eventHead()
	for _, e := range s.GetEvents() {
		t.event(e)
	}
}

// life lists what an instance's other facts do not say.
func (t *table) life(l *apiv1.Life) {
	for _, f := range []struct{ name, value string }{
		{"Ready", stamp(wire.TimeOf(l.GetReadyAt()))},
		{"Replaces", l.GetReplaces()},
		{"Replaced by", l.GetReplacedBy()},
		{"Drifted fields", strings.Join(l.GetDrifted(), ", ")},
		{"Machine ended", t.since(l.GetLoss(), stamp(wire.TimeOf(l.GetGoneAt())), t.age(wire.TimeOf(l.GetGoneAt())))},
		{"Deleted", t.since(strings.TrimSpace(l.GetWhy().GetKind()+" "+l.GetWhy().GetMessage()), stamp(wire.TimeOf(l.GetDeletedAt())), t.age(wire.TimeOf(l.GetDeletedAt())))},
		{"Outcome", l.GetOutcome()},
	} {
		if f.value != "" {
			t.row(f.name+":", f.value)
		}
	}
	for _, i := range l.GetInterruptions() {
		t.row("Interruption:", fmt.Sprintf("%s %s from %s at %s, drain %s", i.GetEventId(), i.GetNotice().GetKind(), i.GetNotice().GetSource(),
			stamp(noticeTime(i)), cmp.Or(drainOutcome(i), "none, or under way")))
	}
}

func (t *table) facts(i *apiv1.Instance) {
	for _, f := range []struct{ name, value string }{
		{"ID", i.GetId()},
		{"Group", wire.GroupKeyOf(i).String() + madeBy(i)},
		{"State", i.GetState()},
		{"Conditions", strings.Join(i.GetConditions(), ", ")},
		{"Shape chosen", i.GetShapeChoice()},
		{"Created", t.since(i.GetReason(), stamp(wire.TimeOf(i.GetCreatedAt())), t.age(wire.TimeOf(i.GetCreatedAt())))},
		{"Registered", stamp(wire.TimeOf(i.GetRegisteredAt()))},
		{"Last report", t.since("", stamp(wire.TimeOf(i.GetLastReportAt())), t.age(wire.TimeOf(i.GetLastReportAt())))},
		{"Agent", connection(i.GetConnected())},
		{"Agent's version", i.GetLastReport().GetSoftware()},
		{"Usage", usage(i.GetLastReport())},
		{"Provider ID", i.GetProviderId()},
		{"Node provider ID", i.GetNodeProviderId()},
		{"Type", i.GetInstanceType()},
		{"Zone", i.GetZone()},
		{"Market", instanceMarket(i)},
		{"Addresses", strings.Join(i.GetAddresses(), ", ")},
		{"Infra hash", i.GetInfraHash()},
		{"Runtime hash", runtimeText(i)},
	} {
		if f.value != "" {
			t.row(f.name+":", f.value)
		}
	}
}

func madeBy(i *apiv1.Instance) string {
	if i.GetOnDemand() {
		return ", on demand, beside its size"
	}
	return ""
}

// runtimeText formats which configuration a machine has, of what can be changed
// while it runs.
func runtimeText(i *apiv1.Instance) string {
	if slices.Contains(i.GetConditions(), "runtime_drifted") {
		return i.GetRuntimeHash() + ", differs from its group's"
	}
	return i.GetRuntimeHash()
}

// probes lists the outcomes of the probes that a machine's owner configured.
func (t *table) probes(r *apiv1.HealthReport) {
	for _, p := range r.GetProbes() {
		what := "good"
		if !p.GetOk() {
			what = strings.TrimSpace("fails: " + p.GetMessage())
		}
		t.row("Probe "+p.GetName()+":", what)
	}
}

// files lists a machine's files as it has reported them.
func (t *table) files(r *apiv1.HealthReport) {
	if r.GetMetadataError() != "" {
		t.row("Metadata service:", r.GetMetadataError())
	}
	if r.GetFilesError() != "" {
		t.row("Files:", r.GetFilesError())
	}
	for _, f := range r.GetFiles() {
		what := f.GetDigest()
		if f.GetError() != "" {
			what = strings.TrimSpace(f.GetDigest() + " " + f.GetError())
		}
		t.row("File "+f.GetPath()+":", cmp.Or(what, "missing"))
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

func usage(r *apiv1.HealthReport) string {
	if r == nil {
		return ""
	}
	return fmt.Sprintf("cpu %.0f%%, memory %.0f%%, disk %.0f%%, load %.2f", r.GetCpuUsage(), r.GetMemoryUsage(), r.GetDiskUsage(), r.GetLoad())
}

// executorText names the executor of a drain.
func executorText(d *apiv1.Drain) string {
	if e := nstance.Executor(d.GetExecutor()); e == "" || e == nstance.ExecutorNone {
		return "no executor"
	}
	return "the " + d.GetExecutor()
}

// untilText says how long a drain may last.
func untilText(d *apiv1.Drain) string {
	if wire.DrainOf(d).Unlimited() {
		return "until it is empty"
	}
	return "until " + stamp(wire.TimeOf(d.GetDeadline()))
}

func drainText(d *apiv1.Drain) string {
	s := fmt.Sprintf("generation %d %s by %s", d.GetGeneration(), untilText(d), executorText(d))
	for _, c := range d.GetCauses() {
		s += ", " + c.GetKind()
		if c.GetMessage() != "" {
			s += " (" + c.GetMessage() + ")"
		}
	}
	return s
}

func (p *program) instanceDeleteCommand() *cobra.Command {
	var yes, dryRun, noDrain bool
	cmd := &cobra.Command{
		Use: "delete ID", Short: "Drain and delete an instance",
		Long: "Drain and delete an instance. A member of a group is replaced: to have fewer, scale the group.",
		Args: instanceArgument,
	}
	cmd.Flags().BoolVar(&noDrain, "no-drain", false, "delete it without draining it first")
	yesFlag(cmd, &yes)
	dryRunFlag(cmd, &dryRun)
	r, out := p.remote(cmd), p.output(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return r.withInstance(cmd.Context(), args[0], func(c *client, id nstance.InstanceID) error {
			how := "drains it, then deletes it"
			if noDrain {
				how = "deletes it without a drain"
			}
			if err := p.approve(cmd.Context(), c, id, yes || dryRun, how); err != nil {
				return err
			}
			resp, err := c.DeleteInstance(cmd.Context(), &apiv1.DeleteInstanceRequest{Id: string(id), NoDrain: noDrain, DryRun: dryRun})
			if err != nil {
				return seek(err)
			}
			return out.print(document{resp}, func(t *table) { t.removal(id, "delete", nil, dryRun) })
		})
	}
	return cmd
}

func (p *program) instanceDrainCommand() *cobra.Command {
	var yes, dryRun bool
	var reason string
	cmd := &cobra.Command{
		Use: "drain ID", Short: "Drain an instance, after which it is deleted",
		Long: "Drain an instance, after which it is deleted. A member of a group is replaced.",
		Args: instanceArgument,
	}
	cmd.Flags().StringVar(&reason, "reason", "", "reason, for the journal")
	yesFlag(cmd, &yes)
	dryRunFlag(cmd, &dryRun)
	r, out := p.remote(cmd), p.output(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return r.withInstance(cmd.Context(), args[0], func(c *client, id nstance.InstanceID) error {
			if err := p.approve(cmd.Context(), c, id, yes || dryRun, "drains it, then deletes it"); err != nil {
				return err
			}
			resp, err := c.DrainInstance(cmd.Context(), &apiv1.DrainInstanceRequest{Id: string(id), Reason: reason, DryRun: dryRun})
			if err != nil {
				return seek(err)
			}
			return out.print(document{resp}, func(t *table) { t.removal(id, "drain", resp.GetDrain(), dryRun) })
		})
	}
	return cmd
}

// approve asks whether an instance shall go, and refuses for one that is gone.
func (p *program) approve(ctx context.Context, c *client, id nstance.InstanceID, yes bool, how string) error {
	s, err := c.instanceHistory(ctx, id)
	if err != nil {
		return seek(err)
	}
	i := s.GetInstance()
	if nstance.State(i.GetState()) == nstance.Deleted {
		return fault(nstance.NotFound, nil, "see nstance-admin instance get", fmt.Sprintf("instance %s is deleted already", id))
	}
	return p.confirm(ctx, yes, fmt.Sprintf("instance %s of group %s is %s; this %s%s", id, wire.GroupKeyOf(i), i.GetState(), how, replaced(i)))
}

func replaced(i *apiv1.Instance) string {
	if i.GetOnDemand() {
		return ""
	}
	return ", and its group replaces it"
}

func (t *table) removal(id nstance.InstanceID, action string, d *apiv1.Drain, dryRun bool) {
	switch {
	case dryRun:
		t.say("instance %s: %s would be accepted", id, action)
	case d.GetDeadline() != nil:
		t.say("instance %s: drain %s by %s, then it is deleted", id, untilText(d), executorText(d))
	default:
		t.say("instance %s: %s accepted", id, action)
	}
}

// instanceMarket formats in which market an instance is, and the requested one if that
// is another.
func instanceMarket(i *apiv1.Instance) string {
	if i.GetMarketAsked() == "" {
		return i.GetMarket()
	}
	return i.GetMarket() + ", asked for " + i.GetMarketAsked()
}
