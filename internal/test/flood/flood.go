// Package flood sends what a server has to bound: calls whose messages lack their last byte.
package flood

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	dialTimeout = 20 * time.Second
	window      = 60 << 10 // bytes of one call that flow control permits
	writeSize   = 8 << 10
)

// Calls are the calls of one connection.
type Calls struct {
	From   net.IP      // address of the client
	Addr   string      // host and port of the server
	TLS    *tls.Config // with the client's certificate, unless it is anonymous
	Method string
	Count  int
	Size   int // bytes of each message
	Piece  int // bytes of each DATA frame
}

// Unfinished are open connections with such calls. It is safe for concurrent use.
type Unfinished struct {
	mu    sync.Mutex
	sent  map[net.Conn]int
	total int
	wg    sync.WaitGroup
}

// Close closes all connections, and waits for what serves them.
func (u *Unfinished) Close() {
	u.mu.Lock()
	for conn := range u.sent {
		_ = conn.Close()
	}
	u.mu.Unlock()
	u.wg.Wait()
}

// Held returns how many bytes were sent on connections that the server has not closed.
func (u *Unfinished) Held() (n int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, sent := range u.sent {
		n += sent
	}
	return n
}

// Open returns how many connections the server has not closed.
func (u *Unfinished) Open() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.sent)
}

// Sent returns how many bytes were sent on all connections.
func (u *Unfinished) Sent() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.total
}

// Start opens a connection and goes on in the background until it is closed.
func (u *Unfinished) Start(ctx context.Context, c Calls) error {
	raw, err := u.dial(ctx, c.From, c.Addr)
	if err != nil {
		return err
	}
	cfg := c.TLS.Clone()
	cfg.NextProtos = []string{"h2"}
	conn := tls.Client(raw, cfg)
	u.await(raw, conn)
	u.wg.Go(func() {
		if conn.HandshakeContext(ctx) == nil {
			u.send(raw, conn, c)
		}
	})
	return nil
}

// StartHello opens a connection that sends the first record of a handshake.
func (u *Unfinished) StartHello(ctx context.Context, from net.IP, addr string) error {
	raw, err := u.dial(ctx, from, addr)
	if err != nil {
		return err
	}
	u.await(raw, raw)
	u.write(raw, raw, UnfinishedHello())
	return nil
}

func (u *Unfinished) dial(ctx context.Context, from net.IP, addr string) (net.Conn, error) {
	d := &net.Dialer{Timeout: dialTimeout, LocalAddr: &net.TCPAddr{IP: from}}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.sent == nil {
		u.sent = map[net.Conn]int{}
	}
	u.sent[conn] = 0
	return conn, nil
}

// await reads a connection until the server closes it.
func (u *Unfinished) await(raw, conn net.Conn) {
	u.wg.Go(func() {
		_, _ = io.Copy(io.Discard, conn)
		_ = raw.Close()
		u.mu.Lock()
		defer u.mu.Unlock()
		delete(u.sent, raw)
	})
}

// send sends all calls of a connection but their last bytes.
func (u *Unfinished) send(raw net.Conn, conn *tls.Conn, c Calls) {
	if !u.write(raw, conn, Begin(c.Method, c.Count)) {
		return
	}
	left := min(c.Size, window) - 1
	for i := range c.Count {
		data := make([]byte, 5+left)
		binary.BigEndian.PutUint32(data[1:], uint32(c.Size))
		for len(data) > 0 {
			var out bytes.Buffer
			frames := http2.NewFramer(&out, nil)
			for out.Len() < writeSize && len(data) > 0 {
				n := min(c.Piece, len(data))
				_ = frames.WriteData(uint32(2*i+1), false, data[:n])
				data = data[n:]
			}
			if !u.write(raw, conn, out.Bytes()) {
				return
			}
		}
	}
}

func (u *Unfinished) write(raw, conn net.Conn, b []byte) bool {
	_, err := conn.Write(b)
	u.mu.Lock()
	defer u.mu.Unlock()
	if _, open := u.sent[raw]; !open || err != nil {
		return false
	}
	u.sent[raw] += len(b)
	u.total += len(b)
	return true
}

// Begin returns the bytes that begin so many calls of a method on a new connection.
func Begin(method string, calls int, settings ...http2.Setting) []byte {
	var out, header bytes.Buffer
	out.WriteString(http2.ClientPreface)
	frames, encoder := http2.NewFramer(&out, nil), hpack.NewEncoder(&header)
	_ = frames.WriteSettings(settings...)
	for i := range calls {
		header.Reset()
		for _, f := range [][2]string{
			{":method", "POST"}, {":scheme", "https"}, {":authority", "shard"}, {":path", method}, {"content-type", "application/grpc"}, {"te", "trailers"},
		} {
			_ = encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
		}
		_ = frames.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*i + 1), BlockFragment: header.Bytes(), EndHeaders: true})
	}
	return out.Bytes()
}

// UnfinishedHello returns the first record of a handshake whose ClientHello claims to be of
// 64 KiB.
func UnfinishedHello() []byte {
	return append([]byte{22, 3, 1, 0x3f, 0xff, 1, 0, 0xff, 0xff}, make([]byte, 0x3fff-4)...)
}
