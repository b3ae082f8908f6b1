package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
	id     nstance.InstanceID
	notice time.Duration
	limit  time.Duration // of waiting
	dryRun bool
	wait   bool
	real   bool // through the metadata service
	yes    bool
}

func (p *program) interruptCommand() *cobra.Command {
	var i interruption
	cmd := &cobra.Command{
		Use:   "interrupt ID",
		Short: "Simulate a reclaim of an instance",
		Long: "Simulate a reclaim: the server receives a notice as if the cloud reclaimed the instance, and reacts as it\n" +
			"would then. The instance is drained and deleted, and replaced. With --wait, the latency of each stage is\n" +
			"reported.",
		Args: instanceArgument,
	}
	f := cmd.Flags()
	f.Var(duration.NewFlag(&i.notice, 2*time.Minute), "notice", "time until the simulated reclaim, at most 1h")
	f.BoolVar(&i.real, "through-metadata", false, "publish the notice on the machine's own metadata service, where its agent finds it; local machines only")
	f.BoolVar(&i.wait, "wait", false, "wait until all stages are over")
	f.Var(duration.NewFlag(&i.limit, 15*time.Minute), "wait-timeout", "how long to wait at most")
	yesFlag(cmd, &i.yes)
	dryRunFlag(cmd, &i.dryRun)
	r, out := p.remote(cmd), p.output(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return r.with(cmd.Context(), func(c *client) (err error) {
			if i.id, err = c.instanceID(cmd.Context(), args[0]); err != nil {
				return err
			}
			return p.interrupt(cmd.Context(), r, c, i, out)
		})
	}
	return cmd
}

func (p *program) interrupt(ctx context.Context, r *remote, c *client, i interruption, out *output) error {
	s, err := c.instanceHistory(ctx, i.id)
	if err != nil {
		return seek(err)
	}
	of := s.GetInstance()
	if nstance.State(of.GetState()).Leaving() {
		return fault(nstance.Conflict, nil, "choose another instance", fmt.Sprintf("instance %s is %s already", i.id, of.GetState()))
	}
	if err := p.confirm(ctx, i.yes || i.dryRun, fmt.Sprintf("instance %s of group %s is %s; this drains it, then deletes it%s",
		i.id, wire.GroupKeyOf(of), of.GetState(), replaced(of))); err != nil {
		return err
	}
	x := &rehearsal{p: p, r: r, c: c, i: i, of: of}
	if i.dryRun || !i.wait {
		if err := x.inject(ctx); err != nil {
			return seek(err)
		}
		return out.print(document{x.answer}, func(t *table) { t.injected(i, x.answer) })
	}
	x.seen = &apiv1.Interruption{Tenant: of.GetTenant(), Group: of.GetGroup(), Instance: of.GetId(), Rehearsal: true}
	err = x.observe(ctx)
	if x.answer == nil {
		return seek(err)
	}
	return errors.Join(err, out.print(document{x.seen}, func(t *table) { t.stages(x.seen) }))
}

// A rehearsal is one interruption under way.
type rehearsal struct {
	p            *program
	r            *remote
	c            *client
	i            interruption
	of           *apiv1.Instance
	replacements map[nstance.InstanceID]bool
	answer       *apiv1.InterruptResponse // nil until the notice is injected
	seen         *apiv1.Interruption      // what the command observes
	complete     bool                     // nothing is missing
}

// inject sends the notice to the server. It is never repeated: each call is another
// notice.
func (x *rehearsal) inject(ctx context.Context) error {
	resp, err := x.c.Interrupt(ctx, &apiv1.InterruptRequest{Id: string(x.i.id), DryRun: x.i.dryRun, Notice: durationpb.New(x.i.notice), ThroughMetadata: x.i.real})
	if err != nil {
		return err
	}
	x.answer = resp
	return nil
}

// observe injects once the watch is open, and watches until everything has happened.
func (x *rehearsal) observe(ctx context.Context) error {
	x.replacements = map[nstance.InstanceID]bool{}
	limited, cancel := context.WithTimeout(ctx, x.i.limit)
	defer cancel()
	for n, err := range x.r.follow(limited, &apiv1.WatchInstanceEventsRequest{Group: x.of.GetGroup()}) {
		switch {
		case err != nil:
			return err
		case n.gap:
			err = x.catchUp(limited)
		case n.synced:
			err = x.inject(limited)
		default:
			x.handleEvent(wire.EventOf(n.event))
		}
		if err == nil {
			err = x.checkComplete(limited)
		}
		if err != nil || x.complete {
			return err
		}
	}
	if ctx.Err() != nil {
		return errors.New("interrupted: the rehearsal goes on at the server")
	}
	return fault(nstance.Unavailable, nil, "nstance-admin events --follow shows the rest",
		fmt.Sprintf("not everything happened within %s: %s is still missing", x.i.limit, strings.Join(x.missing(), ", ")))
}

// catchUp reads from the journal the events that the stream missed.
func (x *rehearsal) catchUp(ctx context.Context) error {
	q := eventQuery{tenant: nstance.TenantID(x.of.GetTenant()), group: x.of.GetGroup(), limit: maxEvents}
	events, err := x.c.events(ctx, q, x.p.now())
	for _, e := range events {
		x.handleEvent(wire.EventOf(e))
	}
	return err
}

// handleEvent records the stage of an event. Events may come twice.
func (x *rehearsal) handleEvent(e nstance.Event) {
	mine, seen := e.Instance == x.i.id, x.seen
	switch {
	case mine && e.Notice != nil && x.answer != nil && (x.eventID() == "" || e.Notice.EventID == x.eventID()):
		x.handleNotice(e)
	case seen.GetDetectedAt() == nil || e.Time.Before(noticeTime(seen)): // not of this rehearsal
	case e.Replaces == x.i.id && e.Type == nstance.EventReplacementRequested:
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
}

// eventID returns the ID of the notice. With --through-metadata the agent chooses it.
func (x *rehearsal) eventID() string {
	return cmp.Or(x.seen.GetEventId(), x.answer.GetEventId())
}

// handleNotice records the notice. Latencies are counted from it, by the server's clock.
func (x *rehearsal) handleNotice(e nstance.Event) {
	x.seen.EventId, x.seen.Notice = e.Notice.EventID, wire.Notice(*e.Notice)
	if x.seen.DetectedAt = wire.Time(e.Notice.DetectedAt); x.seen.DetectedAt == nil {
		x.seen.DetectedAt = wire.Time(e.Time)
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
	x.p.stderr.note("%9s  %s", latency(x.seen, *at), printable(what))
}

// checkComplete decides whether everything has happened. An instance deleted without
// a replacement may have needed none: then the group has its size.
func (x *rehearsal) checkComplete(ctx context.Context) error {
	if x.seen.GetDeletedAt() == nil || x.complete {
		return nil
	}
	if x.seen.GetReplacementRequestedAt() != nil || x.of.GetOnDemand() {
		x.complete = x.of.GetOnDemand() || x.seen.GetReplacementReadyAt() != nil
		return nil
	}
	g, err := x.c.group(ctx, nstance.TenantID(x.of.GetTenant()), x.of.GetGroup())
	if errors.Is(err, nstance.NotFound) {
		x.complete = true
		return nil
	}
	x.complete = err == nil && g.GetReady() >= g.GetSize()
	return err
}

func (x *rehearsal) missing() []string {
	var out []string
	for _, s := range stagesOf(x.seen) {
		if s.at == nil && s.name != "drain over" {
			out = append(out, s.name)
		}
	}
	return out
}

type stage struct {
	name    string
	at      *timestamppb.Timestamp
	details string
}

func stagesOf(i *apiv1.Interruption) []stage {
	return []stage{
		{"notice received", i.GetReceivedAt(), ""}, {"replacement requested", i.GetReplacementRequestedAt(), i.GetReplacement()},
		{"drain over", i.GetDrainedAt(), i.GetDrainOutcome()}, {"replacement ready", i.GetReplacementReadyAt(), ""}, {"deleted", i.GetDeletedAt(), ""},
	}
}

func (t *table) stages(i *apiv1.Interruption) {
	t.row("STAGE", "AFTER", "DETAILS")
	for _, s := range stagesOf(i) {
		t.row(s.name, latency(i, s.at), s.details)
	}
}

func (t *table) injected(i interruption, answer *apiv1.InterruptResponse) {
	switch {
	case i.dryRun && len(answer.GetPlan()) == 0:
		t.say("no change")
	case i.dryRun:
		for _, line := range answer.GetPlan() {
			t.say("would %s", line)
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
