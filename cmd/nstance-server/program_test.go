//go:build linux

package main_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// build builds the program that is released, not one with a race detector in it.
func build(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "nstance-server")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", bin, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return bin
}

// A run is the program, running.
type run struct {
	*exec.Cmd
	tmp   string        // where it makes temporary directories
	lines chan string   // closed when it has ended
	ended chan struct{} // likewise
	err   error         // how it ended
	errs  bytes.Buffer  // what it said on standard error; to be read when it has ended
}

// start starts the program; what it prints arrives in lines.
func start(t *testing.T, bin string, args ...string) *run {
	t.Helper()
	r := &run{tmp: shortTempDir(t), lines: make(chan string, 1000), ended: make(chan struct{})}
	r.Cmd = exec.CommandContext(t.Context(), bin, args...)
	r.Env = append(os.Environ(), "TMPDIR="+r.tmp, "HOME="+r.tmp)
	r.Stderr = &r.errs
	out, w := io.Pipe()
	r.Stdout = w
	require.NoError(t, r.Start())
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(r.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			r.lines <- s.Text()
		}
	})
	wg.Go(func() {
		defer close(r.ended)
		r.err = r.Wait()
		_ = w.Close()
	})
	t.Cleanup(func() {
		_ = r.Process.Kill()
		wg.Wait()
	})
	return r
}

// shortTempDir returns a folder like t.TempDir, whose long name would leave too little of
// the length that the path of a socket may have.
func shortTempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "e")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

// until returns the next line that contains text.
func (r *run) until(t *testing.T, text string) string {
	t.Helper()
	limit := time.After(30 * time.Second)
	for {
		select {
		case line, ok := <-r.lines:
			require.True(t, ok, "it ended without %q", text)
			if strings.Contains(line, text) {
				return line
			}
		case <-limit:
			require.Fail(t, "not printed in time", text)
		}
	}
}

// end waits until the program has ended.
func (r *run) end(t *testing.T) (code int) {
	t.Helper()
	select {
	case <-r.ended:
	case <-time.After(30 * time.Second):
		require.Fail(t, "it does not end")
	}
	if exit, ok := errors.AsType[*exec.ExitError](r.err); ok {
		return exit.ExitCode()
	}
	require.NoError(t, r.err)
	return 0
}

// call runs the program to its end.
func call(t *testing.T, bin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, args...)
	tmp := t.TempDir()
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp, "HOME="+tmp, "NSTANCE_SECRET_KEY=")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode(), out.String(), errs.String()
	}
	require.NoError(t, err)
	require.Empty(t, left(t, tmp), "something stays behind")
	return 0, out.String(), errs.String()
}

func left(t *testing.T, dir string) []os.DirEntry {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	return entries
}

// processes returns the processes whose machine's folder is below dir.
func processes(dir string) []int {
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	var pids []int
	for _, file := range files {
		env, _ := os.ReadFile(file) // other people's cannot be read, and some are gone
		if strings.Contains(string(env), "\x00NSTANCE_LOCAL_DIR="+dir) || strings.HasPrefix(string(env), "NSTANCE_LOCAL_DIR="+dir) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			pids = append(pids, pid)
		}
	}
	return pids
}
