package admin

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nstance-go/nstance"
)

// The states of a Rollout.
const (
	rolloutDone   = "done"
	rolloutMoving = "moving"
	rolloutHeld   = "held"   // paused or frozen: it goes on when somebody says so
	rolloutHalted = "halted" // too many replacements failed
)

func (p *program) groupRolloutCommand() *cobra.Command {
	var tenant string
	var interval, wait time.Duration
	cmd := &cobra.Command{
		Use: "rollout GROUP", Short: "Watch a group's rollout until it is done or halted",
		Long: `Watch a group's rollout until every member is ready and of the desired
definition, which is exit code 0, or until it is halted, which is exit code 6. On a
terminal the view is drawn again and again; elsewhere each change is a line.`,
		Args: arguments("GROUP"),
	}
	tenantFlag(cmd, &tenant)
	cmd.Flags().DurationVar(&interval, "interval", time.Second, "time between two looks")
	cmd.Flags().DurationVar(&wait, "wait", 0, "how long to watch at most, then exit code 5; 0 for as long as it takes")
	r, out := p.remote(cmd), p.output(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if interval < 50*time.Millisecond {
			return nstance.FieldError("--interval", "use 50ms or more", "is %s", interval)
		}
		w := &rolloutWatch{p: p, link: link{r: r}, out: out, tenant: nstance.TenantID(tenant), name: args[0], interval: interval, limit: wait, began: p.now()}
		return w.run(cmd.Context())
	}
	return cmd
}

// A rolloutWatch follows one group, across changes of leader.
type rolloutWatch struct {
	p        *program
	link     link
	out      *output
	tenant   nstance.TenantID
	name     string
	interval time.Duration
	limit    time.Duration
	began    time.Time
	drawn    int    // lines on the terminal that the next view replaces
	said     string // the last line, where it is no terminal
}

// run returns nil when the rollout is done, or when ctx ends.
func (w *rolloutWatch) run(ctx context.Context) error {
	defer w.link.hangUp()
	for {
		wait := w.interval
		s, members, err := w.look(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			if wait, err = w.outage(err); err != nil {
				return err
			}
		default:
			if err := w.show(s, members); err != nil || s.State == rolloutDone {
				return err
			}
			if s.State == rolloutHalted {
				return w.halted(s)
			}
		}
		if w.limit > 0 && w.p.now().Sub(w.began) >= w.limit {
			return fault(nstance.Unavailable, nil, "repeat it to go on watching", fmt.Sprintf("the rollout is not done after %s", w.limit))
		}
		pause(ctx, wait)
	}
}

func (w *rolloutWatch) halted(s Rollout) error {
	return fault(nstance.Conflict, nil, "correct the definition, or go back: nstance-admin group rollback "+w.name, "the rollout is halted: "+s.Reason)
}

// outage decides how long to wait after a failed look, or that it is for good.
func (w *rolloutWatch) outage(err error) (time.Duration, error) {
	wait, again := w.link.lost(err)
	if !again {
		return 0, err
	}
	w.p.stderr.note("connection lost, trying again in %s: %v", wait.Round(time.Millisecond), err)
	w.drawn = 0
	return wait, nil
}

// look returns the rollout as it is now, with the group's members.
func (w *rolloutWatch) look(ctx context.Context) (Rollout, []Instance, error) {
	if err := w.link.connect(ctx); err != nil {
		return Rollout{}, nil, err
	}
	c := w.link.client
	g, err := c.group(ctx, w.tenant, w.name)
	if err != nil {
		return Rollout{}, nil, err
	}
	members, err := c.instances(ctx, g.Tenant, string(g.Group))
	if err != nil {
		return Rollout{}, nil, err
	}
	w.link.works()
	members = slices.DeleteFunc(members, func(i Instance) bool { return i.OnDemand })
	return rolloutOf(g, members, w.p.now().UTC()), members, nil
}

// rolloutOf judges how far a group is.
func rolloutOf(g Group, members []Instance, now time.Time) Rollout {
	s := Rollout{
		Time: now, Tenant: g.Tenant, Group: g.Group, State: rolloutMoving, Size: g.Size, Ready: g.Ready, Booting: g.Booting,
		Leaving: g.Leaving, Stale: g.Stale, RolledBack: g.RolledBack, Holds: g.Holds,
	}
	for _, i := range members {
		if i.State == nstance.Ready && !i.Drifted {
			s.Fresh++
		}
	}
	switch {
	case g.Halted != "":
		s.State, s.Reason = rolloutHalted, g.Halted
	case g.Stale == 0 && g.Booting == 0 && g.Leaving == 0 && s.Fresh >= g.Size:
		s.State = rolloutDone
	case g.Paused || g.Frozen:
		s.State, s.Reason = rolloutHeld, holds(g.Holds)
	}
	return s
}

// show prints the rollout if anything has changed, or draws it anew.
func (w *rolloutWatch) show(s Rollout, members []Instance) error {
	if w.out.form == formTable && screen(w.p.stdout) {
		return w.draw(s, members)
	}
	line := s.line()
	if line == w.said {
		return nil
	}
	w.said = line
	if w.out.form != formTable {
		return w.out.line(s)
	}
	return w.out.write([]byte(stamp(s.Time) + "  " + printable(line) + "\n"))
}

// screen reports whether w may be a terminal.
func screen(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// line says all of it but the members.
func (s Rollout) line() string {
	out := fmt.Sprintf("%s  %d of %d fresh and ready, %d stale, %d booting, %d leaving", s.State, s.Fresh, s.Size, s.Stale, s.Booting, s.Leaving)
	if why := cmp.Or(holds(s.Holds), s.Reason); why != "" {
		out += "  " + why
	}
	return out
}

// barWidth is how many characters a progress bar has.
const barWidth = 40

// shownMembers is how many members are drawn at most, those in motion first.
const shownMembers = 15

// draw replaces what was drawn before.
func (w *rolloutWatch) draw(s Rollout, members []Instance) error {
	t := &table{now: w.p.now()}
	full := barWidth
	if s.Size > 0 {
		full = min(barWidth, barWidth*s.Fresh/s.Size)
	}
	t.say("group %s  [%s%s]  %s", nstance.GroupKey{Tenant: s.Tenant, Group: s.Group}, strings.Repeat("#", full), strings.Repeat(".", barWidth-full),
		short(w.p.now().Sub(w.began)))
	t.say("%s", s.line())
	t.say("")
	t.row("ID", "STATE", "DEFINITION", "AGE")
	slices.SortStableFunc(members, func(a, b Instance) int { return cmp.Compare(settledness(a), settledness(b)) })
	for _, i := range members[:min(shownMembers, len(members))] {
		definition := "desired"
		if i.Drifted {
			definition = "older"
		}
		t.row(string(i.ID), string(i.State), definition, t.age(i.CreatedAt))
	}
	if more := len(members) - shownMembers; more > 0 {
		t.say("and %d more", more)
	}
	var b bytes.Buffer
	if w.drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA\x1b[J", w.drawn) // up, and clear what is below
	}
	w.drawn = len(t.lines)
	if err := t.flush(&b); err != nil {
		return err
	}
	return w.out.write(b.Bytes())
}

// settledness orders members: those in motion, those to be replaced, the others.
func settledness(i Instance) int {
	switch {
	case i.State != nstance.Ready:
		return 0
	case i.Drifted:
		return 1
	}
	return 2
}
