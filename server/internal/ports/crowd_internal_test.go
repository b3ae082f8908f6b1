package ports

import (
	"crypto/tls"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/config"
)

// TestCrowd: of many clients that come at once again and again, at some distance, more than the
// gate lets in, most handshakes that the server has answered end well.
func TestCrowd(t *testing.T) {
	const clients, most = 300, 32
	for name, c := range map[string]struct {
		limits config.Connections
		from   func(i int) net.IP
	}{
		"each has its address": {
			config.Connections{Max: 10 * clients, Anonymous: most, PerSource: clients, PerClient: 1},
			func(i int) net.IP { return net.IPv4(127, 1, byte(i>>8), byte(i)) },
		},
		"all have one": {
			config.Connections{Max: 10 * clients, Anonymous: 10 * clients, PerSource: most, PerClient: 1},
			func(int) net.IP { return net.IPv4(127, 0, 0, 1) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			require.Less(t, crowd(t, c.limits, clients, c.from), 5*clients)
		})
	}
}

// crowd returns how many handshakes the server has answered when each client has got through.
func crowd(t *testing.T, limits config.Connections, clients int, source func(i int) net.IP) int {
	const distance = 20 * time.Millisecond
	d := newDoor(t)
	d.gate.limits = limits
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	gated := d.gate.Listener(lis, time.Hour, nil)
	var answered atomic.Int64
	var serving, asking sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := gated.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				shaken, _, err := d.creds.ServerHandshake(conn)
				c, _ := conn.(*gatedConn)
				d.gate.mu.Lock()
				if !c.answered.IsZero() {
					answered.Add(1)
				}
				d.gate.mu.Unlock()
				if err == nil {
					_, _ = shaken.Write([]byte{1}) // the client knows that it is through
				}
				_ = conn.Close()
			})
		}
	})
	for i := range clients {
		from := net.Dialer{LocalAddr: &net.TCPAddr{IP: source(i)}}
		asking.Go(func() {
			for t.Context().Err() == nil {
				conn, err := from.Dial("tcp", lis.Addr().String())
				if err != nil {
					continue
				}
				_, err = tls.Client(&distant{Conn: conn, by: distance}, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}).Read(make([]byte, 1)) //nolint:gosec // the test is about the gate
				_ = conn.Close()
				if err == nil {
					return
				}
			}
		})
	}
	asking.Wait()
	require.NoError(t, lis.Close())
	serving.Wait()
	return int(answered.Load())
}

// A distant connection's answers arrive late.
type distant struct {
	net.Conn
	by time.Duration
}

func (d *distant) Read(p []byte) (int, error) {
	n, err := d.Conn.Read(p)
	<-time.After(d.by)
	return n, err
}
