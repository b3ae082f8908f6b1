// Package operatorapi connects to the operators' API of a shard, for
// programs that call it: it finds the server that leads.
package operatorapi

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"google.golang.org/grpc"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/session"
)

// DialTimeout is how long a connection may take to be made, or a name to be
// looked up.
const DialTimeout = 5 * time.Second

// maxMessage bounds an answer, in bytes: a shard of ten thousand instances
// lists in some ten megabytes.
const maxMessage = 64 << 20

// Dial prepares a connection to one server, which is made when it is first
// used. No call is repeated. Fails with Invalid for what is no address.
func Dial(addr string, cfg *tls.Config, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("passthrough:///"+addr, append([]grpc.DialOption{
		grpc.WithTransportCredentials(session.Credentials(cfg)),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return (&net.Dialer{Timeout: DialTimeout}).DialContext(ctx, "tcp", addr)
		}),
		grpc.WithKeepaliveParams(session.Client()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(), // some calls must not be repeated
	}, opts...)...)
	if err != nil {
		return nil, nstance.FieldError("server", "use host:port", "%q: %v", addr, err)
	}
	return conn, nil
}

// Leader returns what leads returns for the leader among servers: standbys
// accept connections and refuse every call with Unavailable. One name may stand
// for several servers. If none of them leads, the address that a standby names
// is tried, once.
func Leader[C any](ctx context.Context, servers []string, leads func(context.Context, string) (C, error)) (C, error) {
	addrs := resolve(ctx, servers)
	var none C
	var failed error
	var said, by string
	for _, addr := range addrs {
		c, err := leads(ctx, addr)
		if err == nil {
			return c, nil
		}
		if failed == nil || !errors.Is(err, nstance.Unavailable) { // a refusal says more than silence
			failed = err
		}
		if e, ok := errors.AsType[*nstance.Error](err); ok && e.Leader != "" && !slices.Contains(addrs, e.Leader) {
			said, by = e.Leader, addr
		}
	}
	if said != "" && errors.Is(failed, nstance.Unavailable) {
		c, err := leads(ctx, said)
		if err == nil {
			return c, nil
		}
		return none, fmt.Errorf("%s, which leads according to %s: %w", said, by, err)
	}
	if len(addrs) == 1 {
		return none, failed
	}
	return none, fmt.Errorf("none of %d addresses serves this request: %w", len(addrs), failed)
}

// resolve returns every address behind the names. A name that does not resolve
// stays, so that the attempt to connect contains the reason.
func resolve(ctx context.Context, servers []string) []string {
	var out []string
	for _, addr := range servers {
		host, port, err := net.SplitHostPort(addr)
		if err != nil || net.ParseIP(host) != nil {
			out = append(out, addr)
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, DialTimeout)
		ips, err := net.DefaultResolver.LookupHost(ctx, host)
		cancel()
		if err != nil {
			out = append(out, addr)
		}
		for _, ip := range ips {
			out = append(out, net.JoinHostPort(ip, port))
		}
	}
	return out
}
