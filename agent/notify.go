package agent

import (
	"context"
	"net"
	"time"
)

// A notifier tells systemd how the agent is. See sd_notify(3) for the protocol:
// one datagram of lines to the socket named in NOTIFY_SOCKET.
type notifier struct {
	say      func(state string) // nil: there is no systemd
	watchdog time.Duration      // how often systemd wants to hear; zero: never
	alive    func() bool        // whether the agent makes progress
}

// Run says that the agent is ready, and from then on that it lives, as long as
// it makes progress, until ctx ends. What cannot be said is lost: systemd draws
// its own conclusions.
func (n *notifier) Run(ctx context.Context) error {
	if n.say == nil {
		<-ctx.Done()
		return nil
	}
	n.say("READY=1")
	defer n.say("STOPPING=1")
	var tick <-chan time.Time
	if n.watchdog > 0 {
		ticker := time.NewTicker(max(n.watchdog/2, time.Millisecond))
		defer ticker.Stop()
		tick = ticker.C
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick:
			if n.alive() {
				n.say("WATCHDOG=1")
			}
		}
	}
}

// notifySocket returns how to say something to the socket, nil if there is none.
// A leading @ means the abstract namespace here as it does in package net.
func notifySocket(path string) func(state string) {
	if path == "" {
		return nil
	}
	return func(state string) {
		conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
		if err != nil {
			return
		}
		defer conn.Close() // a datagram is sent or lost by now
		if err := conn.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
			return
		}
		_, _ = conn.Write([]byte(state))
	}
}
