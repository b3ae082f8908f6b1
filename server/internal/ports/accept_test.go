package ports_test

import (
	"errors"
	"log/slog"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/server/internal/ports"
)

// A failing listener returns errors before it accepts.
type failing struct {
	net.Listener
	errs []error
}

func (f *failing) Accept() (net.Conn, error) {
	if len(f.errs) > 0 {
		err := f.errs[0]
		f.errs = f.errs[1:]
		return nil, err
	}
	return f.Listener.Accept()
}

// A closedListener accepts nothing.
type closedListener struct{ net.Listener }

func (closedListener) Accept() (net.Conn, error) { return nil, net.ErrClosed }
func (closedListener) Addr() net.Addr            { return &net.TCPAddr{} }

func TestAcceptIsRetried(t *testing.T) {
	open := func(errs ...error) net.Listener {
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		return ports.Patient(&failing{lis, errs}, slog.New(slog.DiscardHandler))
	}
	t.Run("after errors that pass", func(t *testing.T) {
		lis := open(syscall.EMFILE, syscall.ENOBUFS, errors.New("unknown"))
		defer lis.Close()
		conn, err := net.Dial("tcp", lis.Addr().String())
		require.NoError(t, err)
		defer conn.Close()
		accepted, err := lis.Accept()
		require.NoError(t, err)
		accepted.Close()
	})
	t.Run("with growing pauses of a second at most", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var many []error
			for range 20 {
				many = append(many, syscall.ENOMEM)
			}
			lis := ports.Patient(&failing{closedListener{}, many}, slog.New(slog.DiscardHandler))
			began := time.Now()
			_, err := lis.Accept()
			require.ErrorIs(t, err, net.ErrClosed)
			require.Equal(t, 1275*time.Millisecond+12*time.Second, time.Since(began))
		})
	})
	t.Run("until it is closed", func(t *testing.T) {
		var many []error
		for range 100 {
			many = append(many, syscall.ENOMEM)
		}
		lis := open(many...)
		done := make(chan error, 1)
		go func() {
			_, err := lis.Accept()
			done <- err
		}()
		require.NoError(t, lis.Close())
		require.ErrorIs(t, <-done, net.ErrClosed)
	})
}
