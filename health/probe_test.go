//go:build unix

package health_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/health"
	"github.com/nstance-go/nstance/internal/test/freeport"
	"github.com/stretchr/testify/require"
)

// probe runs one probe and returns its result.
func probe(ctx context.Context, t *testing.T, p health.Probe) nstance.ProbeResult {
	t.Helper()
	p.Name = "it"
	c, err := health.NewCollector(&health.CollectorOptions{Probes: []health.Probe{p}})
	require.NoError(t, err)
	background(ctx, t, c)
	results := c.Probes(ctx)
	require.Len(t, results, 1)
	require.Equal(t, "it", results[0].Name)
	require.LessOrEqual(t, len(results[0].Message), 256)
	return results[0]
}

// background runs a collector until the test or ctx ends.
func background(ctx context.Context, t *testing.T, c *health.Collector) {
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan error)
	go func() { ended <- c.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
	})
}

func TestCommandProbe(t *testing.T) {
	t.Run("is good when it exits with zero", func(t *testing.T) {
		r := probe(t.Context(), t, health.Probe{Command: []string{"/bin/sh", "-c", "echo fine"}})
		require.Equal(t, nstance.ProbeResult{Name: "it", OK: true}, r)
	})
	t.Run("reports the failure", func(t *testing.T) {
		r := probe(t.Context(), t, health.Probe{Command: []string{"/bin/sh", "-c", "echo disk is failing; exit 2"}})
		require.Equal(t, nstance.ProbeResult{Name: "it", Message: "exit status 2: disk is failing"}, r)
	})
	t.Run("has no shell", func(t *testing.T) {
		r := probe(t.Context(), t, health.Probe{Command: []string{"/usr/bin/test", "$HOME", "=", "$HOME"}})
		require.True(t, r.OK)
		r = probe(t.Context(), t, health.Probe{Command: []string{"echo fine && true"}})
		require.False(t, r.OK)
	})
	t.Run("bounds its output", func(t *testing.T) {
		r := probe(t.Context(), t, health.Probe{Command: []string{"/bin/sh", "-c", "printf '%01000d' 0; exit 1"}})
		require.Equal(t, "exit status 1: "+strings.Repeat("0", 128), r.Message)
	})
	t.Run("is not delayed by a leftover process, and kills it", func(t *testing.T) {
		alive := newPipe(t)
		begun := time.Now()
		r := probe(t.Context(), t, health.Probe{Command: []string{"/bin/sh", "-c", alive.hold + "true"}, Timeout: time.Minute})
		require.True(t, r.OK)
		require.Less(t, time.Since(begun), 30*time.Second)
		alive.requireClosed(t)
	})
	t.Run("is killed with its children at its timeout", func(t *testing.T) {
		alive := newPipe(t)
		r := probe(t.Context(), t, health.Probe{Command: []string{"/bin/sh", "-c", alive.hold + "wait"}, Timeout: 2 * time.Second})
		require.Equal(t, nstance.ProbeResult{Name: "it", Message: "no answer within 2s"}, r)
		alive.requireClosed(t)
	})
}

// pipe has a writing end that a process holds until it ends.
type pipe struct {
	file *os.File
	hold string // script that leaves such a process behind
}

func newPipe(t *testing.T) pipe {
	t.Helper()
	dir := t.TempDir()
	alive, ready := filepath.Join(dir, "alive"), filepath.Join(dir, "ready")
	for _, path := range []string{alive, ready} {
		require.NoError(t, syscall.Mkfifo(path, 0o600))
	}
	file, err := os.OpenFile(alive, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	require.NoError(t, err)
	t.Cleanup(func() { file.Close() })
	return pipe{file, fmt.Sprintf("(exec 9>%[1]s; echo alive >&9; echo > %[2]s; sleep 1000) & read _ < %[2]s; ", alive, ready)}
}

func (p pipe) requireClosed(t *testing.T) {
	t.Helper()
	require.NoError(t, p.file.SetReadDeadline(time.Now().Add(10*time.Second)))
	said, err := io.ReadAll(p.file)
	require.NoError(t, err, "a process is still alive")
	require.Equal(t, "alive\n", string(said))
}

func TestHTTPProbe(t *testing.T) {
	var status atomic.Int64
	hang := make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "/missing")
		w.WriteHeader(int(status.Load()))
		fmt.Fprint(w, strings.Repeat("why ", 500))
	})
	mux.HandleFunc("/hang", func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-hang:
		case <-r.Context().Done():
		}
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	defer close(hang)

	for code, ok := range map[int64]bool{200: true, 204: true, 302: true, 399: true, 400: false, 404: false, 500: false, 503: false} {
		t.Run(strconv.FormatInt(code, 10), func(t *testing.T) {
			status.Store(code)
			r := probe(t.Context(), t, health.Probe{HTTP: server.URL + "/"})
			require.Equal(t, ok, r.OK)
			if !ok {
				require.True(t, strings.HasPrefix(r.Message, fmt.Sprintf("%d %s: why why", code, http.StatusText(int(code)))), r.Message)
			}
		})
	}
	t.Run("has a timeout", func(t *testing.T) {
		r := probe(t.Context(), t, health.Probe{HTTP: server.URL + "/hang", Timeout: 50 * time.Millisecond})
		require.Equal(t, nstance.ProbeResult{Name: "it", Message: "no answer within 50ms"}, r)
	})
	t.Run("uses no proxy", func(t *testing.T) {
		t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
		status.Store(200)
		require.True(t, probe(t.Context(), t, health.Probe{HTTP: server.URL}).OK)
	})
}

func TestTCPProbe(t *testing.T) {
	listener, err := freeport.Listen()
	require.NoError(t, err)
	address := listener.Addr().String()
	require.Equal(t, nstance.ProbeResult{Name: "it", OK: true}, probe(t.Context(), t, health.Probe{TCP: address}))
	require.NoError(t, listener.Close())
	r := probe(t.Context(), t, health.Probe{TCP: address})
	require.False(t, r.OK)
	require.Contains(t, r.Message, "refused")
}

func TestCancelledProbes(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	mark := filepath.Join(t.TempDir(), "ran")
	r := probe(ctx, t, health.Probe{Command: []string{"/usr/bin/touch", mark}})
	require.Equal(t, nstance.ProbeResult{Name: "it", Message: "no result yet"}, r)
	require.NoFileExists(t, mark)
}

func TestResultsComeInOrder(t *testing.T) {
	var all []health.Probe
	for i := range 32 {
		all = append(all, health.Probe{Name: strconv.Itoa(i), Command: []string{"/bin/sh", "-c", fmt.Sprintf("exit %d", i%2)}})
	}
	c, err := health.NewCollector(&health.CollectorOptions{Probes: all})
	require.NoError(t, err)
	background(t.Context(), t, c)
	for i, r := range c.Probes(t.Context()) {
		require.Equal(t, strconv.Itoa(i), r.Name)
		require.Equal(t, i%2 == 0, r.OK)
	}
}

func TestNoProbesNoResults(t *testing.T) {
	c, err := health.NewCollector(nil)
	require.NoError(t, err)
	require.Empty(t, c.Probes(t.Context()))
}

func TestProbesAreRepeated(t *testing.T) {
	t.Run("at their interval", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			count := filepath.Join(t.TempDir(), "count")
			begun := func() int {
				text, err := os.ReadFile(count)
				require.NoError(t, err)
				return len(text)
			}
			c, err := health.NewCollector(&health.CollectorOptions{Probes: []health.Probe{
				{Name: "it", Command: []string{"/bin/sh", "-c", "printf x >> " + count}, Interval: time.Minute},
			}})
			require.NoError(t, err)
			background(t.Context(), t, c)
			c.Probes(t.Context())
			require.Equal(t, 1, begun())
			for range 5 {
				require.True(t, c.Probes(t.Context())[0].OK)
			}
			require.Equal(t, 1, begun(), "asking is not probing")
			advance(5 * time.Minute)
			require.Equal(t, 6, begun())
		})
	})
	t.Run("a slow one delays no other, and its last result stays", func(t *testing.T) {
		mark := filepath.Join(t.TempDir(), "slow")
		begun := mark + "-begun"
		c, err := health.NewCollector(&health.CollectorOptions{Probes: []health.Probe{
			{Name: "slow", Command: []string{"/bin/sh", "-c", fmt.Sprintf("test ! -e %s || { : > %s; sleep 1000; }", mark, begun)},
				Interval: time.Second, Timeout: time.Minute},
			{Name: "never", Command: []string{"/bin/sleep", "1000"}, Timeout: time.Minute},
		}})
		require.NoError(t, err)
		background(t.Context(), t, c)
		now, cancel := context.WithCancel(t.Context())
		cancel()
		none := nstance.ProbeResult{Name: "never", Message: "no result yet"}
		well := []nstance.ProbeResult{{Name: "slow", OK: true}, none}
		require.Eventually(t, func() bool { return slices.Equal(well, c.Probes(now)) }, 20*time.Second, 10*time.Millisecond)
		require.NoError(t, os.WriteFile(mark, nil, 0o600))
		require.Eventually(t, func() bool { _, err := os.Stat(begun); return err == nil }, time.Minute, 10*time.Millisecond)
		require.Equal(t, well, c.Probes(now))
	})
	t.Run("a program that is missing by now fails", func(t *testing.T) {
		program := filepath.Join(t.TempDir(), "program")
		require.NoError(t, os.Symlink("/bin/true", program))
		c, err := health.NewCollector(&health.CollectorOptions{Probes: []health.Probe{
			{Name: "it", Command: []string{program}, Interval: time.Second},
		}})
		require.NoError(t, err)
		background(t.Context(), t, c)
		require.True(t, c.Probes(t.Context())[0].OK)
		require.NoError(t, os.Remove(program))
		require.Eventually(t, func() bool { return !c.Probes(t.Context())[0].OK }, time.Minute, 10*time.Millisecond)
	})
	t.Run("a change is reported", func(t *testing.T) {
		mark := filepath.Join(t.TempDir(), "well")
		c, err := health.NewCollector(&health.CollectorOptions{Probes: []health.Probe{
			{Name: "it", Command: []string{"/usr/bin/test", "-e", mark}, Interval: time.Second},
		}})
		require.NoError(t, err)
		background(t.Context(), t, c)
		require.False(t, c.Probes(t.Context())[0].OK)
		require.NoError(t, os.WriteFile(mark, nil, 0o600))
		require.Eventually(t, func() bool { return c.Probes(t.Context())[0].OK }, time.Minute, 10*time.Millisecond)
	})
}

func TestProbesAreValidated(t *testing.T) {
	good := health.Probe{Name: "good", TCP: "localhost:80"}
	for name, c := range map[string]struct {
		probes []health.Probe
		field  string
	}{
		"no name":          {[]health.Probe{{TCP: ":80"}}, "probes[0].name"},
		"long name":        {[]health.Probe{{Name: strings.Repeat("n", 65), TCP: ":80"}}, "probes[0].name"},
		"same name":        {[]health.Probe{good, good}, "probes[1].name"},
		"nothing to do":    {[]health.Probe{good, {Name: "a"}}, "probes[1]"},
		"two things to do": {[]health.Probe{{Name: "a", TCP: ":80", HTTP: "http://localhost"}}, "probes[0]"},
		"no program":       {[]health.Probe{{Name: "a", Command: []string{""}}}, "probes[0].command"},
		"no port":          {[]health.Probe{{Name: "a", TCP: "localhost"}}, "probes[0].tcp"},
		"empty port":       {[]health.Probe{{Name: "a", TCP: "localhost:"}}, "probes[0].tcp"},
		"no URL":           {[]health.Probe{{Name: "a", HTTP: "localhost:80/x"}}, "probes[0].http"},
		"no host":          {[]health.Probe{{Name: "a", HTTP: "http:///x"}}, "probes[0].http"},
		"another scheme":   {[]health.Probe{{Name: "a", HTTP: "file:///etc/passwd"}}, "probes[0].http"},
		"long timeout":     {[]health.Probe{{Name: "a", TCP: ":80", Timeout: time.Hour}}, "probes[0].timeout"},
		"negative timeout": {[]health.Probe{{Name: "a", TCP: ":80", Timeout: -1}}, "probes[0].timeout"},
		"too often":        {[]health.Probe{{Name: "a", TCP: ":80", Interval: time.Millisecond}}, "probes[0].interval"},
		"too seldom":       {[]health.Probe{{Name: "a", TCP: ":80", Interval: 2 * time.Hour}}, "probes[0].interval"},
		"too many":         {make([]health.Probe, 33), "probes"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := health.NewCollector(&health.CollectorOptions{Probes: c.probes})
			require.ErrorIs(t, err, nstance.Invalid)
			require.True(t, strings.HasPrefix(err.Error(), c.field+": "), err.Error())
		})
	}
}
