// Package hook empties a machine by running a command on it, for machines that
// no operator drains.
//
// The environment of the command describes the drain:
//
//	NSTANCE_INSTANCE_ID     the instance to be emptied
//	NSTANCE_DRAIN_DEADLINE  when it is killed and the machine deleted, RFC 3339 in UTC
//	NSTANCE_DRAIN_SECONDS   whole seconds from its start until then
//	NSTANCE_DRAIN_REASON    why: kinds of cause such as notice, comma-separated
//	NSTANCE_DRAIN_EVENT     event IDs of the notices among them, comma-separated
//
// Exit status zero means that the machine is empty and may be deleted now.
//
// A [Hook] is safe for concurrent use.
package hook

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/command"
	"github.com/nstance-go/nstance/internal/validate"
)

// maxMessage is how many bytes an outcome's message may have.
const maxMessage = 256

// Options change how a Hook runs. Nil and zero fields mean the defaults.
type Options struct {
	// Dir is where the command runs. Empty means the agent's own directory.
	Dir string

	// Env is the environment, as key=value, to which the drain's variables are
	// added. Nil means the agent's own.
	Env []string

	// Timeout bounds a drain without deadline. Zero means five minutes.
	Timeout time.Duration

	// Log receives the start and the end of each run. Nil discards.
	Log *slog.Logger
}

// A Hook runs one command for each drain. It is safe for concurrent use.
type Hook struct {
	command []string
	opts    Options
}

// New returns a Hook that runs command[0] with the arguments command[1:].
// There is no shell in between, and command[0] is looked up in PATH when it
// runs. Fails with Invalid without a command, and for a timeout that makes no sense.
func New(command []string, opts *Options) (*Hook, error) {
	if len(command) == 0 || command[0] == "" {
		return nil, nstance.FieldError("drain_hook", "name a program", "is empty")
	}
	var o Options
	if opts != nil {
		o = *opts
	}
	if err := validate.Setting("timeout", o.Timeout, 90*24*time.Hour); err != nil {
		return nil, err
	}
	o.Timeout = cmp.Or(o.Timeout, 5*time.Minute)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Hook{command: slices.Clone(command), opts: o}, nil
}

// Run runs the command and waits until it exits, d's deadline comes, or ctx
// ends; in the latter cases it is killed. In every case its whole process group
// is gone when Run returns: only processes that moved to another group can stay.
// A command that cannot be started for a reason that may pass, such as a lack of processes
// or memory, is tried again until then.
// The outcome is Drained for exit status zero, else Failed; the message of one that never
// ran begins with "not started". The message is the
// error followed by the end of the command's output, 256 bytes at most. On a
// system without process groups only the command itself is killed.
func (h *Hook) Run(ctx context.Context, d nstance.Drain) (nstance.Outcome, string) {
	deadline := d.Deadline
	if deadline.IsZero() {
		deadline = time.Now().Add(h.opts.Timeout)
	}
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	if err := ctx.Err(); err != nil {
		return nstance.OutcomeFailed, "not started: " + endReason(err)
	}
	log := h.opts.Log.With("instance_id", string(d.Instance), "generation", d.Generation)
	log.Info("drain hook started", "deadline", deadline)
	output, err := command.Command{
		Argv: h.command, Dir: h.opts.Dir, Env: append(h.environ(), environ(d, deadline)...), MaxOutput: maxMessage, Log: log,
	}.Output(ctx)
	if err == nil {
		log.Info("drain hook finished: machine is empty")
		return nstance.OutcomeDrained, output
	}
	if unstarted, ok := errors.AsType[*command.NotStarted](err); ok {
		log.Warn("drain hook could not be started: machine is deleted at the deadline", "err", err)
		return nstance.OutcomeFailed, describe(unstarted, "")
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("killed: %s", endReason(ctx.Err()))
	}
	log.Warn("drain hook failed: machine is deleted at the deadline", "err", err)
	return nstance.OutcomeFailed, describe(err, output)
}

func (h *Hook) environ() []string {
	if h.opts.Env != nil {
		return slices.Clone(h.opts.Env)
	}
	return os.Environ()
}

// environ returns the variables that describe d.
func environ(d nstance.Drain, deadline time.Time) []string {
	left := max(0, time.Until(deadline))
	return []string{
		"NSTANCE_INSTANCE_ID=" + string(d.Instance),
		"NSTANCE_DRAIN_DEADLINE=" + deadline.UTC().Format(time.RFC3339),
		"NSTANCE_DRAIN_SECONDS=" + strconv.Itoa(int(left/time.Second)),
		"NSTANCE_DRAIN_REASON=" + list(d.Causes, func(c nstance.Cause) string { return string(c.Kind) }),
		"NSTANCE_DRAIN_EVENT=" + list(d.Causes, func(c nstance.Cause) string { return c.EventID }),
	}
}

// list returns one text of each cause, comma-separated, each once.
func list(causes []nstance.Cause, text func(nstance.Cause) string) string {
	var texts []string
	for _, c := range causes {
		if t := text(c); t != "" && !slices.Contains(texts, t) {
			texts = append(texts, t)
		}
	}
	return strings.Join(texts, ",")
}

// endReason says why the context ended.
func endReason(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return "the deadline has passed"
	}
	return "the drain was cancelled"
}

// describe joins the error with as much of the output's end as fits.
func describe(err error, output string) string {
	what := command.End(err.Error(), maxMessage)
	if room := maxMessage - len(what) - len(": "); room > 0 && output != "" {
		return what + ": " + command.End(output, room)
	}
	return what
}
