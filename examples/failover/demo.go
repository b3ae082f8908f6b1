package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/local"
)

// owner marks every machine.
var owner = nstance.Owner{Installation: "example", Cluster: "demo", Shard: "a"}

// demo runs machines as child processes, and two copies of program that keep them.
func demo(ctx context.Context, program string, out io.Writer) (err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	dir, err := os.MkdirTemp("", "nstance-failover-")
	if err != nil {
		cancel()
		return err
	}
	// Each machine ends with this process: its file descriptor 3 is then closed.
	cloud, err := local.New(&local.Options{Command: []string{"sh", "-c", "cat <&3"}, Dir: dir})
	if err != nil {
		cancel()
		return err
	}
	var running sync.WaitGroup
	defer func() {
		cancel()
		running.Wait()
		err = errors.Join(err, cloud.Close(), os.RemoveAll(dir))
	}()
	socket, err := local.Listen(ctx, filepath.Join(dir, "cloud"))
	if err != nil {
		return err
	}
	running.Go(func() { _ = local.Serve(ctx, socket, cloud) })

	lines := make(chan line)
	copies := map[string]*exec.Cmd{}
	for _, name := range []string{"first", "second"} {
		command := exec.CommandContext(ctx, program, dir)
		command.Cancel = func() error { return command.Process.Signal(os.Interrupt) }
		command.WaitDelay = 10 * time.Second
		stdout, err := command.StdoutPipe()
		if err != nil {
			return err
		}
		command.Stderr = os.Stderr
		if err := command.Start(); err != nil {
			return err
		}
		copies[name] = command
		running.Go(func() { relay(ctx, name, stdout, lines); _ = command.Wait() })
	}
	return play(ctx, cloud, copies, lines, out)
}

// A line is what a copy has printed.
type line struct{ name, text string }

func relay(ctx context.Context, name string, from io.Reader, to chan<- line) {
	for s := bufio.NewScanner(from); s.Scan(); {
		select {
		case to <- line{name, s.Text()}:
		case <-ctx.Done():
		}
	}
}

// play kills the copy that leads, and a machine, and waits until the other copy has
// replaced it.
func play(ctx context.Context, cloud *local.Cloud, copies map[string]*exec.Cmd, lines <-chan line, out io.Writer) error {
	leader, known := "", map[string]bool{}
	await := func(what string, count int, counts func(text string) bool) error {
		for count > 0 {
			select {
			case l := <-lines:
				fmt.Fprintln(out, "the", l.name, "copy", l.text)
				if l.text == "leads" {
					leader = l.name
				}
				if counts(l.text) {
					count--
				}
			case <-ctx.Done():
				return fmt.Errorf("no copy %s: %w", what, ctx.Err())
			}
		}
		return nil
	}
	leads := func(text string) bool { return text == "leads" }
	isNew := func(text string) bool { // a new leader says again what there is
		id, machine := strings.CutPrefix(text, "has ")
		machine = machine && !known[id]
		known[id] = true
		return machine
	}
	if err := await("has three machines", 3, isNew); err != nil {
		return err
	}
	killed := leader
	fmt.Fprintln(out, "the", killed, "copy is killed")
	if err := copies[killed].Process.Kill(); err != nil {
		return err
	}
	if err := await("leads", 1, leads); err != nil {
		return err
	}
	for m, err := range cloud.List(ctx, owner) {
		if err != nil {
			return err
		}
		fmt.Fprintln(out, m.ID, "is killed")
		if err := cloud.Kill(m.ID); err != nil {
			return err
		}
		break
	}
	if err := await("has another machine", 1, isNew); err != nil {
		return err
	}
	if leader == killed {
		return errors.New("the killed copy leads")
	}
	return nil
}
