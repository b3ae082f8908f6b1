// Package session holds the credentials of clients and the keepalive settings on which both ends of an agent's
// stream must agree: a server disconnects a client that pings more often than it
// permits, and without frequent pings broken streams are detected too late.
package session

import (
	"time"

	"google.golang.org/grpc/keepalive"
)

// The keepalive of an agent's connection. Either end detects a broken connection
// within PingInterval + PingTimeout, which is less than the 15 s after which the
// provider must be asked about a silent member.
const (
	// PingInterval is how long a connection may be idle before an end pings.
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

// Enforcement returns the pings that a server permits.
func Enforcement() keepalive.EnforcementPolicy {
	return keepalive.EnforcementPolicy{MinTime: MinPingInterval, PermitWithoutStream: true}
}
