package ports

import (
	"bufio"
	"context"
	"math"
	"runtime"
	"time"

	"github.com/nstance-go/nstance/internal/fair"
)

// turnWait is how long a client waits for its handshake to begin. It is less than an agent waits
// for one: a handshake that the client has given up is of no use.
const turnWait = 2 * time.Second

// newTurns returns the queue of handshakes, in which source addresses take turns: a few compute
// at once for each processor. When all agents of a shard come back at once, all their handshakes
// together would take longer than any of them waits.
func newTurns() *fair.Queue[string] {
	n := 8 * runtime.GOMAXPROCS(0)
	return fair.NewQueue[string](n, n, math.MaxInt) // connections are bounded already
}

// A shakingConn has a turn while its handshake computes, and none while it waits for the client,
// who may take any time. Once the server has answered it waits for no turn: what is half done
// goes first.
type shakingConn struct {
	*gatedConn
	ahead     *bufio.Reader // what the client sent at once is read at once, and costs one turn; nil: the handshake is complete and this is read
	release   func()        // gives its turn back; nil: it has none
	answering bool          // the server has answered
	done      bool          // the handshake is complete, and takes no turns any more
}

// newShaking returns a connection whose handshake begins.
func newShaking(conn *gatedConn) *shakingConn {
	return &shakingConn{gatedConn: conn, ahead: bufio.NewReader(conn)}
}

// Read implements net.Conn. Fails with Unavailable where no turn came.
func (c *shakingConn) Read(p []byte) (int, error) {
	switch {
	case c.ahead == nil:
		return c.gatedConn.Read(p)
	case c.ahead.Buffered() > 0:
		return c.ahead.Read(p)
	case c.done:
		c.ahead = nil // idle connections cost no buffer
		return c.gatedConn.Read(p)
	}
	c.leave()
	n, err := c.ahead.Read(p)
	if err == nil && !c.answering {
		err = c.await()
	}
	return n, err
}

// Write implements net.Conn.
func (c *shakingConn) Write(p []byte) (int, error) {
	if !c.done && !c.answering {
		c.answering = true
		c.setAnswered()
	}
	return c.gatedConn.Write(p)
}

func (c *shakingConn) await() error {
	ctx, cancel := context.WithTimeout(context.Background(), turnWait)
	defer cancel()
	release, err := c.gate.turns.Acquire(ctx, sourceGroup(c.RemoteAddr()))
	if err != nil {
		c.gate.refused()
		return err
	}
	c.release = release
	return nil
}

func (c *shakingConn) leave() {
	if c.release != nil {
		c.release()
		c.release = nil
	}
}

// end is called when the handshake has ended.
func (c *shakingConn) end() {
	c.leave()
	c.done = true
}
