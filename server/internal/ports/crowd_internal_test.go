package ports

import (
	"crypto/tls"
	"encoding/binary"
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
	const clients, most = 120, 16
	for name, c := range map[string]struct {
		limits config.Connections
		apart  bool
	}{
		"each has its address": {config.Connections{Max: 10 * clients, Anonymous: most, PerSource: clients, PerClient: 1}, true},
		"all have one":         {config.Connections{Max: 10 * clients, Anonymous: 10 * clients, PerSource: most, PerClient: 1}, false},
	} {
		t.Run(name, func(t *testing.T) {
			require.Less(t, crowd(t, c.limits, clients, c.apart), 5*clients)
		})
	}
}

// crowd returns how many handshakes the server has answered when each client has got through.
// Clients that are apart have no address in common.
func crowd(t *testing.T, limits config.Connections, clients int, apart bool) int {
	const distance = 20 * time.Millisecond
	d := newDoor(t)
	d.gate.limits = limits
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	gated := d.gate.Listener(&addressed{Listener: lis, apart: apart}, time.Hour, nil)
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
	for range clients {
		asking.Go(func() {
			for t.Context().Err() == nil {
				conn, err := net.Dial("tcp", lis.Addr().String())
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

// An addressed listener has connections from one address, or each from its own.
type addressed struct {
	net.Listener
	apart bool
	n     uint32
}

func (a *addressed) Accept() (net.Conn, error) {
	conn, err := a.Listener.Accept()
	if a.apart {
		a.n++
	}
	return &sourced{Conn: conn, from: &net.TCPAddr{IP: binary.BigEndian.AppendUint32(nil, 10<<24+a.n)}}, err
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
