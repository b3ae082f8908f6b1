package faultproxy_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/test/faultproxy"
)

func TestWire(t *testing.T) {
	back := &counter{}
	srv := httptest.NewServer(back)
	t.Cleanup(srv.Close)
	wire, err := faultproxy.NewWire(srv.Listener.Addr().String())
	require.NoError(t, err)
	t.Cleanup(wire.Close)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	ask := func(ctx context.Context) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+wire.Addr(), nil)
		require.NoError(t, err)
		answer, err := transport.RoundTrip(r)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		_, err = answer.Body.Read(make([]byte, 1<<10))
		if err != nil && err.Error() == "EOF" {
			err = nil
		}
		return err
	}
	require.NoError(t, ask(t.Context()))
	wire.Silence()
	ctx, stop := context.WithCancel(t.Context())
	asked := make(chan error, 1)
	go func() { asked <- ask(ctx) }()
	require.Eventually(t, func() bool { return wire.Swallowed() == 1 }, time.Minute, time.Millisecond)
	require.EqualValues(t, 1, back.n.Load(), "nothing has arrived")
	stop()
	require.ErrorIs(t, <-asked, context.Canceled, "and nothing has come back")
	require.NoError(t, ask(t.Context()), "a new connection works")
	require.Equal(t, 2, wire.Accepted())
}
