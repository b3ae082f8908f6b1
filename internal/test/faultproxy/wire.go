package faultproxy

import (
	"net"
	"sync"
	"sync/atomic"
)

// A Wire passes TCP connections on to a service, byte by byte. Silence makes it
// behave like a packet filter that has forgotten the connections of before: what
// is sent on them is lost, and neither end gets an error.
type Wire struct {
	listener net.Listener
	target   string
	wg       sync.WaitGroup

	mu     sync.Mutex
	flows  map[*flow]bool
	closed bool

	accepted  atomic.Int64
	swallowed atomic.Int64
}

// flow is one connection, with both its ends.
type flow struct {
	wire           *Wire
	client, server net.Conn
	silent         atomic.Bool
	lost           atomic.Bool // a request or an answer was swallowed
}

// NewWire returns a wire to the service at target, such as 127.0.0.1:9000, that
// listens on a port of its own. Close it.
func NewWire(target string) (*Wire, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	w := &Wire{listener: l, target: target, flows: map[*flow]bool{}}
	w.wg.Go(w.serve)
	return w, nil
}

// Addr returns where clients connect.
func (w *Wire) Addr() string { return w.listener.Addr().String() }

// Accepted returns how many connections there have been.
func (w *Wire) Accepted() int { return int(w.accepted.Load()) }

// Open returns how many connections there are.
func (w *Wire) Open() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.flows)
}

// Swallowed returns on how many connections a request or an answer was sent in vain.
func (w *Wire) Swallowed() int { return int(w.swallowed.Load()) }

// Silence lets nothing pass any more on the connections that stand. New ones
// work.
func (w *Wire) Silence() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for f := range w.flows {
		f.silent.Store(true)
	}
}

// Close ends all connections, and waits.
func (w *Wire) Close() {
	w.mu.Lock()
	w.closed = true
	for f := range w.flows {
		f.close()
	}
	w.mu.Unlock()
	_ = w.listener.Close() // it only stops to listen
	w.wg.Wait()
}

func (w *Wire) serve() {
	for {
		client, err := w.listener.Accept()
		if err != nil {
			return
		}
		w.accepted.Add(1)
		server, err := net.Dial("tcp", w.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		w.begin(&flow{wire: w, client: client, server: server})
	}
}

func (w *Wire) begin(f *flow) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		f.close()
		return
	}
	w.flows[f] = true
	w.wg.Go(f.pass)
}

// pass copies until both directions have ended.
func (f *flow) pass() {
	var wg sync.WaitGroup
	wg.Go(func() { f.copy(f.server, f.client) })
	wg.Go(func() { f.copy(f.client, f.server) })
	wg.Wait()
	f.wire.mu.Lock()
	defer f.wire.mu.Unlock()
	delete(f.wire.flows, f)
}

func (f *flow) copy(to, from net.Conn) {
	defer f.close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		switch {
		case f.silent.Load():
			if n > 0 && !f.lost.Swap(true) {
				f.wire.swallowed.Add(1)
			}
		case n > 0:
			if _, werr := to.Write(buf[:n]); werr != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (f *flow) close() {
	_ = f.client.Close() // already closed: nothing to do
	_ = f.server.Close()
}
