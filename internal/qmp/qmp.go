// Package qmp speaks the QEMU Machine Protocol over one connection, as its client.
//
// A monitor serves one client at a time, and one that connects beside it hangs
// without a greeting. So a [Client] owns its connection, and every wait has an
// end. The facts are from QEMU's "QEMU Machine Protocol Specification" and were
// checked against QEMU 7.2.
package qmp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
)

// maxLine is the longest message accepted, in bytes.
const maxLine = 1 << 20

// An Event is what the monitor says unasked.
type Event struct {
	Name string          `json:"event"`
	Data json.RawMessage `json:"data"`
}

// Reason returns the reason that a SHUTDOWN event carries. It distinguishes who stopped
// the machine; the exit code of QEMU is 0 in most cases.
func (e Event) Reason() string {
	var data struct {
		Reason string `json:"reason"`
	}
	_ = json.Unmarshal(e.Data, &data) // no reason: empty
	return data.Reason
}

// An Error is the refusal of a command.
type Error struct {
	Command string `json:"-"`
	Class   string `json:"class"`
	Desc    string `json:"desc"`
}

// Error returns command and description.
func (e *Error) Error() string { return e.Command + ": " + e.Desc }

// A Client sends commands. It is safe for concurrent use; commands are sent one
// after another.
type Client struct {
	conn    net.Conn
	onEvent func(Event)
	turn    chan struct{} // holds one value while no command is in progress
	replies chan reply
	ended   chan struct{}
	err     error // why the connection ended; to be read once ended is closed
	once    sync.Once

	lastID uint64 // guarded by turn
}

// A reply is one message of the monitor.
type reply struct {
	Event
	ID     uint64          `json:"id"`
	Return json.RawMessage `json:"return"`
	Error  *Error          `json:"error"`
	QMP    json.RawMessage `json:"QMP"`
}

// New waits for the greeting of the monitor at the other end of conn and
// negotiates capabilities: before that, no command is known. onEvent gets each
// event in order, from one goroutine, and must not block; nil discards. The
// client owns conn, also when New fails.
func New(ctx context.Context, conn net.Conn, onEvent func(Event)) (*Client, error) {
	if onEvent == nil {
		onEvent = func(Event) {}
	}
	c := &Client{conn: conn, onEvent: onEvent, turn: make(chan struct{}, 1), replies: make(chan reply, 1), ended: make(chan struct{})}
	greeted := make(chan struct{})
	go c.receive(greeted)
	err := c.greet(ctx, greeted)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Client) greet(ctx context.Context, greeted <-chan struct{}) error {
	select {
	case <-greeted:
	case <-c.ended:
		return fmt.Errorf("no greeting: %w", c.err)
	case <-ctx.Done():
		return fmt.Errorf("no greeting: %w", context.Cause(ctx))
	}
	c.turn <- struct{}{}
	return c.Execute(ctx, "qmp_capabilities", nil, nil)
}

// receive reads messages until the connection ends.
func (c *Client) receive(greeted chan<- struct{}) {
	defer close(c.ended)
	lines := bufio.NewScanner(c.conn)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var r reply
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			c.err = fmt.Errorf("the monitor sent no JSON: %w", err)
			return
		}
		switch {
		case r.Name != "":
			c.onEvent(r.Event)
		case r.QMP != nil && greeted != nil:
			close(greeted)
			greeted = nil
		default:
			c.deliver(r)
		}
	}
	if c.err = lines.Err(); c.err == nil {
		c.err = net.ErrClosed
	}
}

// deliver passes a reply on. It takes the place of one that no command waits for
// any more.
func (c *Client) deliver(r reply) {
	for {
		select {
		case c.replies <- r:
			return
		case <-c.replies:
		}
	}
}

// Execute sends one command with its arguments, nil for none, and decodes what
// it returns into result, unless that is nil. A refusal is an *Error. When ctx
// ends first, the command may have been carried out.
func (c *Client) Execute(ctx context.Context, command string, args, result any) error {
	select {
	case <-c.turn:
	case <-c.ended:
		return fmt.Errorf("%s: %w", command, c.err)
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", command, context.Cause(ctx))
	}
	defer func() { c.turn <- struct{}{} }()
	if err := c.send(ctx, command, args); err != nil {
		return fmt.Errorf("%s: %w", command, err)
	}
	r, err := c.await(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", command, err)
	case r.Error != nil:
		r.Error.Command = command
		return r.Error
	case result == nil:
		return nil
	}
	return json.Unmarshal(r.Return, result)
}

// await returns the reply to the last command. Those to commands that were given
// up may come before it.
func (c *Client) await(ctx context.Context) (reply, error) {
	for {
		var r reply
		select {
		case r = <-c.replies:
		case <-c.ended:
			select {
			case r = <-c.replies: // it came just before the end
			default:
				return r, c.err
			}
		case <-ctx.Done():
			return r, context.Cause(ctx)
		}
		if r.ID == c.lastID {
			return r, nil
		}
	}
}

func (c *Client) send(ctx context.Context, command string, args any) error {
	c.lastID++
	line, err := json.Marshal(struct {
		Execute   string `json:"execute"`
		Arguments any    `json:"arguments,omitempty"`
		ID        uint64 `json:"id"`
	}{command, args, c.lastID})
	if err != nil {
		return err
	}
	deadline, _ := ctx.Deadline() // zero: none
	if err := c.conn.SetWriteDeadline(deadline); err != nil {
		return err
	}
	_, err = c.conn.Write(append(line, '\n'))
	return err
}

// Done is closed when the connection has ended.
func (c *Client) Done() <-chan struct{} { return c.ended }

// Close ends the connection and waits until no event is being handled.
func (c *Client) Close() error {
	var err error
	c.once.Do(func() { err = c.conn.Close() })
	<-c.ended
	return err
}
