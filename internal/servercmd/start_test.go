package servercmd_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/servercmd"
	"github.com/nstance-go/nstance/internal/test/freeport"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/lease"
)

const minimal = `{"cluster": {"id": "c"}, "shard": {"id": "a", "provider": {"kind": "sim"}},
 "templates": {"web": {"kind": "web", "arch": "amd64"}}, "groups": {"default": {"web": {"template": "web", "size": 2}}}}`

// A logBuffer may be read while the program writes to it.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func freeAddress(t *testing.T) string {
	t.Helper()
	address, err := freeport.Address()
	require.NoError(t, err)
	return address
}

func ports(http string) string {
	return "http=" + http + ",registration=127.0.0.1:0,operator=127.0.0.1:0,agent=127.0.0.1:0,peer=127.0.0.1:0"
}

// get returns the status of a page, 0 if nothing answers.
func get(address, path string) int {
	resp, err := http.Get("http://" + address + path)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	return resp.StatusCode
}

// prepare writes what a shard needs in storage.
func prepare(t *testing.T, store storage.Store) {
	t.Helper()
	_, err := lease.Prepare(t.Context(), store, "a")
	require.NoError(t, err)
	_, err = store.PutIfAbsent(t.Context(), layout.ConfigKey("a"), []byte(minimal))
	require.NoError(t, err)
}

// A running is nstance-server run in this process.
type running struct {
	log  logBuffer
	stop context.CancelFunc
	code chan int
}

func start(t *testing.T, p servercmd.Parts, args ...string) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r := &running{stop: cancel, code: make(chan int, 1)}
	args = append([]string{"run", "--key-provider", "none", "--data", t.TempDir()}, args...)
	go func() {
		r.code <- servercmd.Main(ctx, p, args, io.Discard, &r.log, func(string) string { return "" })
	}()
	t.Cleanup(cancel)
	return r
}

func (r *running) leads(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Contains(r.log.String(), "lease acquired") }, time.Minute, 5*time.Millisecond, "%s", &r.log)
}

func (r *running) ends(t *testing.T) int {
	t.Helper()
	r.stop()
	select {
	case code := <-r.code:
		return code
	case <-time.After(time.Minute):
		require.FailNow(t, "it does not end", "%s", &r.log)
		return 0
	}
}

func configFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "shard.jsonc")
	require.NoError(t, os.WriteFile(path, []byte(minimal), 0o600))
	return path
}

// TestStartWaits: whatever can pass is waited for, and the process shows meanwhile that it
// lives.
func TestStartWaits(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{
		"unavailable":  nstance.Errorf(nstance.Unavailable, "storage does not answer"),
		"throttled":    nstance.Errorf(nstance.Throttled, "slow down"),
		"denied":       nstance.Errorf(nstance.Denied, "RequestTimeTooSkewed"),
		"ambiguous":    nstance.Errorf(nstance.Ambiguous, "no answer"),
		"quota":        nstance.Errorf(nstance.Quota, "too many requests today"),
		"unclassified": errors.New("lookup bucket: no such host"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var answers atomic.Bool
			var attempts atomic.Int32
			p, store, web := parts(), storage.NewMemory(), freeAddress(t)
			p.Storage = func(context.Context, string) (storage.Store, error) {
				attempts.Add(1)
				if !answers.Load() {
					return nil, err
				}
				return store, nil
			}
			r := start(t, p, "--config", configFile(t), "--bind", ports(web))
			require.Eventually(t, func() bool { return attempts.Load() > 1 }, time.Minute, 5*time.Millisecond, "%s", &r.log)
			require.Equal(t, http.StatusOK, get(web, "/healthz"))
			require.Equal(t, http.StatusServiceUnavailable, get(web, "/readyz"))
			require.Contains(t, r.log.String(), err.Error())
			answers.Store(true)
			r.leads(t)
			require.Eventually(t, func() bool { return get(web, "/readyz") == http.StatusOK }, time.Minute, 5*time.Millisecond)
			require.Zero(t, r.ends(t))
		})
	}
	t.Run("a signal ends the wait", func(t *testing.T) {
		t.Parallel()
		p := parts()
		p.Storage = func(context.Context, string) (storage.Store, error) {
			return nil, nstance.Errorf(nstance.Unavailable, "away")
		}
		r := start(t, p, "--config", configFile(t), "--bind", ports("127.0.0.1:0"))
		require.Eventually(t, func() bool { return strings.Contains(r.log.String(), "away") }, time.Minute, 5*time.Millisecond)
		require.Zero(t, r.ends(t))
	})
	t.Run("a mistake does not pass", func(t *testing.T) {
		t.Parallel()
		p := parts()
		p.Storage = func(context.Context, string) (storage.Store, error) {
			return nil, nstance.FieldError("storage.url", "use another", "is wrong")
		}
		r := start(t, p, "--config", configFile(t), "--bind", ports("127.0.0.1:0"))
		require.Equal(t, 2, <-r.code)
		require.Contains(t, r.log.String(), "storage.url: is wrong")
	})
}

// oneFault is a store of which one call fails.
type oneFault struct {
	*storage.Memory
	calls *atomic.Int64
	at    int64
}

func (s oneFault) fails() error {
	if s.calls.Add(1) == s.at {
		return nstance.Errorf(nstance.Unavailable, "call %d fails", s.at)
	}
	return nil
}

func (s oneFault) Get(ctx context.Context, key string) (storage.Object, error) {
	if err := s.fails(); err != nil {
		return storage.Object{}, err
	}
	return s.Memory.Get(ctx, key)
}

func (s oneFault) PutIfAbsent(ctx context.Context, key string, data []byte) (storage.Version, error) {
	if err := s.fails(); err != nil {
		return "", err
	}
	return s.Memory.PutIfAbsent(ctx, key, data)
}

func (s oneFault) PutIfMatch(ctx context.Context, key string, data []byte, v storage.Version) (storage.Version, error) {
	if err := s.fails(); err != nil {
		return "", err
	}
	return s.Memory.PutIfMatch(ctx, key, data, v)
}

func (s oneFault) DeleteIfMatch(ctx context.Context, key string, v storage.Version) error {
	if err := s.fails(); err != nil {
		return err
	}
	return s.Memory.DeleteIfMatch(ctx, key, v)
}

// TestStartSurvivesAnyFailedCall: whichever call to storage fails during the start, the
// server leads in the end.
func TestStartSurvivesAnyFailedCall(t *testing.T) {
	t.Parallel()
	for at := range int64(48) {
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			t.Parallel()
			p, store := parts(), oneFault{storage.NewMemory(), new(atomic.Int64), at}
			prepare(t, store.Memory)
			p.Storage = func(context.Context, string) (storage.Store, error) { return store, nil }
			r := start(t, p, "--shard", "a", "--bind", ports("127.0.0.1:0"))
			r.leads(t)
			require.Zero(t, r.ends(t), "%s", &r.log)
		})
	}
}

// TestStorageOfAnotherCluster: a server whose configuration names another cluster than its
// storage is refused, for a shard that is there and for a new one.
func TestStorageOfAnotherCluster(t *testing.T) {
	t.Parallel()
	store := storage.NewMemory()
	prepare(t, store)
	p := parts()
	p.Storage = func(context.Context, string) (storage.Store, error) { return store, nil }
	first := start(t, p, "--config", configFile(t), "--bind", ports("127.0.0.1:0"))
	first.leads(t)
	require.Zero(t, first.ends(t))
	for _, shard := range []string{"a", "b"} {
		path := filepath.Join(t.TempDir(), "shard.jsonc")
		other := strings.NewReplacer(`"id": "c"`, `"id": "cc"`, `"id": "a"`, `"id": "`+shard+`"`).Replace(minimal)
		require.NoError(t, os.WriteFile(path, []byte(other), 0o600))
		r := start(t, p, "--config", path, "--bind", ports("127.0.0.1:0"))
		require.Equal(t, 2, <-r.code, "%s", &r.log)
		require.Contains(t, r.log.String(), "cluster.id: this storage is of cluster c, not of cc")
	}
}

// TestLogOfLinesOfJSON: every line of a log in JSON is JSON, that of the error which ends the
// program too.
func TestLogOfLinesOfJSON(t *testing.T) {
	p, store := parts(), storage.NewMemory()
	p.Storage = func(context.Context, string) (storage.Store, error) { return store, nil }
	web := freeAddress(t)
	r := start(t, p, "--config", configFile(t), "--bind", ports(web), "--log-format", "json", "--log-level", "debug")
	r.leads(t)
	require.Zero(t, r.ends(t))
	requireJSON(t, r.log.String())

	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, []byte("too short"), 0o600))
	code, _, errs := call(t, map[string]string{"HOME": "/"}, "run", "--key-provider", "file", "--key-source", file, "--log-format", "json")
	require.Equal(t, 2, code)
	requireJSON(t, errs)
	require.Contains(t, errs, file)
}

func requireJSON(t *testing.T, log string) {
	t.Helper()
	require.NotEmpty(t, log)
	for line := range strings.Lines(log) {
		require.True(t, json.Valid([]byte(line)), line)
	}
}
