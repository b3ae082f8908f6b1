// Command planted shows that the simulation finds bugs. Each file under bugs
// is a patch that plants one in the module; for each, one at a time, seeds are
// played until one fails. It prints a line a bug: its name, the seed, the
// invariant, and what did not hold. It exits with 1 when a bug is not found, or
// its patch no longer fits.
//
//	go run ./internal/test/sim/planted [-seeds 200] [-workers 2] [-only name,name]
//
// Nothing in the module is changed: the patched files replace the others in the
// build alone.
package main

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/nstance-go/nstance/internal/test/sim/exact"
)

//go:embed bugs/*.patch
var patches embed.FS

func main() {
	var o options
	var only string
	flag.IntVar(&o.seeds, "seeds", 200, "how many seeds to play for each bug before giving up")
	flag.IntVar(&o.workers, "workers", runtime.NumCPU(), "seeds at the same time")
	flag.StringVar(&o.module, "module", ".", "directory of the module")
	flag.StringVar(&only, "only", "", "bugs to plant, separated by commas; empty: all")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o, only); err != nil {
		fmt.Fprintln(os.Stderr, "planted:", err)
		os.Exit(1)
	}
}

type options struct {
	seeds, workers int
	module         string
}

// run plants every bug in turn and returns an error that names those that were
// not found.
func run(ctx context.Context, o options, only string) error {
	entries, err := patches.ReadDir("bugs")
	if err != nil {
		return err
	}
	var failed []error
	for _, e := range entries {
		name := strings.TrimSuffix(e.Name(), ".patch")
		if only != "" && !slices.Contains(strings.Split(only, ","), name) {
			continue
		}
		found, err := plant(ctx, o, name)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			found = err.Error()
			failed = append(failed, fmt.Errorf("%s: %w", name, err))
		}
		fmt.Printf("%-24s %s\n", name, found)
	}
	return errors.Join(failed...)
}

// plant builds the simulation with one bug and runs seeds until one fails.
func plant(ctx context.Context, o options, name string) (found string, err error) {
	dir, err := os.MkdirTemp("", "planted")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	replaced, err := patch(ctx, o.module, dir, name)
	if err != nil {
		return "", err
	}
	overlay, err := exact.Write(filepath.Join(dir, "exact"), o.module, replaced)
	if err != nil {
		return "", err
	}
	program := filepath.Join(dir, "sim")
	build := exec.CommandContext(ctx, "go", "build", "-overlay", overlay, "-o", program, "./internal/test/sim/cmd")
	build.Dir = o.module
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("does not build any more: %s", out)
	}
	play := exec.CommandContext(ctx, program, "-first", "-journal=0", fmt.Sprint("-seeds=", o.seeds), fmt.Sprint("-workers=", o.workers))
	out, err := play.CombinedOutput()
	if err == nil {
		return "", fmt.Errorf("not found in %d seeds", o.seeds)
	}
	return first(string(out))
}

// patch makes changed copies of the files that a bug is planted in, and returns
// where they are.
func patch(ctx context.Context, module, dir, name string) (map[string]string, error) {
	text, err := patches.ReadFile("bugs/" + name + ".patch")
	if err != nil {
		return nil, err
	}
	replaced := map[string]string{}
	for line := range strings.Lines(string(text)) {
		path, ok := strings.CutPrefix(strings.TrimSpace(line), "+++ b/")
		if !ok {
			continue
		}
		data, err := os.ReadFile(filepath.Join(module, path))
		if err != nil {
			return nil, err
		}
		replaced[path] = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(replaced[path]), 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(replaced[path], data, 0o644); err != nil {
			return nil, err
		}
	}
	apply := exec.CommandContext(ctx, "git", "apply", "-")
	apply.Dir, apply.Stdin = dir, bytes.NewReader(text)
	apply.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir))
	if out, err := apply.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("the patch no longer fits: %s", strings.TrimSpace(string(out)))
	}
	return replaced, nil
}

// first returns the first violation of the lowest seed that failed.
func first(out string) (string, error) {
	lowest, said := uint64(0), ""
	for line := range strings.Lines(out) {
		var seed uint64
		var rule string
		if n, _ := fmt.Sscanf(line, "seed %d: %s at", &seed, &rule); n == 2 && (said == "" || seed < lowest) {
			lowest, said = seed, fmt.Sprintf("seed %-4d %-4s %s", seed, rule, what(line))
		}
	}
	if said == "" {
		return "", fmt.Errorf("the simulation ended otherwise: %s", out)
	}
	return said, nil
}

// what is a violation's text, in bearable length.
func what(line string) string {
	_, text, _ := strings.Cut(line, " at ")
	_, text, _ = strings.Cut(strings.TrimSpace(text), ": ")
	return text[:min(len(text), 110)]
}
