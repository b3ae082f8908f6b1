package admin

import (
	"context"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
)

func (p *program) drainCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "drain", Short: "Be the executor of drains: empty machines before they are deleted"}
	cmd.AddCommand(p.drainWatchCommand(), p.drainAckCommand())
	return cmd
}

func (p *program) drainWatchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "watch", Short: "Be the executor of drains, and print each that is to be carried out",
		Long: `Be the executor of drains until interrupted: of all in the identity's tenant, for an
administrator of all in the shard. While this runs, no agent's hook empties a
machine whose drain begins. Print each drain that is to be carried out, and what
changes about it: with -o json one object a line.

A drain is carried out once "drain ack" has said so. Without that its deadline
decides. If this ends, other executors take over after 10 s.`,
		Args: arguments(),
	}
	r, out := p.remote(cmd), p.output(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		w := &drainWatch{print: func(c DrainChange) error { return p.printDrain(out, c) }}
		req := &apiv1.WatchInstanceEventsRequest{DrainExecutor: true}
		for n, err := range r.follow(cmd.Context(), req) {
			if err != nil {
				return err
			}
			if err := w.handle(n); err != nil {
				return err
			}
		}
		return nil
	}
	return cmd
}

func (p *program) printDrain(out *output, c DrainChange) error {
	if out.form != formTable {
		return out.line(c)
	}
	return out.write([]byte(streamed(stamp(p.now()), c.Change, printable(c.Group.String()), printable(string(c.Instance)), printable(drainText(c.Drain)))))
}

// A drainWatch keeps the drains that are to be carried out, and prints what
// changes about them.
type drainWatch struct {
	print    func(DrainChange) error
	open     map[nstance.InstanceID]nstance.Drain // printed, and not over
	snapshot map[nstance.InstanceID]bool          // draining, in the snapshot that is being read
}

func (w *drainWatch) handle(n news) error {
	switch d := n.event.Drain; {
	case n.instance != nil:
		return w.handleSnapshot(*n.instance)
	case n.synced:
		return w.endAbsent()
	case n.event.Type == nstance.EventDrainStarted, n.event.Type == nstance.EventDrainTightened, n.event.Type == nstance.EventDrainReassigned:
		if d == nil {
			return nil
		}
		return w.update(*d)
	case n.event.Type == nstance.EventDrainCancelled:
		return w.end(n.event.Instance, drainCancelled)
	case n.event.Type == nstance.EventDeleteRequested, n.event.Type == nstance.EventDeleted:
		return w.end(n.event.Instance, drainEnded)
	}
	return nil
}

func (w *drainWatch) handleSnapshot(i Instance) error {
	if i.Drain == nil || i.State != nstance.Draining {
		return nil
	}
	if w.snapshot == nil {
		w.snapshot = map[nstance.InstanceID]bool{}
	}
	w.snapshot[i.ID] = true
	return w.update(*i.Drain)
}

// endAbsent ends what has ended while no event was read.
func (w *drainWatch) endAbsent() error {
	present := w.snapshot
	w.snapshot = nil
	for _, id := range slices.Sorted(maps.Keys(w.open)) {
		if present[id] {
			continue
		}
		if err := w.end(id, drainEnded); err != nil {
			return err
		}
	}
	return nil
}

// update takes a drain as it stands.
func (w *drainWatch) update(d nstance.Drain) error {
	if d.Executor != nstance.ExecutorOperator {
		return w.end(d.Instance, drainReassigned)
	}
	old, known := w.open[d.Instance]
	change := drainRequested
	if known && old.Generation == d.Generation {
		if old.Deadline.Equal(d.Deadline) && slices.Equal(old.Causes, d.Causes) {
			return nil
		}
		change = drainTightened
	}
	if w.open == nil {
		w.open = map[nstance.InstanceID]nstance.Drain{}
	}
	w.open[d.Instance] = d
	return w.print(DrainChange{Change: change, Drain: d})
}

func (w *drainWatch) end(id nstance.InstanceID, change string) error {
	d, known := w.open[id]
	if !known {
		return nil
	}
	delete(w.open, id)
	return w.print(DrainChange{Change: change, Drain: d})
}

func (p *program) drainAckCommand() *cobra.Command {
	var failed, dryRun bool
	var ack DrainAck
	cmd := &cobra.Command{
		Use: "ack INSTANCE", Short: "Say that a drain has been carried out, or could not be",
		Long: `Say that a drain has been carried out, after which the machine is deleted at once. With
--failed it is only recorded, and the deadline decides. It counts only while the
executor of that drain is an operator: see "drain watch".`,
		Args: instanceArgument,
	}
	f := cmd.Flags()
	f.Uint64Var(&ack.Generation, "generation", 0, "of the drain, as drain watch prints it")
	f.BoolVar(&failed, "failed", false, "it could not be carried out")
	f.StringVar(&ack.Reason, "reason", "", "what there is to say about it, for the journal")
	dryRunFlag(cmd, &dryRun)
	r, out := p.remote(cmd), p.output(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if ack.Generation == 0 {
			return nstance.FieldError("--generation", "copy it from drain watch", "is missing")
		}
		ack.DryRun, ack.Outcome = dryRun, nstance.OutcomeDrained
		if failed {
			ack.Outcome = nstance.OutcomeFailed
		}
		return r.with(cmd.Context(), func(c *client) (err error) {
			if ack.Instance, err = c.instanceID(cmd.Context(), args[0]); err != nil {
				return err
			}
			if err := c.acknowledge(cmd.Context(), ack); err != nil {
				return seek(err)
			}
			return out.print(ack, func(t *table) { t.drainAck(ack) })
		})
	}
	return cmd
}

// acknowledge reports an outcome, or only checks that it would count.
func (c *client) acknowledge(ctx context.Context, a DrainAck) error {
	if !a.DryRun {
		_, err := c.AcknowledgeDrained(ctx, &apiv1.AcknowledgeDrainedRequest{
			Id: string(a.Instance), Generation: a.Generation, Outcome: string(a.Outcome), Message: a.Reason,
		})
		return err
	}
	resp, err := c.GetInstance(ctx, &apiv1.GetInstanceRequest{Id: string(a.Instance)})
	if err != nil {
		return err
	}
	d := wire.DrainOf(resp.GetInstance().GetDrain())
	switch {
	case d == nil || nstance.State(resp.GetInstance().GetState()) != nstance.Draining:
		return nstance.Errorf(nstance.NotFound, "instance %s is not draining", a.Instance)
	case d.Generation != a.Generation:
		return nstance.Errorf(nstance.Conflict, "instance %s is in drain %d, not %d", a.Instance, d.Generation, a.Generation)
	case d.Executor != nstance.ExecutorOperator:
		return nstance.Errorf(nstance.Denied, "the executor of drain %d of %s is %q", d.Generation, a.Instance, d.Executor)
	}
	return nil
}

func (t *table) drainAck(a DrainAck) {
	if a.DryRun {
		t.say("drain %d of %s: %s would be accepted", a.Generation, a.Instance, a.Outcome)
		return
	}
	t.say("drain %d of %s: %s", a.Generation, a.Instance, a.Outcome)
}

// The changes of a DrainChange.
const (
	drainRequested  = "requested"  // empty the machine, then acknowledge
	drainTightened  = "tightened"  // the same drain ends earlier, or has other causes
	drainCancelled  = "cancelled"  // the machine stays
	drainReassigned = "reassigned" // another executor empties it
	drainEnded      = "ended"      // it is being deleted
)

// A DrainChange is what drain watch prints.
type DrainChange struct {
	Change string `json:"change"` // requested, tightened, cancelled, reassigned or ended
	nstance.Drain
}

// A DrainAck is what drain ack prints.
type DrainAck struct {
	Instance   nstance.InstanceID `json:"instance_id"`
	Generation uint64             `json:"generation"`
	Outcome    nstance.Outcome    `json:"outcome"`
	Reason     string             `json:"reason,omitempty"`
	DryRun     bool               `json:"dry_run"`
}
