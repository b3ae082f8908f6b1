//go:build unix

package local_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/test/program"
	"github.com/nstance-go/nstance/provider/local"
	"github.com/nstance-go/nstance/provider/providertest"
)

// The test binary is also the program of its machines, and a server that is killed.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "play" {
		play(os.Args[2])
	}
	os.Exit(m.Run())
}

func play(role string) {
	switch role {
	case "agent": // ends on a signal
		ctx, data, err := local.Boot(context.Background())
		if err != nil {
			fmt.Println("boot:", err)
			os.Exit(1)
		}
		fmt.Println("booted with", data.Getenv("GREETING"), data.Getenv("FROM_OPTIONS"), data.Getenv("FROM_ARGS"), data.Getenv("SECRET"))
		<-ctx.Done()
		fmt.Println("ends:", context.Cause(ctx))
	case "deaf": // ends only when killed
		signal.Ignore(syscall.SIGTERM)
		_, err := local.Tether(context.Background())
		fmt.Println("deaf", err)
		select {}
	case "server": // is killed
		self, _ := os.Executable()
		for _, role := range []string{"agent", "deaf"} {
			c, err := local.New(&local.Options{Command: []string{self, "play", role}, Dir: os.Getenv("TEST_DIR"), Stderr: os.Stdout})
			if err == nil {
				_, err = c.Create(context.Background(), newSpec())
			}
			if err != nil {
				fmt.Println("server:", err)
			}
		}
		if err := hibernateOne(self); err != nil {
			fmt.Println("server:", err)
		}
		<-time.After(time.Hour)
	}
	os.Exit(0)
}

// hibernateOne prints a line when an agent is hibernated.
func hibernateOne(self string) error {
	c, err := local.New(&local.Options{Command: []string{self, "play", "agent"}, Dir: os.Getenv("TEST_DIR"), Stderr: os.Stdout})
	if err != nil {
		return err
	}
	m, err := c.Create(context.Background(), newParkable(nstance.ParkHibernated))
	if err != nil {
		return err
	}
	if err := c.Park(context.Background(), m, nstance.ParkHibernated); err != nil {
		return err
	}
	for m.Status != nstance.StatusStopped && err == nil {
		m, err = c.Get(context.Background(), m.ID)
	}
	fmt.Println("hibernated", err)
	return err
}

var owner = nstance.Owner{Installation: "i1", Cluster: "c1", Shard: "a", Tenant: "default"}

func newSpec() nstance.MachineSpec {
	now := time.Now().UTC()
	id, err := nstance.NewInstanceID("loc", now)
	if err != nil {
		panic(err)
	}
	return nstance.MachineSpec{ID: id, Owner: owner, CreatedAt: now, Market: nstance.Spot, Token: string(id)}
}

// shell returns the command of a machine that runs a script.
func shell(script string) []string { return []string{"/bin/sh", "-c", script} }

// idle is a machine that only implements the required calls.
var idle = shell("env > environment; cat <&3")

// tool returns the command of a machine that runs this test binary.
func tool(t *testing.T, role string) []string {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	return []string{self, "play", role}
}

func open(t *testing.T, o local.Options) *local.Cloud {
	t.Helper()
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	dir := o.Dir
	c, err := local.New(&o)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, c.Close())
		left, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Empty(t, left, "left behind by Close")
	})
	return c
}

func create(t *testing.T, c *local.Cloud, s nstance.MachineSpec) nstance.Machine {
	t.Helper()
	m, err := c.Create(t.Context(), s)
	require.NoError(t, err)
	return m
}

const soon = time.Minute

// becomes waits until the machine has the status; "gone" is NotFound.
func becomes(t *testing.T, c *local.Cloud, id nstance.InstanceID, want nstance.MachineStatus) {
	t.Helper()
	var last nstance.MachineStatus
	require.Eventually(t, func() bool {
		m, err := c.Get(t.Context(), id)
		if last = m.Status; errors.Is(err, nstance.NotFound) {
			last = "gone"
		}
		return last == want
	}, soon, 5*time.Millisecond, "wanted %s", want)
}

// environment returns a variable of an idle machine's process.
func environment(t *testing.T, dir string, id nstance.InstanceID, name string) (value string) {
	t.Helper()
	require.Eventually(t, func() bool {
		files, err := filepath.Glob(filepath.Join(dir, "*", string(id), "environment"))
		if err != nil || len(files) != 1 {
			return false
		}
		b, err := os.ReadFile(files[0])
		if err != nil || !bytes.HasSuffix(b, []byte("\n")) {
			return false
		}
		for line := range strings.Lines(string(b)) {
			if v, ok := strings.CutPrefix(line, name+"="); ok {
				value = strings.TrimSuffix(v, "\n")
				return true
			}
		}
		return false
	}, soon, 5*time.Millisecond, "%s was never written", name)
	return value
}

// output collects the output of machines.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

func (o *output) shows(t *testing.T, text string) {
	t.Helper()
	ok := func() bool { return strings.Contains(o.String(), text) }
	if !ok() {
		require.Eventually(t, ok, soon, 5*time.Millisecond, "never printed %q", text)
	}
}

func TestProvider(t *testing.T) {
	for _, protocol := range []string{"aws", "gcp", "azure"} {
		t.Run(protocol, func(t *testing.T) {
			providertest.Run(t, func(t *testing.T) providertest.Subject {
				dir := t.TempDir()
				return providertest.Subject{
					Provider: open(t, local.Options{Command: idle, Dir: dir, Protocol: protocol, Grace: 50 * time.Millisecond}),
					Spot:     true,
					Park:     modes,
					UserData: func(ctx context.Context, m nstance.Machine) ([]byte, error) {
						for _, name := range []string{local.EnvMetadataURL, local.EnvProvider} {
							t.Setenv(name, environment(t, dir, m.ID, name))
						}
						return local.UserData(ctx)
					},
					BadArgs: map[string]json.RawMessage{
						"boot_delay": json.RawMessage(`{"boot_delay": "-1s"}`),
						"wake_delay": json.RawMessage(`{"wake_delay": "-1s"}`),
						"env":        json.RawMessage(`{"env": ["A=B"]}`),
					},
				}
			})
		})
	}
}

func TestNew(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for field, o := range map[string]*local.Options{
		"command":  nil,
		"dir":      {Command: idle, Dir: file},
		"protocol": {Command: idle, Protocol: "moon"},
		"env":      {Command: idle, Env: []string{"PATH"}},
		"grace":    {Command: idle, Grace: -1},
	} {
		t.Run("refuses a bad "+field, func(t *testing.T) {
			_, err := local.New(o)
			e, ok := errors.AsType[*nstance.Error](err)
			require.True(t, ok, "%v", err)
			require.Equal(t, field, e.Field)
			require.NotEmpty(t, e.Remedy)
		})
	}
	t.Run("refuses a program that does not exist, and one that may not be run", func(t *testing.T) {
		for _, name := range []string{"/no/such/program", file} {
			_, err := local.New(&local.Options{Command: []string{name}})
			require.ErrorIs(t, err, nstance.Invalid)
			require.ErrorContains(t, err, name)
		}
	})
	t.Run("finds a program given by a relative path, though machines run elsewhere", func(t *testing.T) {
		dir := t.TempDir()
		t.Chdir(dir)
		require.NoError(t, program.Write("machine", []byte("#!/bin/sh\ncat <&3\n")))
		c := open(t, local.Options{Command: []string{"./machine"}})
		becomes(t, c, create(t, c, newSpec()).ID, nstance.StatusRunning)
	})
}

func TestStatus(t *testing.T) {
	t.Run("follows the process", func(t *testing.T) {
		for script, want := range map[string]nstance.MachineStatus{
			"exec cat <&3": nstance.StatusRunning,
			"exit 0":       nstance.StatusStopped,
			"exit 3":       nstance.StatusFailed,
			"kill -9 $$":   nstance.StatusFailed,
		} {
			c := open(t, local.Options{Command: shell(script)})
			m := create(t, c, newSpec())
			becomes(t, c, m.ID, want)
			require.NoError(t, c.Delete(t.Context(), m), script)
			becomes(t, c, m.ID, "gone")
		}
	})
	t.Run("is pending until the boot delay is over", func(t *testing.T) {
		c := open(t, local.Options{Command: idle})
		s := newSpec()
		s.Args = json.RawMessage(`{"boot_delay": "300ms"}`)
		start := time.Now()
		require.Equal(t, nstance.StatusPending, create(t, c, s).Status)
		becomes(t, c, s.ID, nstance.StatusRunning)
		require.GreaterOrEqual(t, time.Since(start), 300*time.Millisecond)
	})
	t.Run("a machine deleted before it boots never runs", func(t *testing.T) {
		c := open(t, local.Options{Command: idle})
		s := newSpec()
		s.Args = json.RawMessage(`{"boot_delay": "1h"}`)
		require.NoError(t, c.Delete(t.Context(), create(t, c, s)))
		becomes(t, c, s.ID, "gone")
	})
	t.Run("a killed machine has failed, and cannot be killed twice", func(t *testing.T) {
		c := open(t, local.Options{Command: idle})
		m := create(t, c, newSpec())
		require.NoError(t, c.Kill(m.ID))
		becomes(t, c, m.ID, nstance.StatusFailed)
		require.ErrorIs(t, c.Kill(m.ID), nstance.Conflict)
		require.ErrorIs(t, c.Kill(newSpec().ID), nstance.NotFound)
	})
	t.Run("a missing program is not retried", func(t *testing.T) {
		missing := filepath.Join(t.TempDir(), "machine")
		require.NoError(t, program.Write(missing, []byte("#!/bin/sh\n")))
		c := open(t, local.Options{Command: []string{missing}})
		require.NoError(t, os.Remove(missing))
		_, err := c.Create(t.Context(), newSpec())
		require.ErrorIs(t, err, nstance.Invalid)
		require.ErrorContains(t, err, missing)
	})
}

func TestDelete(t *testing.T) {
	t.Run("is graceful first", func(t *testing.T) {
		var out output
		c := open(t, local.Options{
			Command: shell(`trap "echo asked; exit 0" TERM; echo up; while :; do read line <&3 || exit; done`),
			Stderr:  &out, Grace: time.Hour,
		})
		m := create(t, c, newSpec())
		out.shows(t, "up")
		require.NoError(t, c.Delete(t.Context(), m))
		becomes(t, c, m.ID, "gone")
		out.shows(t, "asked")
	})
	t.Run("kills what ignores it, after the grace, with all its children", func(t *testing.T) {
		pipe, w, err := os.Pipe()
		require.NoError(t, err)
		defer pipe.Close()
		c := open(t, local.Options{
			Command: shell(`trap "" TERM; sleep 1000 & echo up; cat <&3`),
			Stderr:  w, Grace: 50 * time.Millisecond,
		})
		m := create(t, c, newSpec())
		w.Close() // now only the machine holds it
		up := make([]byte, 3)
		_, err = io.ReadFull(pipe, up)
		require.NoError(t, err)
		require.NoError(t, c.Delete(t.Context(), m))
		becomes(t, c, m.ID, "gone")
		ended(t, pipe)
	})
	t.Run("removes the machine's folder, and no other", func(t *testing.T) {
		dir := t.TempDir()
		c := open(t, local.Options{Command: idle, Dir: dir})
		m, stays := create(t, c, newSpec()), create(t, c, newSpec())
		require.NoError(t, c.Delete(t.Context(), m))
		becomes(t, c, m.ID, "gone")
		left, err := filepath.Glob(filepath.Join(dir, "*", "*"))
		require.NoError(t, err)
		require.Len(t, left, 1)
		require.Equal(t, string(stays.ID), filepath.Base(left[0]))
	})
	t.Run("close ends every machine, and is the end of every call", func(t *testing.T) {
		pipe, w, err := os.Pipe()
		require.NoError(t, err)
		defer pipe.Close()
		c := open(t, local.Options{Command: shell(`sleep 1000 & cat <&3`), Stderr: w})
		for range 3 {
			create(t, c, newSpec())
		}
		w.Close()
		require.NoError(t, c.Close())
		ended(t, pipe)
		_, err = c.Create(t.Context(), newSpec())
		require.ErrorIs(t, err, nstance.Unavailable)
		_, err = c.Get(t.Context(), newSpec().ID)
		require.ErrorIs(t, err, nstance.Unavailable)
	})
}

// ended requires that no process holds the writing end of the pipe.
func ended(t *testing.T, pipe *os.File) string {
	t.Helper()
	require.NoError(t, pipe.SetReadDeadline(time.Now().Add(soon)))
	rest, err := io.ReadAll(pipe)
	require.NoError(t, err, "a process is left; it printed %q", rest)
	return string(rest)
}

func TestInterrupt(t *testing.T) {
	t.Run("is announced, then stops the machine, which is visible before it is gone", func(t *testing.T) {
		dir := t.TempDir()
		c := open(t, local.Options{Command: idle, Dir: dir})
		m := create(t, c, newSpec())
		url := environment(t, dir, m.ID, local.EnvMetadataURL)
		require.Equal(t, "spot", read(t, url+"/latest/meta-data/instance-life-cycle"))
		require.Empty(t, read(t, url+"/latest/meta-data/spot/instance-action"))
		start := time.Now()
		require.NoError(t, c.Interrupt(m.ID, "", 300*time.Millisecond))
		var notice struct{ Action, Time string }
		require.NoError(t, json.Unmarshal([]byte(read(t, url+"/latest/meta-data/spot/instance-action")), &notice))
		require.Equal(t, "terminate", notice.Action)
		deadline, err := time.Parse(time.RFC3339, notice.Time)
		require.NoError(t, err)
		require.False(t, deadline.Before(start.Add(300*time.Millisecond)), "never earlier than asked")
		becomes(t, c, m.ID, nstance.StatusStopped)
		require.False(t, time.Now().Before(deadline), "never earlier than announced")
		becomes(t, c, m.ID, "gone")
	})
	t.Run("on gcp it has gcp's notice", func(t *testing.T) {
		dir := t.TempDir()
		c := open(t, local.Options{Command: idle, Dir: dir, Protocol: "gcp"})
		m := create(t, c, newSpec())
		url := environment(t, dir, m.ID, local.EnvMetadataURL) + "/computeMetadata/v1/instance/"
		require.Equal(t, "TRUE", read(t, url+"scheduling/preemptible"))
		require.Equal(t, "FALSE", read(t, url+"preempted"))
		require.NoError(t, c.Interrupt(m.ID, "", time.Hour))
		require.Equal(t, "TRUE", read(t, url+"preempted"))
	})
	t.Run("can be withdrawn", func(t *testing.T) {
		dir := t.TempDir()
		c := open(t, local.Options{Command: idle, Dir: dir})
		m := create(t, c, newSpec())
		url := environment(t, dir, m.ID, local.EnvMetadataURL)
		require.NoError(t, c.Interrupt(m.ID, "stop", time.Second))
		require.NoError(t, c.Withdraw(m.ID))
		require.Empty(t, read(t, url+"/latest/meta-data/spot/instance-action"))
		later := create(t, c, newSpec())
		require.NoError(t, c.Interrupt(later.ID, "stop", time.Second))
		becomes(t, c, later.ID, "gone")
		becomes(t, c, m.ID, nstance.StatusRunning)
	})
	t.Run("is refused for on-demand machines, unknown actions and machines that are not there", func(t *testing.T) {
		c := open(t, local.Options{Command: idle})
		s := newSpec()
		s.Market = nstance.OnDemand
		m := create(t, c, s)
		require.ErrorIs(t, c.Interrupt(m.ID, "", time.Hour), nstance.Invalid)
		require.ErrorIs(t, c.Interrupt(m.ID, "explode", time.Hour), nstance.Invalid)
		require.ErrorIs(t, c.Interrupt(newSpec().ID, "", time.Hour), nstance.NotFound)
		require.NoError(t, c.Kill(m.ID))
		becomes(t, c, m.ID, nstance.StatusFailed)
		require.ErrorIs(t, c.Interrupt(m.ID, "", time.Hour), nstance.Conflict)
	})
}

// read returns the metadata service's answer at url, "" without one.
func read(t *testing.T, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	req.Header.Set("Metadata-Flavor", "Google")
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	if resp.StatusCode == http.StatusNotFound {
		return ""
	}
	require.Equal(t, http.StatusOK, resp.StatusCode)
	return string(body)
}

func TestBoot(t *testing.T) {
	t.Run("brings user data, files and variables to the machine", func(t *testing.T) {
		t.Setenv("SECRET", "hunter2")
		for _, protocol := range []string{"aws", "gcp", "azure"} {
			var out output
			dir := t.TempDir()
			c := open(t, local.Options{
				Command: tool(t, "agent"), Dir: dir, Protocol: protocol, Stderr: &out, Env: []string{"FROM_OPTIONS=from-options"},
			})
			s := newSpec()
			s.Args = json.RawMessage(`{"env": {"FROM_ARGS": "from-args"}}`)
			s.UserData = []byte(`{"env": {"GREETING": "hello"}, "files": {"identity/nonce.jwt": "n"}}`)
			create(t, c, s)
			out.shows(t, "booted with hello from-options from-args \n") // and no secret
			files, err := filepath.Glob(filepath.Join(dir, "*", string(s.ID), "identity", "nonce.jwt"))
			require.NoError(t, err)
			require.Len(t, files, 1)
			info, err := os.Stat(files[0])
			require.NoError(t, err)
			require.Equal(t, os.FileMode(0o600), info.Mode())
			content, err := os.ReadFile(files[0])
			require.NoError(t, err)
			require.Equal(t, "n", string(content))
		}
	})
	t.Run("works without user data", func(t *testing.T) {
		var out output
		c := open(t, local.Options{Command: tool(t, "agent"), Stderr: &out})
		create(t, c, newSpec())
		out.shows(t, "booted with")
	})
	t.Run("refuses user data of unknown form, and paths that lead outside", func(t *testing.T) {
		for data, says := range map[string]string{
			"#!/bin/sh\n":                    "userdata",
			`{"evn": {}}`:                    "evn",
			`{} {}`:                          "more after",
			`{"files": {"../nonce": "x"}}`:   "../nonce",
			`{"files": {"/etc/passwd": ""}}`: "/etc/passwd",
			`{"files": {"a/../nonce": ""}}`:  "a/../nonce",
			`{"env": {"A=B": "x"}}`:          "A=B",
		} {
			var out output
			c := open(t, local.Options{Command: tool(t, "agent"), Stderr: &out})
			s := newSpec()
			s.UserData = []byte(data)
			create(t, c, s)
			becomes(t, c, s.ID, nstance.StatusFailed)
			out.shows(t, "boot: userdata")
			out.shows(t, says)
		}
	})
	t.Run("does not take a service that is down for one without user data", func(t *testing.T) {
		service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }))
		defer service.Close()
		t.Setenv(local.EnvMetadataURL, service.URL)
		t.Setenv(local.EnvProvider, "gcp")
		_, err := local.UserData(t.Context())
		require.ErrorIs(t, err, nstance.Unavailable)
	})
	t.Run("refuses to run outside a machine", func(t *testing.T) {
		t.Setenv(local.EnvDir, "")
		_, _, err := local.Boot(t.Context())
		require.ErrorIs(t, err, nstance.Invalid)
		_, err = local.UserData(t.Context())
		require.ErrorIs(t, err, nstance.Invalid)
	})
}

// TestKilledParent kills a server with SIGKILL, and checks that none of its machines
// survives.
func TestKilledParent(t *testing.T) {
	pipe, w, err := os.Pipe()
	require.NoError(t, err)
	defer pipe.Close()
	argv := tool(t, "server")
	server := exec.Command(argv[0], argv[1:]...)
	server.Env = append(os.Environ(), "TEST_DIR="+t.TempDir())
	server.Stdout, server.Stderr = w, w
	server.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no process of its session adopts its machines
	require.NoError(t, server.Start())
	w.Close() // now only the server and its machines hold it
	before := ""
	require.NoError(t, pipe.SetReadDeadline(time.Now().Add(soon)))
	for b := make([]byte, 256); !strings.Contains(before, "booted") || !strings.Contains(before, "deaf <nil>") || !strings.Contains(before, "hibernated <nil>"); {
		n, err := pipe.Read(b)
		require.NoError(t, err, "so far: %q", before)
		before += string(b[:n])
	}
	// The kernel ends an orphaned group only if it has stopped by then, with all threads.
	require.Eventually(t, func() bool { return runtime.GOOS != "linux" || hasStoppedChild(server.Process.Pid) }, soon, 5*time.Millisecond)
	require.NoError(t, server.Process.Kill())
	require.Error(t, server.Wait())
	rest := ended(t, pipe)
	require.Contains(t, rest, "ends: the local cloud has ended", "the machine that listens ends by itself")
}

// hasStoppedChild reports whether all threads of a child have stopped, as in proc(5).
func hasStoppedChild(pid int) bool {
	lists, _ := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "task", "*", "children"))
	for _, list := range lists {
		text, _ := os.ReadFile(list) // its thread may have ended
		for _, child := range strings.Fields(string(text)) {
			threads, _ := filepath.Glob(filepath.Join("/proc", child, "task", "*", "stat"))
			if len(threads) > 0 && !slices.ContainsFunc(threads, func(stat string) bool { return stateIn(stat) != "T" }) {
				return true
			}
		}
	}
	return false
}

func Example() {
	r, w := io.Pipe()
	cloud, err := local.New(&local.Options{
		Command: []string{"/bin/sh", "-c", "echo my metadata service speaks $NSTANCE_PROVIDER; cat <&3"},
		Stderr:  w,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	id, _ := nstance.NewInstanceID("web", time.Now())
	m, err := cloud.Create(ctx, nstance.MachineSpec{
		ID: id, Owner: nstance.Owner{Installation: "i1", Cluster: "c1", Shard: "a", Tenant: "default"},
		Market: nstance.Spot, Token: string(id),
	})
	fmt.Println(m.Status, m.Market, m.Addresses, err)
	line, _ := bufio.NewReader(r).ReadString('\n')
	fmt.Print(line)
	fmt.Println(cloud.Close())
	// Output:
	// running spot [127.0.0.1] <nil>
	// my metadata service speaks aws
	// <nil>
}
