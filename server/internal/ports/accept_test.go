package ports_test

import (
	"errors"
	"log/slog"
	"net"
	"syscall"
	"testing"

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
