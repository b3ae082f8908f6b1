package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/nstance-go/nstance/internal/servercmd"
	"github.com/nstance-go/nstance/internal/test/freeport"
	"github.com/nstance-go/nstance/internal/web"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/lease"
)

// TestMain makes this program nstance-server too, when it is told to run.
func TestMain(m *testing.M) {
	if len(os.Args) < 2 || os.Args[1] != "run" {
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	code := servercmd.Main(ctx, parts(), os.Args[1:], os.Stdout, os.Stderr, os.Getenv)
	stop()
	os.Exit(code)
}

// A child is a server in a process of its own, with a simulated cloud.
type child struct {
	*testing.T
	dir, http string
	process   *os.Process
}

func newChild(t *testing.T) *child {
	address, err := freeport.Address()
	require.NoError(t, err)
	c := &child{T: t, dir: t.TempDir(), http: address}
	c.size(0)
	store, err := storage.OpenDir(c.path("storage"), nil)
	require.NoError(t, err)
	_, err = lease.Prepare(t.Context(), store, "s1")
	require.NoError(t, err)
	cmd := exec.Command(os.Args[0], "run", "--config", c.path("server.jsonc"), "--data", c.dir, "--key-provider", "none")
	log, err := os.Create(c.path("log"))
	require.NoError(t, err)
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(t, cmd.Start())
	c.process = cmd.Process
	t.Cleanup(func() {
		_ = c.process.Signal(syscall.SIGTERM)
		require.NoError(t, cmd.Wait(), "the server ends well")
		require.NoError(t, log.Close())
	})
	c.awaitStatus("it leads", func(s web.Status) bool { return s.Leader })
	return c
}

// in returns c for a subtest.
func (c *child) in(t *testing.T) *child {
	return &child{T: t, dir: c.dir, http: c.http, process: c.process}
}

func (c *child) path(name string) string { return filepath.Join(c.dir, name) }

// size writes a configuration with a group of that size.
func (c *child) size(n int) {
	text := fmt.Sprintf(`{
		"cluster": {"id": "c1"},
		"shard": {
			"id": "s1", "provider": {"kind": "sim"}, "create_rate": {"per_second": 1000, "burst": 1000}, "max_change": "100%%",
			"status_page": {"detail": "full"},
			"bind": {"http": "%s", "registration": "127.0.0.1:0", "operator": "127.0.0.1:0", "agent": "127.0.0.1:0", "peer": "127.0.0.1:0"}
		},
		"templates": {"vm": {"kind": "web", "arch": "amd64"}},
		"groups": {"default": {"web": {"template": "vm", "size": %d}}}
	}`, c.http, n)
	require.NoError(c, os.WriteFile(c.path("server.new"), []byte(text), 0o600))
	require.NoError(c, os.Rename(c.path("server.new"), c.path("server.jsonc")))
	if c.process != nil {
		require.NoError(c, c.process.Signal(syscall.SIGHUP))
	}
}

// resize has the group get that size, which makes events.
func (c *child) resize(n int) {
	c.Helper()
	c.size(n)
	c.awaitStatus(fmt.Sprintf("the server goes on: %d instances", n), func(s web.Status) bool { return len(s.Instances) == n })
}

// awaitStatus waits until the status page shows something.
func (c *child) awaitStatus(what string, is func(web.Status) bool) {
	c.Helper()
	var s web.Status
	ok := false
	for limit := time.Now().Add(30 * time.Second); !ok && time.Now().Before(limit); ok = is(s) {
		s = c.status()
	}
	log, err := os.ReadFile(c.path("log"))
	require.NoError(c, err)
	require.True(c, ok, "%s\n%+v\n%+v\n%s", what, s.Groups, s.Attention, log[max(0, len(log)-2000):])
}

func (c *child) status() (s web.Status) {
	ctx, cancel := context.WithTimeout(c.Context(), time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.http+"/status.json", nil)
	require.NoError(c, err)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		<-ctx.Done() // it is just starting
		return s
	}
	defer resp.Body.Close()
	_ = json.NewDecoder(resp.Body).Decode(&s) // what is cut off shows nothing
	return s
}

// journal returns how much of the journal needs attention.
func journal(s web.Status) (n int) {
	for _, a := range s.Attention {
		if a.Kind == "journal" {
			n += a.Count
		}
	}
	return n
}

func reported(times int) func(web.Status) bool {
	return func(s web.Status) bool { return journal(s) == times }
}

// limit is how large a file the process may write: beyond, the kernel refuses
// as it does when a disk is full. Records in storage are smaller.
func (c *child) limit(bytes uint64) {
	c.Helper()
	require.NoError(c, unix.Prlimit(c.process.Pid, unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: bytes, Max: unix.RLIM_INFINITY}, nil))
}

// TestJournalTrouble: no trouble with the journal stops a real server, and each
// is reported.
func TestJournalTrouble(t *testing.T) {
	c := newChild(t)
	c.resize(30)
	require.Zero(t, journal(c.status()))
	t.Run("the disk is full, and has room again", func(t *testing.T) {
		c := c.in(t)
		info, err := os.Stat(c.path("log"))
		require.NoError(t, err)
		c.limit(max(64<<10, uint64(info.Size())*2))
		c.resize(60)
		c.resize(0)
		c.resize(60)
		c.awaitStatus("it is reported", reported(1))
		c.limit(unix.RLIM_INFINITY)
		c.awaitStatus("it is over", func(s web.Status) bool { return s.Leader && journal(s) == 0 })
	})
	t.Run("the file is deleted", func(t *testing.T) {
		c := c.in(t)
		require.NoError(t, os.Remove(c.path("journal-s1.db")))
		c.awaitStatus("it is reported", reported(1))
		c.resize(30)
		c.awaitStatus("the journal goes on", func(s web.Status) bool { return len(s.Events) > 0 })
		require.FileExists(t, c.path("journal-s1.db"))
	})
	t.Run("the file is overwritten, and its log", func(t *testing.T) {
		c := c.in(t)
		for _, name := range []string{"journal-s1.db", "journal-s1.db-wal"} {
			require.NoError(t, os.WriteFile(c.path(name), []byte(strings.Repeat("garbage ", 10_000)), 0o600))
		}
		c.awaitStatus("it is reported", reported(2))
		c.awaitStatus("it is set aside", func(web.Status) bool { _, err := os.Stat(c.path("journal-s1.db.corrupt")); return err == nil })
		c.resize(0)
		c.awaitStatus("the journal goes on", func(s web.Status) bool { return len(s.Events) > 0 })
	})
}
