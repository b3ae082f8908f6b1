package agent

import (
	"context"
	"net"
	"time"
)

// A notifier sends the agent's state to systemd. See sd_notify(3) for the
// protocol: one datagram of lines to the socket named in NOTIFY_SOCKET.
type notifier struct {
	send     func(state string) // nil: not run by systemd
	watchdog time.Duration      // systemd's watchdog interval; zero: none
	alive    func() bool        // whether the agent makes progress
}

// Run sends READY, then WATCHDOG as long as the agent makes progress, until ctx
// ends. A datagram that cannot be sent is lost: after enough of them systemd
// restarts the agent.
func (n *notifier) Run(ctx context.Context) error {
	if n.send == nil {
		<-ctx.Done()
		return nil
	}
	n.send("READY=1")
	defer n.send("STOPPING=1")
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
				n.send("WATCHDOG=1")
			}
		}
	}
}

// notifySocket returns a function that sends to the socket, nil if there is none.
// A leading @ means the abstract namespace, as in package net.
func notifySocket(path string) func(state string) {
	if path == "" {
		return nil
	}
	return func(state string) {
		conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
		if err != nil {
			return
		}
		defer conn.Close() // the datagram has been sent or lost
		if err := conn.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
			return
		}
		_, _ = conn.Write([]byte(state))
	}
}
