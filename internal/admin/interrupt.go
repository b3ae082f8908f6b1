package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/duration"
	"github.com/nstance-go/nstance/internal/wire"
)

// An interruption holds the flags of the command.
type interruption struct {
	id     nstance.InstanceID // or a group
	tenant string
	group  string
	count  int32
	force  bool
	kind   string
	notice time.Duration
	limit  time.Duration // of waiting
	dryRun bool
	wait   bool
	real   bool // through the metadata service
	yes    bool
}

func interruptCommand(env environment) *cobra.Command {
	var i interruption
	cmd := &cobra.Command{
		Use:   "interrupt [ID]",
		Short: "Simulate a reclaim of an instance, or of several in a group",
		Long: "Simulate a reclaim: the server receives a notice as if the cloud reclaimed the instance, and reacts as it\n" +
			"would then. The instance is drained and deleted, and replaced. With --wait, the latency of each stage is\n" +
			"reported. With --group, the server chooses --count of the group's ready members, those that have been there\n" +
			"longest, and gives all of them the notice at once. It refuses a group that lacks ready members, and a count beyond\n" +
			"the group's size, unless --force is set. --group with --wait fails with code 1 if a drain missed the deadline.",
	}
	f := cmd.Flags()
	f.StringVar(&i.group, "group", "", "interrupt members of this group")
	tenantFlag(cmd, &i.tenant)
	f.Int32Var(&i.count, "count", 1, "with --group: how many members, at most 1000")
	f.BoolVar(&i.force, "force", false, "with --group: also if it lacks ready members, and as many as there are")
	choice(cmd, &i.kind, "kind", "", "kind of the notice; a group may ignore others than reclaim", string(nstance.Reclaim), string(nstance.Rebalance), string(nstance.Maintenance))
	f.Var(duration.NewFlag(&i.notice, 2*time.Minute), "notice", "time until the simulated reclaim, at most 1h")
	f.BoolVar(&i.real, "through-metadata", false, "publish the notice on the machine's own metadata service, where its agent finds it; local machines only")
	f.BoolVar(&i.wait, "wait", false, "wait until all stages are over")
	f.Var(duration.NewFlag(&i.limit, 15*time.Minute), "wait-timeout", "how long to wait at most")
	yesFlag(cmd, &i.yes)
	dryRunFlag(cmd, &i.dryRun)
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		switch {
		case i.group == "" && (f.Changed("count") || f.Changed("force") || f.Changed("tenant")):
			return nstance.FieldError("--group", "name the group to choose from", "is missing")
		case i.group == "":
			return instanceArgument(cmd, args)
		case len(args) > 0:
			return nstance.FieldError("--group", "name an instance or a group", "is set beside an instance")
		}
		return nil
	}
	r, out := newRemote(cmd, env), newOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return r.with(cmd.Context(), func(c *client) (err error) {
			if i.group != "" {
				return interruptGroup(cmd, r, c, i, out)
			}
			if i.id, err = c.instanceID(cmd.Context(), args[0]); err != nil {
				return err
			}
			return interruptInstance(cmd, r, c, i, out)
		})
	}
	return cmd
}

func interruptInstance(cmd *cobra.Command, r *remote, c *client, i interruption, out *output) error {
	ctx := cmd.Context()
	s, err := c.instanceHistory(ctx, i.id)
	if err != nil {
		return seek(err)
	}
	of := s.GetInstance()
	if nstance.State(of.GetState()).Leaving() {
		return fault(nstance.Conflict, nil, "choose another instance", fmt.Sprintf("instance %s is %s already", i.id, of.GetState()))
	}
	if err := confirm(cmd, i.yes || i.dryRun, fmt.Sprintf("instance %s of group %s is %s; this drains it, then deletes it%s",
		i.id, wire.GroupKeyOf(of), of.GetState(), replaced(of))); err != nil {
		return err
	}
	w := &rehearsals{r: r, c: c, i: i, key: wire.GroupKeyOf(of), onDemand: of.GetOnDemand()}
	if i.dryRun || !i.wait {
		if err := w.inject(ctx); err != nil {
			return seek(err)
		}
		return out.print(document{w.answer}, func(t *table) { writeInjected(t, i, w.answer) })
	}
	err = w.observe(ctx)
	if w.answer == nil {
		return seek(err)
	}
	seen := w.all[0].seen
	return errors.Join(err, out.print(document{seen}, func(t *table) { writeStages(t, seen) }))
}

// rehearsals are the interruptions of one command.
type rehearsals struct {
	r        *remote
	c        *client
	i        interruption
	key      nstance.GroupKey
	onDemand bool                     // the one instance: it is not replaced
	answer   *apiv1.InterruptResponse // nil until the notice is injected
	all      []*rehearsal             // in the order of the answer
}

// A rehearsal is one interruption under way.
type rehearsal struct {
	id           nstance.InstanceID
	note         func(latency, what string)
	eventID      string // empty: the agent chooses it
	onDemand     bool
	replacements map[nstance.InstanceID]bool
	seen         *apiv1.Interruption // what the command observes
	complete     bool                // nothing is missing
}

// inject sends the notice to the server. It is never repeated: each call is another
// notice.
func (w *rehearsals) inject(ctx context.Context) error {
	req := &apiv1.InterruptRequest{Id: string(w.i.id), DryRun: w.i.dryRun, Notice: durationpb.New(w.i.notice), ThroughMetadata: w.i.real, Kind: w.i.kind}
	if w.i.group != "" {
		req.Tenant, req.Group, req.Count, req.Force = string(w.key.Tenant), string(w.key.Group), w.i.count, w.i.force
	}
	resp, err := w.c.Interrupt(ctx, req)
	if err != nil {
		return err
	}
	w.answer = resp
	ids := resp.GetInstances()
	if len(ids) == 0 { // of an older server
		ids = []string{string(w.i.id)}
	}
	for _, id := range ids {
		w.all = append(w.all, &rehearsal{
			id: nstance.InstanceID(id), note: w.noteOf(id), eventID: resp.GetEventId(), onDemand: w.onDemand, replacements: map[nstance.InstanceID]bool{},
			seen: &apiv1.Interruption{Tenant: string(w.key.Tenant), Group: string(w.key.Group), Instance: id, Rehearsal: true},
		})
	}
	return nil
}

// noteOf returns what prints the stages of an instance as they come.
func (w *rehearsals) noteOf(id string) func(latency, what string) {
	return func(latency, what string) {
		if w.i.group != "" {
			what = id + "  " + what
		}
		w.r.stderr.note("%9s  %s", latency, printable(what))
	}
}

// observe injects once the watch is open, and watches until everything has happened.
func (w *rehearsals) observe(ctx context.Context) error {
	limited, cancel := withLimit(ctx, w.i.limit)
	defer cancel()
	for n, err := range w.r.follow(limited, &apiv1.WatchInstanceEventsRequest{Group: string(w.key.Group)}) {
		switch {
		case err != nil:
			return err
		case n.gap:
			err = w.catchUp(limited)
		case n.synced:
			err = w.inject(limited)
		default:
			w.handleEvent(wire.EventOf(n.event))
		}
		complete := false
		if err == nil {
			complete, err = w.checkComplete(limited)
		}
		if complete || err != nil && limited.Err() == nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return errors.New("interrupted: the rehearsal goes on at the server")
	}
	return fault(nstance.Unavailable, nil, "nstance-admin events --follow shows the rest",
		fmt.Sprintf("not everything happened within %s: %s", w.i.limit, w.missing()))
}

// catchUp reads from the journal the events that the stream missed.
func (w *rehearsals) catchUp(ctx context.Context) error {
	q := eventQuery{tenant: w.key.Tenant, group: string(w.key.Group), limit: maxEvents}
	events, err := w.c.events(ctx, q, time.Now())
	for _, e := range events {
		w.handleEvent(wire.EventOf(e))
	}
	return err
}

func (w *rehearsals) handleEvent(e nstance.Event) {
	for _, x := range w.all {
		x.handleEvent(e)
	}
}

// checkComplete decides whether everything has happened. An instance deleted without
// a replacement may have needed none: then the group has its size.
func (w *rehearsals) checkComplete(ctx context.Context) (bool, error) {
	unreplaced := false
	for _, x := range w.all {
		if !x.complete && !x.deletedAlone() {
			return false, nil
		}
		unreplaced = unreplaced || !x.complete
	}
	if !unreplaced {
		return len(w.all) > 0, nil
	}
	g, err := w.c.group(ctx, w.key.Tenant, string(w.key.Group))
	if errors.Is(err, nstance.NotFound) {
		return true, nil
	}
	return err == nil && g.GetReady() >= g.GetSize(), err
}

// missing says what has not happened, of the first instance that lacks something.
func (w *rehearsals) missing() string {
	lacking := slices.DeleteFunc(slices.Clone(w.all), func(x *rehearsal) bool { return x.complete })
	switch {
	case len(lacking) == 0:
		return "the notice was not injected"
	case len(w.all) == 1:
		return strings.Join(lacking[0].missing(), ", ") + " is still missing"
	}
	return fmt.Sprintf("%s is still missing for %s, the first of %d of %d instances", strings.Join(lacking[0].missing(), ", "), lacking[0].id, len(lacking), len(w.all))
}

// handleEvent records the stage of an event. Events may come twice.
func (x *rehearsal) handleEvent(e nstance.Event) {
	mine, seen := e.Instance == x.id, x.seen
	switch {
	case mine && e.Notice != nil && (x.knownID() == "" || e.Notice.EventID == x.knownID()):
		x.handleNotice(e)
	case seen.GetDetectedAt() == nil || e.Time.Before(noticeTime(seen)): // not of this rehearsal
	case e.Replaces == x.id && e.Type == nstance.EventReplacementRequested:
		seen.Replacement, x.replacements[e.Instance] = string(e.Instance), true
		x.stage(&seen.ReplacementRequestedAt, e, "replacement requested: "+string(e.Instance))
	case x.replacements[e.Instance] && e.Type == nstance.EventReady:
		seen.Replacement = string(e.Instance)
		x.stage(&seen.ReplacementReadyAt, e, "replacement ready")
	case !mine:
	case e.Type == nstance.EventDrainStarted:
		x.stage(&seen.DrainStartedAt, e, "drain started")
	case e.Type == nstance.EventDrainAcknowledged:
		x.drained(e, e.Reason)
	case e.Type == nstance.EventDrainCutShort:
		x.drained(e, "cut short")
	case e.Type == nstance.EventDeleted:
		x.stage(&seen.DeletedAt, e, "deleted")
	}
	replaced := x.onDemand || seen.GetReplacementReadyAt() != nil
	x.complete = seen.GetIgnored() != "" || seen.GetDeletedAt() != nil && replaced
}

// knownID returns the ID of the notice. With --through-metadata the agent chooses it.
func (x *rehearsal) knownID() string { return cmp.Or(x.seen.GetEventId(), x.eventID) }

// handleNotice records the notice. Latencies are counted from it, by the server's clock.
func (x *rehearsal) handleNotice(e nstance.Event) {
	x.seen.EventId, x.seen.Notice = e.Notice.EventID, wire.Notice(*e.Notice)
	if x.seen.DetectedAt = wire.Time(e.Notice.DetectedAt); x.seen.DetectedAt == nil {
		x.seen.DetectedAt = wire.Time(e.Time)
	}
	if e.Type == nstance.EventNoticeIgnored && x.seen.GetIgnored() == "" {
		x.seen.Ignored = cmp.Or(e.Reason, "ignored")
		x.note(latency(x.seen, wire.Time(e.Time)), "notice ignored: "+x.seen.GetIgnored())
	}
	if e.Type == nstance.EventNoticeReceived {
		x.stage(&x.seen.ReceivedAt, e, "notice received")
	}
}

func (x *rehearsal) drained(e nstance.Event, outcome string) {
	if x.seen.GetDrainOutcome() != string(nstance.OutcomeDrained) {
		x.seen.DrainOutcome = outcome
	}
	x.stage(&x.seen.DrainedAt, e, "drain over: "+outcome)
}

func (x *rehearsal) stage(at **timestamppb.Timestamp, e nstance.Event, what string) {
	if *at != nil {
		return
	}
	*at = wire.Time(e.Time)
	x.note(latency(x.seen, *at), what)
}

// deletedAlone reports whether the instance is deleted and no replacement was requested.
func (x *rehearsal) deletedAlone() bool {
	return x.seen.GetDeletedAt() != nil && x.seen.GetReplacementRequestedAt() == nil
}

func (x *rehearsal) missing() []string {
	var out []string
	for _, s := range stagesOf(x.seen) {
		if s.at == nil && s.name != stageDrainOver {
			out = append(out, s.name)
		}
	}
	return out
}

// The stages that have a histogram.
const (
	stageDrainOver        = "drain over"
	stageReplacementReady = "replacement ready"
)

type stage struct {
	name    string
	at      *timestamppb.Timestamp
	details string
}

func stagesOf(i *apiv1.Interruption) []stage {
	return []stage{
		{"notice received", i.GetReceivedAt(), ""}, {"replacement requested", i.GetReplacementRequestedAt(), i.GetReplacement()},
		{stageDrainOver, i.GetDrainedAt(), i.GetDrainOutcome()}, {stageReplacementReady, i.GetReplacementReadyAt(), ""}, {"deleted", i.GetDeletedAt(), ""},
	}
}

func writeStages(t *table, i *apiv1.Interruption) {
	t.row("STAGE", "AFTER", "DETAILS")
	for _, s := range stagesOf(i) {
		t.row(s.name, latency(i, s.at), s.details)
	}
}

func writeInjected(t *table, i interruption, answer *apiv1.InterruptResponse) {
	switch {
	case i.dryRun && len(answer.GetPlan()) == 0:
		t.say("no change")
	case i.dryRun:
		for _, line := range answer.GetPlan() {
			t.say("would %s", line)
		}
	case i.group != "":
		for _, id := range answer.GetInstances() {
			t.say("instance %s: notice %s injected", id, answer.GetEventId())
		}
	case answer.GetEventId() == "":
		t.say("instance %s: a notice is published on its metadata service, nstance-admin instance get shows the outcome", i.id)
	default:
		t.say("instance %s: notice %s injected, nstance-admin instance get shows the outcome", i.id, answer.GetEventId())
	}
}

// latency returns how long after the notice something happened, or "" if it did not.
func latency(i *apiv1.Interruption, at *timestamppb.Timestamp) string {
	if at == nil {
		return ""
	}
	return fmt.Sprintf("%.3fs", max(0, at.AsTime().Sub(noticeTime(i))).Seconds())
}
