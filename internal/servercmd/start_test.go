package servercmd_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
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
	"github.com/nstance-go/nstance/storage/secret"
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
	for name, taken := range map[string]func(t *testing.T) (address string, free func()){
		"a port is taken": func(t *testing.T) (string, func()) {
			other, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			t.Cleanup(func() { _ = other.Close() })
			return other.Addr().String(), func() { require.NoError(t, other.Close()) }
		},
		"an address is not there": func(*testing.T) (string, func()) { return "192.0.2.1:0", nil },
		"a name is not known":     func(*testing.T) (string, func()) { return "nowhere.invalid:0", nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, store, web := parts(), storage.NewMemory(), freeAddress(t)
			prepare(t, store)
			p.Storage = func(context.Context, string) (storage.Store, error) { return store, nil }
			address, free := taken(t)
			bind := strings.Replace(ports(web), "agent=127.0.0.1:0", "agent="+address, 1)
			r := start(t, p, "--shard", "a", "--bind", bind)
			require.Eventually(t, func() bool { return strings.Contains(r.log.String(), "cannot start yet") }, time.Minute, 5*time.Millisecond, "%s", &r.log)
			require.Contains(t, r.log.String(), "shard.bind.agent: cannot listen on "+address)
			inARow := 0 // so often that it is not between two attempts only
			require.Eventually(t, func() bool {
				if inARow++; get(web, "/healthz") != http.StatusOK {
					inARow = 0
				}
				return inARow == 30
			}, time.Minute, 5*time.Millisecond)
			if free != nil {
				free()
				r.leads(t)
			}
			require.Zero(t, r.ends(t), "%s", &r.log)
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

// TestKeyFileThatCannotBeReadYet: the disk with the keys may come later than the program.
func TestKeyFileThatCannotBeReadYet(t *testing.T) {
	t.Parallel()
	p, store, web := parts(), storage.NewMemory(), freeAddress(t)
	prepare(t, store)
	p.Storage = func(context.Context, string) (storage.Store, error) { return store, nil }
	keys := filepath.Join(t.TempDir(), "keys")
	require.NoError(t, os.Symlink(keys, keys)) // which cannot be read
	r := start(t, p, "--shard", "a", "--bind", ports(web), "--key-provider", "file", "--key-source", keys)
	require.Eventually(t, func() bool { return strings.Contains(r.log.String(), "cannot start yet") }, time.Minute, 5*time.Millisecond, "%s", &r.log)
	require.Equal(t, http.StatusOK, get(web, "/healthz"))
	require.NoError(t, os.WriteFile(keys+".new", []byte(secret.NewKey().Encode()), 0o600))
	require.NoError(t, os.Rename(keys+".new", keys))
	r.leads(t)
	require.Zero(t, r.ends(t))
}

// onePerSecond is a store that permits one write a second to one object, as Google and
// Cloudflare document of theirs. What it throttles has no effect.
type onePerSecond struct {
	*storage.Memory
	mu   *sync.Mutex
	last map[string]time.Time
}

func (s onePerSecond) limit(key string, write func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last, written := s.last[key]; written && time.Since(last) < time.Second {
		return nstance.Errorf(nstance.Throttled, "put %s: the store answers 429 rateLimitExceeded", key)
	}
	err := write()
	if err == nil {
		s.last[key] = time.Now()
	}
	return err
}

func (s onePerSecond) PutIfAbsent(ctx context.Context, key string, data []byte) (v storage.Version, err error) {
	err = s.limit(key, func() (err error) { v, err = s.Memory.PutIfAbsent(ctx, key, data); return err })
	return v, err
}

func (s onePerSecond) PutIfMatch(ctx context.Context, key string, data []byte, match storage.Version) (v storage.Version, err error) {
	err = s.limit(key, func() (err error) { v, err = s.Memory.PutIfMatch(ctx, key, data, match); return err })
	return v, err
}

func (s onePerSecond) DeleteIfMatch(ctx context.Context, key string, match storage.Version) error {
	return s.limit(key, func() error { return s.Memory.DeleteIfMatch(ctx, key, match) })
}

// TestStoreOfOneWriteASecond: a server starts on such a store, makes its machines, keeps its
// term, and hands it over.
func TestStoreOfOneWriteASecond(t *testing.T) {
	t.Parallel()
	p, store := parts(), onePerSecond{storage.NewMemory(), new(sync.Mutex), map[string]time.Time{}}
	prepare(t, store.Memory)
	p.Storage = func(context.Context, string) (storage.Store, error) { return store, nil }
	r := start(t, p, "--shard", "a", "--bind", ports("127.0.0.1:0"))
	machines := func() (n int) {
		for e, err := range store.List(t.Context(), "instance/", "") {
			require.NoError(t, err)
			if strings.HasSuffix(e.Key, ".json") {
				n++
			}
		}
		return n
	}
	require.Eventually(t, func() bool { return machines() == 2 }, time.Minute, 20*time.Millisecond, "%s", &r.log)
	next := start(t, p, "--shard", "a", "--bind", ports("127.0.0.1:0"))
	require.Eventually(t, func() bool { return strings.Contains(next.log.String(), "nstance-server starts") }, time.Minute, 5*time.Millisecond, "%s", &next.log)
	require.Zero(t, r.ends(t), "%s", &r.log)
	next.leads(t)
	require.NotContains(t, r.log.String(), "lease lost")
	require.Zero(t, next.ends(t), "%s", &next.log)
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
