package dev

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
)

// A Failure is how a scenario did not go as it should.
type Failure struct {
	Scenario string
	Stage    string // what did not happen
	Err      error  // why
}

// Error names the scenario, the stage and the reason.
func (f *Failure) Error() string {
	return fmt.Sprintf("scenario %s: %s: %v", f.Scenario, f.Stage, f.Err)
}

// Unwrap returns the reason.
func (f *Failure) Unwrap() error { return f.Err }

// stageStart is the stage of a failure before the scenario begins.
const stageStart = "start"

// Run starts the shard and, without a scenario, serves until ctx ends; then it
// returns nil. With one, it returns when that has been played: nil if all of
// it happened, a *Failure if not. Whatever it returns, every process that it
// started has ended before, and the temporary directory is gone. Fails with
// Invalid when an option is wrong, Denied when the directory cannot be
// written, Conflict when another process uses it.
func Run(ctx context.Context, o *Options) (err error) {
	o, err = o.complete()
	if err != nil {
		return err
	}
	out := newOutput(o)
	h, err := openHome(o.Data)
	if err != nil {
		return unplayed(o, out, err)
	}
	defer func() { err = errors.Join(err, h.close()) }()
	s := newStory(o.Scenario == "")
	w, err := newShard(ctx, o, h, s)
	if err != nil {
		return unplayed(o, out, o.told(ctx, err))
	}
	defer func() { err = errors.Join(err, w.close()) }()
	work, err := w.start(ctx)
	if err != nil {
		return unplayed(o, out, o.told(ctx, err))
	}
	return o.told(ctx, w.perform(work, out))
}

// told returns nil if err only says that ctx has ended, which is how Run ends
// where there is no scenario to be finished.
func (o *Options) told(ctx context.Context, err error) error {
	if o.Scenario != "" || ctx.Err() == nil {
		return err
	}
	if errors.Is(err, context.Cause(ctx)) || nstance.CodeOf(err) == nstance.Unavailable {
		return nil
	}
	return err
}

// unplayed reports that a scenario could not begin.
func unplayed(o *Options, out *output, err error) error {
	if o.Scenario == "" || err == nil {
		return err
	}
	f := &Failure{o.Scenario, stageStart, err}
	return errors.Join(f, out.summary(Summary{
		Time: time.Now().UTC(), Event: "summary", Scenario: f.Scenario, Stage: f.Stage, Error: err.Error(),
	}))
}

// perform prints what happens, while the scenario is played or until ctx ends.
func (w *shard) perform(ctx context.Context, out *output) error {
	if err := w.introduce(out); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	reading, last := context.WithCancel(context.WithoutCancel(ctx))
	defer last()
	var wg sync.WaitGroup
	var unread error
	wg.Go(func() {
		if unread = w.story.print(reading, out.event); unread != nil {
			cancel(unread) // nobody reads: no reason to go on
		}
	})
	if w.o.Scenario == "" {
		<-ctx.Done()
		last()
		wg.Wait()
		return context.Cause(ctx)
	}
	sum, err := w.play(ctx)
	last()
	wg.Wait()
	if unread != nil {
		return &Failure{w.o.Scenario, sum.Stage, unread}
	}
	return errors.Join(err, out.summary(sum))
}

// introduce says where to look and what to try next.
func (w *shard) introduce(out *output) error {
	pages := "http://" + w.http + "/"
	if w.pair != nil {
		pages += " (leads)  http://" + w.pair.other().addrs.HTTP + "/"
	}
	if err := out.say("status page   %s\n", pages); err != nil {
		return err
	}
	if w.o.Scenario != "" {
		return out.say("playing       scenario %s with %d machines\n\n", w.o.Scenario, w.o.size())
	}
	return out.say(`files         %s
              machines.log there is what the machines print

Machines are child processes here: real agents, each with a metadata service of
its own. Try next, in another terminal:

  export NSTANCE_ADMIN_DIR=%s
  nstance-admin status
  nstance-admin instance list
  nstance-admin events --follow
  nstance-admin group scale %s %d
  nstance-admin interrupt INSTANCE    # as if the cloud took it back

Ctrl-C ends it all.

`, w.home.dir, quote(w.home.identityDir()), groupID, w.o.size()+2)
}

// quote makes a path fit for a shell.
func quote(path string) string {
	if strings.Trim(path, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./") == "" {
		return path
	}
	return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}
