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

func instanceCommand(env environment) *cobra.Command {
	cmd := &cobra.Command{Use: "instance", Short: "Instances and their history"}
	cmd.AddCommand(instanceListCommand(env), instanceGetCommand(env), instanceConsoleCommand(env), instanceCreateCommand(env), instanceDeleteCommand(env), instanceDrainCommand(env), instancePreserveCommand(env))
	return cmd
}

func instanceListCommand(env environment) *cobra.Command {
	var tenant, group, sortBy string
	var states, conditions []string
	cmd := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List the instances of the shard", Args: arguments()}
	tenantFlag(cmd, &tenant)
	cmd.Flags().StringSliceVar(&states, "state", nil, "only in these states, such as booting or draining; may be repeated")
	_ = cmd.RegisterFlagCompletionFunc("state", completions(listedStates))
	cmd.Flags().StringSliceVarP(&conditions, "label", "l", nil, "only with all of these: NAME=VALUE of "+strings.Join(labelNames, ", ")+", or a condition such as drifted; may be repeated")
	choice(cmd, &sortBy, "sort", "", "order", "id", "age", "state", "group", "report")
	cmd.Flags().StringVar(&group, "group", "", "only of this group")
	r, out := newRemote(cmd, env), newOutput(cmd)
	cmd.RunE = r.run(func(c *client, _ []string) error {
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
		return out.print(documents(list), func(t *table) { writeInstances(t, list) })
	})
	return cmd
}

// instances returns the instances of a tenant and a group; empty means of all.
// A group that does not exist is NotFound, because an empty answer would hide
// a mistyped name.
func (c *client) instances(ctx context.Context, tenant nstance.TenantID, group string) ([]*apiv1.Instance, error) {
	list, err := allPages(func(page string) (*apiv1.ListInstancesResponse, error) {
		return c.ListInstances(ctx, &apiv1.ListInstancesRequest{Group: group, Page: page})
	}, (*apiv1.ListInstancesResponse).GetInstances)
	if err != nil {
		return nil, err
	}
	if list = ofTenant(list, tenant); len(list) == 0 && group != "" {
		if _, err := c.group(ctx, tenant, group); nstance.CodeOf(err) == nstance.NotFound {
			return nil, err
		}
	}
	return list, nil
}

func writeInstances(t *table, list []*apiv1.Instance) {
	if len(list) == 0 {
		t.say("no instances")
		return
	}
	t.row("ID", "TENANT", "GROUP", "STATE", "MARKET", "TYPE", "ZONE", "PROVIDER ID", "AGENT", "VERSION", "REPORT", "AGE", "CONDITIONS")
	for _, i := range list {
		t.row(i.GetId(), i.GetTenant(), i.GetGroup(), i.GetState(), i.GetMarket(), i.GetInstanceType(), i.GetZone(), i.GetProviderId(),
			connection(i.GetConnected()), i.GetLastReport().GetSoftware(), t.age(i.GetLastReportAt()), t.age(i.GetCreatedAt()), remarks(i))
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

func instanceGetCommand(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use: "get ID", Short: "Show an instance and its events",
		Long: "Show an instance and its events, oldest first. Of an instance that has ended the ledger has the story; events\n" +
			"are shown as long as they are in the server's journal.",
		Args: instanceArgument,
	}
	r, out := newRemote(cmd, env), newOutput(cmd)
	cmd.RunE = r.runInstance(func(c *client, id nstance.InstanceID) error {
		s, err := c.instanceHistory(cmd.Context(), id)
		if err != nil {
			return seek(err)
		}
		warnUnread(cmd, s.GetProblems(), map[string]bool{})
		return out.print(document{s}, func(t *table) { writeInstanceHistory(t, s) })
	})
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

func writeInstanceHistory(t *table, s *apiv1.GetInstanceResponse) {
	i := s.GetInstance()
	writeFacts(t, i)
	if d := i.GetDrain(); d != nil {
		t.row("Drain:", drainText(d))
	}
	for _, f := range i.GetDrift() {
		t.row("Differs:", fmt.Sprintf("%s: %q, its group desires %q (%s)", f.GetPath(), f.GetBefore(), f.GetAfter(), f.GetEffect()))
	}
	writeLife(t, s.GetLife())
	writeProbes(t, i.GetLastReport())
	writeFiles(t, i.GetLastReport())
	if len(s.GetEvents()) == 0 {
		return
	}
	t.say("")
	writeEventHead(t)
	for _, e := range s.GetEvents() {
		writeEvent(t, e)
	}
}

// writeLife lists what an instance's other facts do not say.
func writeLife(t *table, l *apiv1.Life) {
	t.fields([]field{
		{"Ready", stampOf(l.GetReadyAt())},
		{"Replaces", l.GetReplaces()},
		{"Replaced by", l.GetReplacedBy()},
		{"Drifted fields", strings.Join(l.GetDrifted(), ", ")},
		{"Machine ended", t.since(l.GetLoss(), l.GetGoneAt())},
		{"Deleted", t.since(strings.TrimSpace(l.GetWhy().GetKind()+" "+l.GetWhy().GetMessage()), l.GetDeletedAt())},
		{"Outcome", l.GetOutcome()},
	})
	for _, i := range l.GetInterruptions() {
		t.row("Interruption:", fmt.Sprintf("%s %s from %s at %s, drain %s", i.GetEventId(), i.GetNotice().GetKind(), i.GetNotice().GetSource(),
			stamp(noticeTime(i)), cmp.Or(drainOutcome(i), "none, or under way")))
	}
}

func writeFacts(t *table, i *apiv1.Instance) {
	t.fields([]field{
		{"ID", i.GetId()},
		{"Group", wire.GroupKeyOf(i).String() + madeBy(i)},
		{"State", i.GetState()},
		{"Conditions", strings.Join(i.GetConditions(), ", ")},
		{"Shape chosen", i.GetShapeChoice()},
		{"Created", t.since(i.GetReason(), i.GetCreatedAt())},
		{"Registered", stampOf(i.GetRegisteredAt())},
		{"Last report", t.since("", i.GetLastReportAt())},
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
	})
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

// writeProbes lists the outcomes of the probes that a machine's owner configured.
func writeProbes(t *table, r *apiv1.HealthReport) {
	for _, p := range r.GetProbes() {
		what := "good"
		if !p.GetOk() {
			what = strings.TrimSpace("fails: " + p.GetMessage())
		}
		t.row("Probe "+p.GetName()+":", what)
	}
}

// writeFiles lists a machine's files as it has reported them.
func writeFiles(t *table, r *apiv1.HealthReport) {
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
	return "until " + stampOf(d.GetDeadline())
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

func instanceDeleteCommand(env environment) *cobra.Command {
	var yes, dryRun, noDrain bool
	cmd := &cobra.Command{
		Use: "delete ID", Short: "Drain and delete an instance",
		Long: "Drain and delete an instance. A member of a group is replaced: to have fewer, scale the group.",
		Args: instanceArgument,
	}
	cmd.Flags().BoolVar(&noDrain, "no-drain", false, "delete it without draining it first")
	yesFlag(cmd, &yes)
	dryRunFlag(cmd, &dryRun)
	r, out := newRemote(cmd, env), newOutput(cmd)
	cmd.RunE = r.runInstance(func(c *client, id nstance.InstanceID) error {
		how := "drains it, then deletes it"
		if noDrain {
			how = "deletes it without a drain"
		}
		if err := approve(cmd, c, id, yes || dryRun, how); err != nil {
			return err
		}
		resp, err := c.DeleteInstance(cmd.Context(), &apiv1.DeleteInstanceRequest{Id: string(id), NoDrain: noDrain, DryRun: dryRun})
		return out.result(document{resp}, seek(err), func(t *table) { writeRemoval(t, id, "delete", nil, dryRun) })
	})
	return cmd
}

func instanceDrainCommand(env environment) *cobra.Command {
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
	r, out := newRemote(cmd, env), newOutput(cmd)
	cmd.RunE = r.runInstance(func(c *client, id nstance.InstanceID) error {
		if err := approve(cmd, c, id, yes || dryRun, "drains it, then deletes it"); err != nil {
			return err
		}
		resp, err := c.DrainInstance(cmd.Context(), &apiv1.DrainInstanceRequest{Id: string(id), Reason: reason, DryRun: dryRun})
		return out.result(document{resp}, seek(err), func(t *table) { writeRemoval(t, id, "drain", resp.GetDrain(), dryRun) })
	})
	return cmd
}

// approve asks whether an instance shall go, and refuses for one that is gone.
func approve(cmd *cobra.Command, c *client, id nstance.InstanceID, yes bool, how string) error {
	s, err := c.instanceHistory(cmd.Context(), id)
	if err != nil {
		return seek(err)
	}
	i := s.GetInstance()
	if nstance.State(i.GetState()) == nstance.Deleted {
		return fault(nstance.NotFound, nil, "see nstance-admin instance get", fmt.Sprintf("instance %s is deleted already", id))
	}
	return confirm(cmd, yes, fmt.Sprintf("instance %s of group %s is %s; this %s%s", id, wire.GroupKeyOf(i), i.GetState(), how, replaced(i)))
}

func replaced(i *apiv1.Instance) string {
	if i.GetOnDemand() {
		return ""
	}
	return ", and its group replaces it"
}

func writeRemoval(t *table, id nstance.InstanceID, action string, d *apiv1.Drain, dryRun bool) {
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
