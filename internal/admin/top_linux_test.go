package admin_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/admin"
)

// A screen is a terminal on which top runs.
type screen struct {
	t        *testing.T
	keyboard *os.File
	code     chan int
	errs     *watched

	mu    sync.Mutex
	drawn bytes.Buffer // since the last clear
}

// top runs top on a terminal of that size.
func (w *world) top(t *testing.T, width, height uint16, args ...string) *screen {
	keyboard, tty := terminal(t)
	fd, err := unix.Dup(int(tty.Fd()))
	require.NoError(t, err)
	tty = os.NewFile(uintptr(fd), tty.Name()) // not closed here: a goroutine of bubbletea's may still ask for its number
	s := &screen{t: t, keyboard: keyboard, code: make(chan int, 1), errs: &watched{}}
	s.resize(width, height)
	env := map[string]string{"NSTANCE_ADMIN_DIR": w.dir}
	var wg sync.WaitGroup
	over := make(chan struct{})
	wg.Go(func() {
		s.code <- admin.Main(t.Context(), nil, append([]string{"top", "--interval", "100ms"}, args...), tty, tty, s.errs, func(k string) string { return env[k] })
		close(over)
	})
	wg.Go(func() { s.record(over) })
	t.Cleanup(wg.Wait)
	return s
}

// record takes note of what is drawn, until over and all of it is read.
func (s *screen) record(over chan struct{}) {
	for b := make([]byte, 4096); ; {
		last := false // nothing is drawn after over
		select {
		case <-over:
			last = true
		default:
		}
		ready, err := unix.Poll([]unix.PollFd{{Fd: int32(s.keyboard.Fd()), Events: unix.POLLIN}}, 20) // ms; an error after a signal
		if ready > 0 {
			n, _ := s.keyboard.Read(b)
			s.mu.Lock()
			s.drawn.Write(b[:n])
			s.mu.Unlock()
		} else if last && err == nil {
			return
		}
	}
}

func (s *screen) resize(width, height uint16) {
	require.NoError(s.t, unix.IoctlSetWinsize(int(s.keyboard.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: width, Row: height}))
}

func (s *screen) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.drawn.String()
}

// shows waits until text has been drawn since the last clear.
func (s *screen) shows(text string) {
	s.t.Helper()
	require.Eventually(s.t, func() bool { return strings.Contains(s.text(), text) }, time.Minute, 5*time.Millisecond, "%q in %q", text, s.errs)
}

func (s *screen) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drawn.Reset()
}

func (s *screen) typed(keys string) {
	s.t.Helper()
	s.clear()
	_, err := s.keyboard.WriteString(keys)
	require.NoError(s.t, err)
}

func (s *screen) ended() int {
	s.t.Helper()
	select {
	case code := <-s.code:
		return code
	case <-time.After(time.Minute):
		require.FailNow(s.t, "it does not end", "%s", s.text())
		return -1
	}
}

func TestTopOnATerminal(t *testing.T) {
	t.Parallel()
	w := newWorld(t).populate()
	w.set(func() { w.problems = []string{"a record is broken"} })
	began := time.Now()
	s := w.top(t, 160, 40)
	t.Run("it draws", func(*testing.T) {
		s.shows("prod/eu1a")
		s.shows("> blue/db")
		s.shows(string(dbA))
	})
	t.Run("what changes is drawn again", func(*testing.T) {
		s.clear()
		w.set(func() { w.groups[1].Size = 4711 })
		s.shows("4711")
	})
	t.Run("keys", func(*testing.T) {
		s.typed("\x1b[B") // down
		s.shows("> default/web")
		s.shows(string(webA))
		s.typed("k")
		s.shows("> blue/db")
		s.typed("p")
		s.shows("NEEDS ATTENTION")
		s.typed("o")
		s.shows("PRICE/H")
		s.typed("i")
		s.shows("KIND")
	})
	t.Run("a resize", func(t *testing.T) {
		s.clear()
		s.resize(20, 10)
		require.NoError(t, unix.Kill(os.Getpid(), unix.SIGWINCH)) // as the kernel does to what has the terminal
		s.shows("prod/eu1a")
		require.NotContains(t, s.text(), "10.0.0", "cut to 20 columns")
	})
	t.Run("quit", func(t *testing.T) {
		s.typed("q")
		require.Zero(t, s.ended())
		s.shows("\x1b[?1049l") // the screen is as it was before
		require.Empty(t, s.errs.String())
	})
	t.Run("the ledger is read every ten seconds, not at every refresh", func(t *testing.T) {
		w.set(func() { require.LessOrEqual(t, w.asks["ListInterruptions"], 1+int(time.Since(began)/(10*time.Second))) })
	})
}

func TestTopFollowsTheLeader(t *testing.T) {
	t.Parallel()
	w := newWorld(t).populate()
	other := newWorldWith(t, w.keys).populate()
	other.set(func() { other.standby = true })
	id := w.identity(time.Now())
	id.Servers = append(id.Servers, other.operator)
	w.dir = filepath.Join(t.TempDir(), "two")
	require.NoError(t, admin.SaveIdentity(w.dir, id))
	s := w.top(t, 200, 40)
	s.shows(w.operator)
	s.clear()
	w.set(func() { w.standby = true })
	s.shows("seen ")
	s.clear()
	other.set(func() { other.standby = false })
	s.shows(other.operator)
	s.typed("q")
	require.Zero(t, s.ended())
	require.Empty(t, s.errs.String(), "nothing spoils the screen")
}

func TestTopUsesARenewedCertificate(t *testing.T) {
	t.Parallel()
	w := newWorld(t).populate()
	s := w.top(t, 200, 40)
	s.shows("prod/eu1a")
	next := w.identity(time.Now())
	require.NoError(t, admin.SaveIdentity(w.dir, next)) // as another process does that renews it
	w.set(func() { w.fail["GetShardStatus"] = nstance.Errorf(nstance.Denied, "an older certificate") })
	s.shows("an older certificate")
	w.set(func() { delete(w.fail, "GetShardStatus") })
	require.Eventually(t, func() (used bool) {
		w.set(func() { used = w.callers[len(w.callers)-1] == serialOfChain(t, next.Chain) })
		return used
	}, time.Minute, 5*time.Millisecond)
	s.typed("\x03")
	require.Zero(t, s.ended())
}

func TestTopRenewsWhileItWatches(t *testing.T) {
	t.Parallel()
	w := newWorld(t).populate()
	old := w.ageing(16*time.Hour - 23*time.Second) // due in about three seconds: it lives 24 hours and the minute that it is back-dated
	s := w.top(t, 200, 40)
	s.shows("prod/eu1a")
	require.Empty(t, w.done(), "not yet")
	require.Eventually(t, func() bool {
		now, err := admin.LoadIdentity(w.dir)
		return err == nil && !bytes.Equal(old.Chain[0], now.Chain[0])
	}, time.Minute, 5*time.Millisecond)
	s.typed("q")
	require.Zero(t, s.ended())
}
