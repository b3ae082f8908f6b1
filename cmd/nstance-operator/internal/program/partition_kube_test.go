//go:build kube

package program

import (
	"context"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A link forwards connections to the API server. While it is cut, connections stay
// open and nothing gets through.
type link struct {
	listener net.Listener
	target   string
	ctx      context.Context
	running  sync.WaitGroup

	mu     sync.Mutex
	intact chan struct{} // closed while nothing is cut
}

// newLink returns a link that is cut.
func newLink(t *testing.T) *link {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	l := &link{listener: listener, target: strings.TrimPrefix(servers.Config.Host, "https://"), ctx: ctx, intact: make(chan struct{})}
	l.running.Go(l.accept)
	t.Cleanup(func() {
		cancel()
		_ = listener.Close()
		l.running.Wait()
	})
	return l
}

func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.intact = make(chan struct{})
}

func (l *link) heal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.intact)
}

// wait returns when nothing is cut, and false at the end.
func (l *link) wait() bool {
	l.mu.Lock()
	intact := l.intact
	l.mu.Unlock()
	select {
	case <-intact:
		return true
	case <-l.ctx.Done():
		return false
	}
}

func (l *link) accept() {
	for {
		from, err := l.listener.Accept()
		if err != nil {
			return
		}
		to, err := net.Dial("tcp", l.target)
		if err != nil {
			_ = from.Close()
			continue
		}
		context.AfterFunc(l.ctx, func() { _, _ = from.Close(), to.Close() })
		l.running.Go(func() { l.copy(to, from) })
		l.running.Go(func() { l.copy(from, to) })
	}
}

func (l *link) copy(to, from net.Conn) {
	defer func() { _, _ = from.Close(), to.Close() }()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if !l.wait() {
				return
			}
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// logged returns when a replica logged a message last.
func (r *replica) logged(message string) time.Time {
	r.Helper()
	var last time.Time
	for line := range strings.Lines(r.log.String()) {
		if strings.Contains(line, `msg="`+message+`"`) {
			text, _, _ := strings.Cut(strings.TrimPrefix(line, "time="), " ")
			at, err := time.Parse(time.RFC3339Nano, text)
			require.NoError(r, err)
			last = at
		}
	}
	return last
}

// TestKubePartition: a program without API server stays, and leads once there is one. A
// leader that is cut off has stopped its controllers before another one leads, and
// campaigns again when it is back.
func TestKubePartition(t *testing.T) {
	const name = "partition"
	l := newLink(t)
	args := []string{"--name", name, "--webhook-port=0"}
	a := start(t, append(args, "--kubeconfig", configFile(t, "https://"+l.listener.Addr().String()))...)
	require.Eventually(t, func() bool {
		return strings.Contains(a.log.String(), `"error retrieving resource lock"`) || strings.Contains(a.log.String(), `"Error retrieving lease lock"`)
	},
		eventually, interval, "the API server does not answer")
	a.requireAlive()
	l.heal()
	require.Same(t, a, leader(t, name, a))
	requireReconciled(t)

	b := start(t, args...)
	require.Eventually(t, func() bool { return strings.Contains(b.log.String(), `"leader observed"`) }, eventually, interval)
	l.cut()
	require.Same(t, b, leader(t, name, b))
	requireReconciled(t)
	require.True(t, a.logged("term ended").Before(b.logged("term starts")), "never two at the same time")
	a.requireAlive()

	l.heal()
	require.NoError(t, b.cmd.Process.Signal(syscall.SIGTERM))
	<-b.ended
	require.Zero(t, b.cmd.ProcessState.ExitCode())
	require.Same(t, a, leader(t, name, a))
	a.requireAlive()
	requireReconciled(t)
}

// TestKubeStopsWithoutAPIServer: a leader that is cut off ends when it is told to.
func TestKubeStopsWithoutAPIServer(t *testing.T) {
	l := newLink(t)
	l.heal()
	r := start(t, "--name=cutoff", "--webhook-port=0", "--kubeconfig", configFile(t, "https://"+l.listener.Addr().String()))
	leader(t, "cutoff", r)
	requireReconciled(t)
	l.cut()
	require.NoError(t, r.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case <-r.ended:
	case <-time.After(time.Minute):
		require.Fail(t, "it does not end")
	}
	require.Zero(t, r.cmd.ProcessState.ExitCode())
}
