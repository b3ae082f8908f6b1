package dev

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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
	h, err := openHome(o.Data, o.Temp)
	if err != nil {
		return startFailure(o, out, err)
	}
	defer func() { err = errors.Join(err, h.close()) }()
	s := newStory(o.Scenario == "")
	w, err := newShard(ctx, o, h, s)
	if err != nil {
		return startFailure(o, out, o.told(ctx, err))
	}
	defer func() { err = errors.Join(err, w.close()) }()
	work, err := w.start(ctx)
	if err != nil {
		return startFailure(o, out, o.told(ctx, err))
	}
	return o.told(ctx, w.printAndPlay(work, out))
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

// startFailure reports that a scenario could not begin.
func startFailure(o *Options, out *output, err error) error {
	if o.Scenario == "" || err == nil {
		return err
	}
	f := &Failure{o.Scenario, stageStart, err}
	return errors.Join(f, out.summary(Summary{
		Time: time.Now().UTC(), Event: "summary", Scenario: f.Scenario, Stage: f.Stage, Error: err.Error(),
	}))
}

// printAndPlay prints events while it plays the scenario, or until ctx ends.
func (w *shard) printAndPlay(ctx context.Context, out *output) error {
	if err := w.printIntroduction(out); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	reading, last := context.WithCancel(context.WithoutCancel(ctx))
	defer last()
	var wg sync.WaitGroup
	var unread error
	wg.Go(func() {
		if unread = w.story.print(reading, w.printer(out)); unread != nil {
			cancel(unread) // there is no reader: no reason to continue
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

// printIntroduction prints addresses and commands to try.
func (w *shard) printIntroduction(out *output) error {
	pages := "http://" + w.http + "/"
	if w.pair != nil {
		pages += " (leads)  http://" + w.pair.other().addrs.HTTP + "/"
	}
	if err := out.say("status page   %s\n", pages); err != nil {
		return err
	}
	if w.o.Scenario != "" {
		return out.say("playing       scenario %s with %d machines\n\n", w.o.Scenario, w.o.machines())
	}
	admin := adminCommand()
	return out.say(`files         %[1]s
              machines.log there is what the machines print; each also has a log of its own
configuration %[2]s: edit it, then config refresh

Machines are child processes here: real agents, each with a metadata service of
its own. Try next, in another terminal%[5]s:

  export NSTANCE_ADMIN_DIR=%[3]s
  %[4]s status
  %[4]s instance list
  %[4]s events --follow
  %[4]s group scale %[6]s %[7]d
  %[4]s config refresh
  %[4]s interrupt INSTANCE --wait    # its metadata service says that the cloud takes it back

Ctrl-C ends it all.

`, w.home.dir, w.home.configFile(), quote(w.home.identityDir()), admin, where(admin), groupID, w.o.size()+2)
}

// checkoutAdmin is how nstance-admin is run from the checkout: within nstance-dev, which is
// built already and links no cloud.
const checkoutAdmin = "go run ./cmd/nstance-dev admin"

// adminCommand returns how to run nstance-admin from here: as it is installed, or
// from the checkout that this directory is.
func adminCommand() string {
	if _, err := exec.LookPath("nstance-admin"); err == nil {
		return "nstance-admin"
	}
	if info, err := os.Stat(filepath.Join("cmd", "nstance-dev")); err == nil && info.IsDir() {
		return checkoutAdmin
	}
	if _, err := exec.LookPath("nstance-dev"); err == nil {
		return "nstance-dev admin"
	}
	return "nstance-admin"
}

func where(admin string) string {
	if admin == checkoutAdmin {
		return ", in this directory"
	}
	return ""
}

// printer returns what prints an event, and of a machine that has become ready
// its process and its log.
func (w *shard) printer(out *output) func(nstance.Event) error {
	return func(e nstance.Event) error {
		if err := out.event(e); err != nil || e.Type != nstance.EventReady || w.o.Scenario != "" || out.json {
			return err
		}
		if machine := w.home.machine(e.Instance); machine != "" {
			return out.say("%12s  %-21s %s\n", "", "", machine)
		}
		return nil
	}
}

// quote makes a path fit for a shell.
func quote(path string) string {
	if strings.Trim(path, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./") == "" {
		return path
	}
	return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}
