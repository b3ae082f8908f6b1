package admin_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/admin"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/wire"
)

// A running is a command under way.
type running struct {
	t     *testing.T
	lines chan string // of standard output
	errs  *watched
	stop  context.CancelFunc
	code  chan int
}

// watched is a buffer that may be read while it is written.
type watched struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.Write(p)
}

func (w *watched) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.String()
}

func (w *world) start(t *testing.T, args ...string) *running {
	ctx, cancel := context.WithCancel(t.Context())
	r := &running{t: t, lines: make(chan string, 100), errs: &watched{}, stop: cancel, code: make(chan int, 1)}
	pr, pw := io.Pipe()
	var wg sync.WaitGroup
	wg.Go(func() {
		env := map[string]string{"NSTANCE_ADMIN_DIR": w.dir}
		r.code <- admin.Main(ctx, nil, args, strings.NewReader(""), pw, r.errs, func(k string) string { return env[k] })
		_ = pw.Close()
	})
	wg.Go(func() {
		for s := bufio.NewScanner(pr); s.Scan(); {
			r.lines <- s.Text()
		}
		close(r.lines)
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return r
}

// next returns the next line of output.
func (r *running) next() string {
	r.t.Helper()
	select {
	case line, ok := <-r.lines:
		require.True(r.t, ok, "it ended: %s", r.errs)
		return line
	case <-time.After(time.Minute):
		require.FailNow(r.t, "no line", "%s", r.errs)
		return ""
	}
}

func (r *running) event() nstance.Event {
	r.t.Helper()
	return wire.EventOf(message(r.t, r.next(), &apiv1.Event{}))
}

func (r *running) ended() int {
	r.t.Helper()
	select {
	case code := <-r.code:
		return code
	case <-time.After(time.Minute):
		require.FailNow(r.t, "it does not end", "%s", r.errs)
		return -1
	}
}

// watching waits for a watch, and returns its request.
func (w *world) watching(t *testing.T) string {
	t.Helper()
	var call string
	require.Eventually(t, func() bool {
		for _, c := range w.done() {
			if strings.HasPrefix(c, "watch ") {
				call = c
			}
		}
		return call != ""
	}, time.Minute, time.Millisecond)
	return call
}

func numbered(n int) nstance.Event {
	return nstance.Event{Type: nstance.EventReady, Tenant: "default", Group: "web", Instance: webA, Reason: fmt.Sprint(n)}
}

func TestFollow(t *testing.T) {
	t.Parallel()
	w := newWorld(t).populate()
	t.Run("prints one JSON object a line, from now on, until interrupted", func(t *testing.T) {
		bad := w.run("events", "--follow", "--type", "redy")
		require.Equal(t, 2, bad.code)
		require.Contains(t, bad.errors, `--type: unknown word "redy" (did you mean "ready"?)`)
		r := w.start(t, "events", "--follow", "-o", "json")
		w.watching(t)
		w.event(numbered(1))
		line := r.next()
		require.True(t, strings.HasPrefix(line, `{"seq":`), line)
		w.event(numbered(2))
		require.Equal(t, "2", r.event().Reason)
		r.stop()
		require.Zero(t, r.ended())
		require.NotContains(t, r.errs.String(), "error")
	})
	t.Run("prints a table as it grows", func(t *testing.T) {
		r := w.start(t, "events", "-f")
		w.watching(t)
		w.event(numbered(1))
		require.Regexp(t, `^TIME +EVENT +GROUP +INSTANCE +DETAILS$`, r.next())
		require.Regexp(t, `^\S{24}   ready +default/web +web\w+   1$`, r.next())
	})
	t.Run("prints YAML documents", func(t *testing.T) {
		r := w.start(t, "events", "-f", "-o", "yaml")
		w.watching(t)
		w.event(numbered(1))
		require.Equal(t, "---", r.next())
		require.Regexp(t, `^seq: "\d+"$`, r.next())
	})
	t.Run("selects", func(t *testing.T) {
		r := w.start(t, "events", "-f", "-o", "json", "--group", "web", "--instance", string(webA), "--tenant", "default")
		require.Equal(t, fmt.Sprintf(`watch after=false group="web" instance=%q`, webA), w.watching(t))
		other := numbered(1)
		other.Tenant = "blue"
		w.event(other)
		w.event(numbered(2))
		require.Equal(t, "2", r.event().Reason)
	})
	t.Run("begins after a number", func(t *testing.T) {
		last := w.hub.Last()
		w.event(numbered(1))
		w.event(numbered(2))
		r := w.start(t, "events", "-f", "-o", "json", "--after", fmt.Sprint(last+1))
		require.Equal(t, "2", r.event().Reason)
	})
	t.Run("refuses an impossible identity at once", func(t *testing.T) {
		require.Equal(t, 4, w.run("events", "-f", "--identity", t.TempDir()).code)
		require.Equal(t, 5, w.run("events", "-f", "--server", closedPort(t)).code)
	})
}

func TestFollowReconnects(t *testing.T) {
	t.Parallel()
	w := newWorld(t).populate()
	r := w.start(t, "events", "-f", "-o", "json")
	w.watching(t)
	w.event(numbered(1))
	require.Equal(t, "1", r.event().Reason)

	t.Run("where it stopped", func(t *testing.T) {
		w.set(func() { w.fail["GetShardStatus"] = nstance.Errorf(nstance.Unavailable, "no leader") })
		w.disconnect()
		require.Eventually(t, func() bool { return strings.Contains(r.errs.String(), "no leader") }, time.Minute, time.Millisecond)
		w.event(numbered(2)) // without a watch
		w.set(func() { delete(w.fail, "GetShardStatus") })
		require.Contains(t, w.watching(t), "after=true")
		require.Equal(t, "2", r.event().Reason)
		require.Contains(t, r.errs.String(), "connection lost, trying again in ")
		require.NotContains(t, r.errs.String(), "may be missing")
	})
	t.Run("saying that events are missing, if so", func(t *testing.T) {
		w.set(func() { w.fail["GetShardStatus"] = nstance.Errorf(nstance.Unavailable, "again no leader") })
		w.disconnect()
		require.Eventually(t, func() bool { return strings.Contains(r.errs.String(), "again no leader") }, time.Minute, time.Millisecond)
		for i := range 100 { // more than the server keeps
			w.event(numbered(100 + i))
		}
		w.set(func() { delete(w.fail, "GetShardStatus") })
		require.Eventually(t, func() bool { return strings.Contains(r.errs.String(), "events may be missing here") }, time.Minute, time.Millisecond)
		w.event(numbered(3))
		require.Equal(t, "3", r.event().Reason)
	})
	t.Run("not when it is refused", func(t *testing.T) {
		w.set(func() { w.fail["GetShardStatus"] = nstance.Errorf(nstance.Denied, "revoked") })
		w.disconnect()
		require.Equal(t, 4, r.ended())
		require.Contains(t, r.errs.String(), `"error":"revoked"`)
	})
}

func TestFollowWithTheIdentityAsItIsNow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.start(t, "events", "-f", "-o", "json")
	w.watching(t)
	next := w.identity(time.Now())
	require.NoError(t, admin.SaveIdentity(w.dir, next)) // as another process does that renews it
	w.set(func() { w.callers = nil })
	w.disconnect()
	w.watching(t)
	w.event(numbered(1))
	r.event()
	w.set(func() {
		for _, serial := range w.callers {
			require.Equal(t, serialOfChain(t, next.Chain), serial)
		}
	})
}

func serialOfChain(t *testing.T, chain [][]byte) string {
	certs, err := pki.ParseCertificates(pki.MarshalCertificates(chain...))
	require.NoError(t, err)
	return pki.SerialOf(certs[0])
}

func instanceMessage(id nstance.InstanceID, state string) *apiv1.Instance {
	return &apiv1.Instance{Id: string(id), Tenant: "default", Group: "web", State: state, CreatedAt: wire.Time(time.Now())}
}

// renewal asks for the renewal of one certificate, if the test asks for it.
func (w *world) renewal(ctx context.Context) *apiv1.RenewalRequest {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.retired == "" || serialOf(ctx) != w.retired {
		return nil
	}
	return &apiv1.RenewalRequest{Within: durationpb.New(time.Millisecond)}
}

func TestFollowRenewsWhenAsked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	old := w.saved()
	w.set(func() { w.retired = serialOfChain(t, old.Chain) })
	r := w.start(t, "events", "-f", "-o", "json")
	w.watching(t)
	w.event(numbered(1))
	require.Equal(t, "1", r.event().Reason)
	require.Eventually(t, func() bool { return !slices.EqualFunc(old.Chain, w.saved().Chain, bytes.Equal) }, time.Minute, 5*time.Millisecond)
	require.Contains(t, w.watching(t), "after=true", "it goes on where it stopped")
	w.event(numbered(2))
	require.Equal(t, "2", r.event().Reason)
	require.NotContains(t, r.errs.String(), "error")
	require.NotContains(t, r.errs.String(), "lost")
	require.NotEqual(t, old.Key, w.saved().Key)
}

func TestFollowContinuesAfterAFailedRenewal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	old := w.saved()
	w.set(func() {
		w.retired, w.fail["RenewCertificate"] = serialOfChain(t, old.Chain), nstance.Errorf(nstance.Unavailable, "later")
	})
	r := w.start(t, "events", "-f", "-o", "json")
	w.watching(t)
	require.Contains(t, w.watching(t), "after=true")
	w.event(numbered(1))
	require.Equal(t, "1", r.event().Reason)
	require.Contains(t, r.errs.String(), "its key is being replaced")
	w.set(func() { delete(w.fail, "RenewCertificate") })
	require.Eventually(t, func() bool { return !slices.EqualFunc(old.Chain, w.saved().Chain, bytes.Equal) }, time.Minute, 5*time.Millisecond)
}
