// Package session holds the numbers on which both ends of an agent's stream
// must agree, so that they cannot drift apart: a client that pings more often
// than its server permits is disconnected by it, and a server that permits
// less than its clients need finds broken streams too late.
package session

import (
	"time"

	"google.golang.org/grpc/keepalive"
)

// The keepalive of an agent's connection. A broken connection is found by
// either end within PingInterval + PingTimeout, which is under the 15 s after
// which a silent member must be asked about.
const (
	// PingInterval is how long a connection may be quiet before an end pings.
	// gRPC for Go raises a client's interval to at least 10 s
	// (google.golang.org/grpc/internal, KeepaliveMinPingTime).
	PingInterval = 10 * time.Second
	// PingTimeout is how long the answer to a ping may take.
	PingTimeout = 4 * time.Second
	// MinPingInterval is the shortest interval between pings that a server
	// tolerates; it leaves room for timers that fire early.
	MinPingInterval = 5 * time.Second
)

// Client returns the keepalive of agents.
func Client() keepalive.ClientParameters {
	return keepalive.ClientParameters{Time: PingInterval, Timeout: PingTimeout, PermitWithoutStream: true}
}

// Server returns the server's own pings.
func Server() keepalive.ServerParameters {
	return keepalive.ServerParameters{Time: PingInterval, Timeout: PingTimeout}
}

// Enforcement returns what a server tolerates from its clients.
func Enforcement() keepalive.EnforcementPolicy {
	return keepalive.EnforcementPolicy{MinTime: MinPingInterval, PermitWithoutStream: true}
}
