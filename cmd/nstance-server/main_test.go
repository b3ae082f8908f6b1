//go:build linux

package main_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	_ "github.com/nstance-go/nstance/internal/servercmd" // so that go test knows what the program is made of, and does not repeat an old result
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/lease"
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
	r := &run{tmp: t.TempDir(), lines: make(chan string, 1000), ended: make(chan struct{})}
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

// A line is one line of --json.
type line struct {
	nstance.Event
	OK       *bool  `json:"ok"`
	Scenario string `json:"scenario"`
	Count    int    `json:"count"`
	Lost     *int   `json:"lost"`

	Leaked      *int   `json:"leaked"`
	Duplicated  *int   `json:"duplicated"`
	Failover    *int64 `json:"failover_ms"`
	Address     *int64 `json:"leader_address_ms"`
	Detected    *int64 `json:"detected_ms"`
	Received    *int64 `json:"received_ms"`
	Replacement *int64 `json:"replacement_requested_ms"`
	Drained     *int64 `json:"drained_ms"`
	Ready       *int64 `json:"replacement_ready_ms"`
	Deleted     *int64 `json:"deleted_ms"`
}

// play plays a scenario and returns its events and its summary.
func play(t *testing.T, bin string, args ...string) (events []line, summary line) {
	t.Helper()
	code, out, errs := call(t, bin, append([]string{"dev", "--json", "--http", "127.0.0.1:0", "--scenario"}, args...)...)
	require.Zero(t, code, "%s\n%s", out, errs)
	for text := range strings.Lines(out) {
		var l line
		require.NoError(t, json.Unmarshal([]byte(text), &l), text)
		require.False(t, l.Time.IsZero(), text)
		events = append(events, l)
	}
	summary = events[len(events)-1]
	require.EqualValues(t, "summary", summary.Type)
	require.True(t, *summary.OK)
	require.Equal(t, args[0], summary.Scenario)
	return events[:len(events)-1], summary
}

// at returns where the first event of that type is, about id or, where
// replaces, about the replacement of id. It must be there.
func at(t *testing.T, events []line, typ nstance.EventType, id nstance.InstanceID, replaces bool) int {
	t.Helper()
	for i, e := range events {
		if e.Type == typ && (!replaces && e.Instance == id || replaces && e.Replaces == id) {
			return i
		}
	}
	require.Fail(t, "no such event", "%s %s", typ, id)
	return 0
}

func count(events []line, typ nstance.EventType) (n int) {
	for _, e := range events {
		if e.Type == typ {
			n++
		}
	}
	return n
}

func TestEndToEnd(t *testing.T) {
	bin := build(t)
	t.Run("interrupt", func(t *testing.T) { interrupt(t, bin) })
	t.Run("mass", func(t *testing.T) {
		events, s := play(t, bin, "mass", "--count", "5")
		require.Equal(t, 5, s.Count)
		require.Zero(t, *s.Lost)
		require.Equal(t, 5, count(events, nstance.EventReplacementRequested))
		require.Equal(t, 10, count(events, nstance.EventReady))
		require.Equal(t, 5, count(events, nstance.EventDeleted))
	})
	t.Run("crash", func(t *testing.T) {
		events, s := play(t, bin, "crash")
		require.Zero(t, count(events, nstance.EventDrainStarted))
		require.Equal(t, 1, count(events, nstance.EventMachineGone))
		require.Equal(t, 1, count(events, nstance.EventReplacementRequested))
		require.Nil(t, s.Drained)
		require.NotNil(t, s.Ready)
	})
	t.Run("rollout", func(t *testing.T) {
		events, s := play(t, bin, "rollout", "--instances", "2")
		require.Equal(t, 2, s.Count)
		require.Equal(t, 2, count(events, nstance.EventDrainAcknowledged))
		require.Equal(t, 4, count(events, nstance.EventReady))
		require.Equal(t, 2, count(events, nstance.EventDeleted))
	})
	t.Run("failover", func(t *testing.T) {
		events, s := play(t, bin, "failover", "--election-ttl", "3s")
		for _, n := range []*int{s.Leaked, s.Duplicated, s.Lost} {
			require.NotNil(t, n)
			require.Zero(t, *n)
		}
		require.Positive(t, *s.Failover)
		require.Equal(t, 1, count(events, nstance.EventDrainAcknowledged))
		require.Equal(t, 1, count(events, nstance.EventDeleted))
	})
	t.Run("clouds", func(t *testing.T) { onClouds(t, bin) })
	t.Run("interactive", func(t *testing.T) { interactive(t, bin) })
	t.Run("killed, it leaves no machine", func(t *testing.T) { killed(t, bin) })
	t.Run("killed, it leaves no server", func(t *testing.T) { killedPair(t, bin) })
	t.Run("refusals", func(t *testing.T) { refusals(t, bin) })
	t.Run("validate", func(t *testing.T) { validate(t, bin) })
	t.Run("run", func(t *testing.T) { runs(t, bin) })
	t.Run("run, as the documents say", func(t *testing.T) { documented(t, bin) })
}

// onClouds plays on the clouds' test servers, through their real providers.
func onClouds(t *testing.T, bin string) {
	for _, on := range []struct{ cloud, scenario string }{
		{"aws", "interrupt"},
		{"aws", "crash"},
		{"aws", "failover"},
		{"azure", "interrupt"},
		{"azure", "crash"},
		{"azure", "rollout"},
		{"gcp", "interrupt"},
		{"gcp", "mass"},
		{"gcp", "crash"},
		{"gcp", "rollout"},
		{"proxmox", "interrupt"},
		{"proxmox", "mass"},
		{"proxmox", "crash"},
		{"proxmox", "rollout"},
	} {
		t.Run(on.cloud+" "+on.scenario, func(t *testing.T) {
			args := []string{on.scenario, "--provider", on.cloud}
			switch on.scenario {
			case "failover":
				args = append(args, "--election-ttl", "3s")
			case "mass":
				args = append(args, "--count", "7")
			}
			events, s := play(t, bin, args...)
			require.Positive(t, count(events, nstance.EventDeleted))
			if on.scenario == "mass" {
				require.Zero(t, *s.Lost)
				require.Equal(t, 7, count(events, nstance.EventDeleted))
			}
			if on.scenario == "interrupt" || on.scenario == "mass" || on.scenario == "failover" {
				i := slices.IndexFunc(events, func(e line) bool { return e.Type == nstance.EventNoticeDetected })
				require.GreaterOrEqual(t, i, 0)
				require.Regexp(t, "^"+on.cloud+"/", events[i].Notice.Source, "the machine found it at its own metadata service, or the server at the cluster")
			}
			if on.scenario == "failover" {
				require.Zero(t, *s.Leaked+*s.Duplicated+*s.Lost)
				require.GreaterOrEqual(t, *s.Address, *s.Failover, "it moves when the new leader leads")
				i := at(t, events, "leader_address_moved", "", false)
				require.Regexp(t, `^10\.0\.0\.100 from eni-\w+ to eni-\w+$`, events[i].Reason)
			}
		})
	}
}

func interrupt(t *testing.T, bin string) {
	events, s := play(t, bin, "interrupt")
	published := count(events, nstance.EventNoticePublished)
	require.Equal(t, 1, published)
	var victim nstance.InstanceID
	for _, e := range events {
		if e.Type == nstance.EventNoticePublished {
			victim = e.Instance
		}
	}
	of := func(typ nstance.EventType, replaces bool) int { return at(t, events, typ, victim, replaces) }
	order := func(first ...int) {
		t.Helper()
		require.IsIncreasing(t, first)
	}
	full := at(t, events, nstance.EventGroupReady, "", false)
	received := of(nstance.EventNoticeReceived, false)
	requested := of(nstance.EventReplacementRequested, true)
	order(full, of(nstance.EventNoticePublished, false), of(nstance.EventNoticeDetected, false), received, requested, of(nstance.EventReady, true))
	order(received, of(nstance.EventDrainStarted, false), of(nstance.EventDrainAcknowledged, false),
		of(nstance.EventDeleteRequested, false), of(nstance.EventDeleted, false))
	require.Equal(t, 4, count(events, nstance.EventReady))

	for _, ms := range []*int64{s.Detected, s.Received, s.Replacement, s.Drained, s.Ready, s.Deleted} {
		require.NotNil(t, ms)
		require.GreaterOrEqual(t, *ms, int64(0))
		require.Less(t, *ms, int64(60_000))
	}
	require.LessOrEqual(t, *s.Detected, *s.Received)
	require.Less(t, *s.Drained, *s.Deleted)
}

func interactive(t *testing.T, bin string) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	r := start(t, bin, "dev", "--instances", "2", "--http", taken.Addr().String())
	page := strings.Fields(r.until(t, "status page"))[2]
	require.NotContains(t, page, taken.Addr().String(), "that port is taken")
	r.until(t, "nstance-admin status")
	r.until(t, "group_ready")
	require.Len(t, processes(r.tmp), 2)
	resp, err := http.Get(page + "readyz")
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusOK, resp.StatusCode)

	require.NoError(t, r.Process.Signal(syscall.SIGINT))
	require.Zero(t, r.end(t), r.errs.String())
	require.Empty(t, processes(r.tmp), "a machine still runs")
	require.Empty(t, left(t, r.tmp), "a temporary directory stays behind")
}

func killed(t *testing.T, bin string) {
	r := start(t, bin, "dev", "--instances", "2", "--json", "--http", "127.0.0.1:0")
	r.until(t, `"group_ready"`)
	require.Len(t, processes(r.tmp), 2)
	require.NoError(t, r.Process.Kill())
	require.Eventually(t, func() bool { return len(processes(r.tmp)) == 0 }, 15*time.Second, 50*time.Millisecond)
}

// servers returns how many servers have their configuration below dir.
func servers(dir string) (n int) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		line, _ := os.ReadFile(file) // some are gone
		if strings.Contains(string(line), "\x00run\x00--config\x00"+dir) {
			n++
		}
	}
	return n
}

func killedPair(t *testing.T, bin string) {
	r := start(t, bin, "dev", "--scenario", "failover", "--json", "--http", "127.0.0.1:0")
	r.until(t, `"group_ready"`)
	require.Len(t, processes(r.tmp), 3)
	require.Equal(t, 2, servers(r.tmp))
	require.NoError(t, r.Process.Kill())
	require.Eventually(t, func() bool { return len(processes(r.tmp)) == 0 && servers(r.tmp) == 0 }, 15*time.Second, 50*time.Millisecond)
}

func refusals(t *testing.T, bin string) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for _, tt := range []struct {
		name string
		code int
		says string
		args []string
	}{
		{"unknown scenario", 2, "use interrupt, mass, crash, rollout", []string{"dev", "--scenario", "storm"}},
		{"data that cannot be written", 1, "name a directory that you may write to", []string{"dev", "--data", file}},
		{"count without mass", 2, "--count", []string{"dev", "--count", "7"}},
		{"instances with mass", 2, "--instances", []string{"dev", "--scenario", "mass", "--instances", "7"}},
		{"no machines", 2, "--instances", []string{"dev", "--instances", "0"}},
		{"a term without failover", 2, "--election-ttl", []string{"dev", "--election-ttl", "3s"}},
		{"unknown level", 2, "use debug, info, warn or error", []string{"dev", "--log-level", "loud"}},
		{"unknown flag", 2, "--help", []string{"dev", "--loud"}},
		{"unknown command", 2, "--help", []string{"serve"}},
		{"unknown provider", 2, `did you mean "aws"?`, []string{"dev", "--provider", "asw"}},
		{"another metadata service than the cloud's", 2, "--metadata", []string{"dev", "--provider", "aws", "--metadata", "gcp"}},
		{"kills where whole nodes are taken back", 2, "use failover", []string{"dev", "--provider", "proxmox", "--scenario", "kill"}},
		{"not started by a cloud", 2, "NSTANCE_LOCAL_DIR", []string{"machine"}},
		{"run without a key", 2, "NSTANCE_SECRET_KEY", []string{"run", "--shard", "a"}},
		{"run without a shard", 2, "--shard", []string{"run", "--key-provider", "none", "--storage", "mem://"}},
		{"run with an unknown key provider", 2, "env, file or none", []string{"run", "--shard", "a", "--key-provider", "vault"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			code, out, errs := call(t, bin, tt.args...)
			require.Equal(t, tt.code, code, errs)
			require.Empty(t, out)
			require.Contains(t, errs, tt.says)
			require.Equal(t, 1, strings.Count(errs, "nstance-server: "), "said once: %s", errs)
		})
	}
}

const good = `{
  "cluster": {"id": "demo"},
  "shard": {"id": "a", "provider": {"kind": "sim"},
    "bind": {"http": "127.0.0.1:0", "registration": "127.0.0.1:0", "operator": "127.0.0.1:0", "agent": "127.0.0.1:0", "peer": "127.0.0.1:0"}},
  "templates": {"web": {"kind": "web", "arch": "amd64"}},
  "groups": {"default": {"web": {"template": "web", "size": 0}}},
}
`

// written returns a file with that text.
func written(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "shard.jsonc")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func validate(t *testing.T, bin string) {
	fine, bad := written(t, good), written(t, strings.Replace(strings.Replace(good, "size", "siez", 1), `"arch"`, `"acrh"`, 1))
	code, out, errs := call(t, bin, "validate", fine)
	require.Zero(t, code, errs)
	require.Equal(t, fine+": ok\n", out)
	require.Empty(t, errs)

	code, out, errs = call(t, bin, "validate", bad, fine, filepath.Join(t.TempDir(), "absent"))
	require.Equal(t, 1, code)
	require.Equal(t, fine+": ok\n", out)
	require.Contains(t, errs, bad+":5:")
	require.Contains(t, errs, bad+":6:")
	require.Contains(t, errs, `did you mean "size"?`)
	require.Contains(t, errs, "no such file")

	for _, kind := range []string{"rack", "asw"} {
		code, _, errs = call(t, bin, "validate", written(t, strings.Replace(good, `"sim"`, `"`+kind+`"`, 1)))
		require.Equal(t, 1, code)
		require.Contains(t, errs, `shard.provider.kind: this program has no provider "`+kind)
	}
	t.Run("what only a cloud understands, without its credentials", func(t *testing.T) {
		cloud := strings.NewReplacer(`{"kind": "sim"}`, `{"kind": "aws", "region": "eu-west-1"}, "subnet_pools": {"w": ["subnet-0123456789abcdef0"]}`,
			`"arch": "amd64"`, `"arch": "amd64", "instance_type": "m5.large", "subnet_pool": "w", "args": {"image_idd": "ami-0123456789abcdef0"}`,
			`"size": 0`, `"size": 1`).Replace(good)
		bad := written(t, cloud)
		code, _, errs := call(t, bin, "validate", bad)
		require.Equal(t, 1, code)
		require.Contains(t, errs, bad+":5:")
		require.Contains(t, errs, "templates.web.args.image_idd")
	})
	code, _, errs = call(t, bin, "validate", written(t, strings.Replace(good, `{"kind": "sim"`, `{"kind": "sim", "options": {"sede": 1}`, 1)))
	require.Equal(t, 1, code)
	require.Contains(t, errs, "shard.provider.options.sede")
	code, _, errs = call(t, bin, "validate", written(t, strings.Replace(good, "{", `{"$schema": "https://example.com/schema.json", `, 1)))
	require.Zero(t, code, errs)

	code, _, errs = call(t, bin, "validate")
	require.Equal(t, 2, code)
	require.Contains(t, errs, "--help")
}

// prepare writes a released lease for a shard, as nstance-admin cluster init does,
// and returns the folder.
func prepare(t *testing.T, storageDir string, shard nstance.ShardID) string {
	t.Helper()
	store, err := storage.OpenDir(storageDir, nil)
	require.NoError(t, err)
	_, err = lease.Prepare(t.Context(), store, shard)
	require.NoError(t, err)
	return storageDir
}

func runs(t *testing.T, bin string) {
	t.Run("a provider that is not there", func(t *testing.T) {
		code, _, errs := call(t, bin, "run", "--key-provider", "none", "--storage", "mem://", "--config", written(t, strings.Replace(good, "sim", "rack", 1)))
		require.Equal(t, 2, code)
		require.Contains(t, errs, `this program has no provider "rack"`)
	})
	t.Run("options that the provider does not have", func(t *testing.T) {
		code, _, errs := call(t, bin, "run", "--key-provider", "none", "--storage", "mem://",
			"--config", written(t, strings.Replace(good, `"sim"`, `"sim", "options": {"sede": 1}`, 1)))
		require.Equal(t, 2, code)
		require.Contains(t, errs, "shard.provider.options.sede")
	})
	t.Run("a cloud of another process, and one of its own", func(t *testing.T) {
		for options, says := range map[string]string{
			`{"endpoint": "/tmp/x", "dir": "/tmp"}`:             "is the cloud of another process",
			`{"endpoint": "/` + strings.Repeat("x", 200) + `"}`: "201 bytes",
		} {
			code, _, errs := call(t, bin, "run", "--key-provider", "none", "--storage", "mem://",
				"--config", written(t, strings.Replace(good, `"sim"`, `"local", "options": `+options, 1)))
			require.Equal(t, 2, code)
			require.Contains(t, errs, "shard.provider.options.endpoint: ")
			require.Contains(t, errs, says)
		}
	})
	t.Run("the wrong shard", func(t *testing.T) {
		code, _, errs := call(t, bin, "run", "--key-provider", "none", "--storage", "mem://", "--config", written(t, good), "--shard", "b")
		require.Equal(t, 2, code)
		require.Contains(t, errs, "shard.id")
	})
	t.Run("tethered, it stops when standard input ends", func(t *testing.T) {
		data := t.TempDir()
		prepare(t, filepath.Join(data, "storage"), "a")
		cmd := exec.CommandContext(t.Context(), bin, "run", "--key-provider", "none", "--data", data, "--config", written(t, good), "--tethered")
		in, err := cmd.StdinPipe()
		require.NoError(t, err)
		logs, err := cmd.StderrPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		defer func() { _ = cmd.Process.Kill() }()
		said := bufio.NewScanner(logs)
		for said.Scan() && !strings.Contains(said.Text(), "lease taken") {
		}
		require.Contains(t, said.Text(), "lease taken")
		require.NoError(t, in.Close())
		for said.Scan() {
		}
		require.NoError(t, cmd.Wait())
	})
	t.Run("with its configuration in storage", func(t *testing.T) {
		data := t.TempDir()
		code, _, errs := call(t, bin, "run", "--key-provider", "none", "--data", data, "--shard", "a")
		require.Equal(t, 1, code)
		require.Contains(t, errs, "config/a.jsonc")
		require.NoError(t, os.MkdirAll(filepath.Join(data, "storage", "config"), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(data, "storage", "config", "a.jsonc"), []byte(good), 0o600))
		prepare(t, filepath.Join(data, "storage"), "a")
		cmd := exec.CommandContext(t.Context(), bin, "run", "--key-provider", "none", "--data", data, "--shard", "a")
		out, err := cmd.StderrPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
		logs := bufio.NewScanner(out)
		for logs.Scan() && !strings.Contains(logs.Text(), "lease taken") {
		}
		require.Contains(t, logs.Text(), "lease taken")
	})
	t.Run("two with one configuration find each other", func(t *testing.T) {
		conf, store := written(t, `{"cluster": {"id": "demo"}, "shard": {"id": "a", "provider": {"kind": "sim"}}}`), prepare(t, t.TempDir(), "a")
		start := func() (signal func(os.Signal) error, until func(string)) {
			cmd := exec.CommandContext(t.Context(), bin, "run", "--config", conf, "--data", t.TempDir(), "--storage", "file://"+store, "--key-provider", "none",
				"--bind", "http=127.0.0.1:0,registration=127.0.0.1:0,operator=127.0.0.1:0,agent=127.0.0.1:0,peer=127.0.0.1:0")
			out, err := cmd.StderrPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
			logs := bufio.NewScanner(out)
			return cmd.Process.Signal, func(text string) {
				t.Helper()
				for logs.Scan() && !strings.Contains(logs.Text(), text) {
				}
				require.Contains(t, logs.Text(), text)
			}
		}
		stop, first := start()
		first("lease taken")
		_, second := start()
		second("the leader tells of its renewals")
		require.NoError(t, stop(syscall.SIGTERM))
		second("the leader has given the lease back")
		second("lease taken")
		first("lease given back")
	})
	t.Run("it serves, reads its configuration again, and stops", func(t *testing.T) {
		path, data := written(t, good), t.TempDir()
		prepare(t, filepath.Join(data, "storage"), "a")
		cmd := exec.CommandContext(t.Context(), bin, "run", "--config", path, "--data", data)
		cmd.Env = append(os.Environ(), "NSTANCE_SECRET_KEY=MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=")
		out, err := cmd.StderrPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		defer func() { _ = cmd.Process.Kill() }()
		logs := bufio.NewScanner(out)
		until := func(text string) {
			t.Helper()
			for logs.Scan() {
				if strings.Contains(logs.Text(), text) {
					return
				}
			}
			require.Fail(t, "it ended without saying", text)
		}
		until("nstance-server starts")
		require.Eventually(t, func() bool {
			_, err := os.Stat(filepath.Join(data, "storage", "lease", "a.json"))
			return err == nil
		}, 20*time.Second, 20*time.Millisecond)
		require.NoError(t, os.WriteFile(path, []byte(good+"// changed\n"), 0o600))
		require.NoError(t, cmd.Process.Signal(syscall.SIGHUP))
		until("configuration in force") // at once, or as soon as the server leads
		require.NoError(t, os.WriteFile(path, []byte("{"), 0o600))
		require.NoError(t, cmd.Process.Signal(syscall.SIGHUP))
		until("configuration refused")
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		for logs.Scan() {
		}
		require.NoError(t, cmd.Wait())
		key, err := os.ReadFile(filepath.Join(data, "storage", "secret", "identity-ca.key"))
		require.NoError(t, err)
		require.NotContains(t, string(key), "PRIVATE KEY")
	})
}
