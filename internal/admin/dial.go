package admin

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/operatorapi"
	"github.com/nstance-go/nstance/internal/wire"
)

const (
	defaultTimeout = 30 * time.Second
	lookTimeout    = 2 * time.Second // for finding out why a connection broke
	noTimeout      = 0               // of streams
)

// A dialer connects to servers.
type dialer struct {
	tls     *tls.Config
	timeout time.Duration // of each call; zero means the default
	stderr  *console      // for messages about slow calls; may be nil
}

// open prepares a connection, which is made when it is first used. Errors of
// calls on it carry the server's code, and what to do.
func (d dialer) open(addr string) (*grpc.ClientConn, error) {
	if d.timeout == 0 {
		d.timeout = defaultTimeout
	}
	return operatorapi.Dial(addr, d.tls, grpc.WithUnaryInterceptor(d.unary))
}

func (d dialer) unary(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	addr := strings.TrimPrefix(conn.Target(), "passthrough:///")
	call := func() error {
		return d.explainBroken(ctx, addr, explain(addr, d.timeout, invoke(ctx, method, req, reply, conn, opts...)))
	}
	if d.stderr == nil {
		return call()
	}
	return d.stderr.slow("waiting for "+addr, call)
}

// explain returns the domain error of a call with that timeout. The server's own errors have a remedy;
// errors of the connection get one here.
func explain(addr string, timeout time.Duration, err error) error {
	st, _ := status.FromError(err)
	if err == nil || len(st.Details()) > 0 {
		return wire.ErrorOf(err)
	}
	switch st.Code() {
	case codes.DeadlineExceeded:
		if timeout == noTimeout {
			break
		}
		return fault(nstance.Unavailable, err, "check that a server leads there, or allow more with --timeout",
			fmt.Sprintf("%s did not answer within %s", addr, timeout))
	case codes.Canceled:
		return fault(nstance.Unavailable, err, "", "interrupted")
	case codes.Unimplemented:
		return fault(nstance.Internal, err, "use the nstance-admin of the server's version", fmt.Sprintf("%s does not know this request", addr))
	case codes.Unavailable:
		return unreachable(addr, err, st.Message())
	}
	return fmt.Errorf("%s: %w", addr, wire.ErrorOf(err))
}

func unreachable(addr string, err error, msg string) error {
	msg = strings.TrimPrefix(msg, `connection error: desc = `)
	msg = strings.TrimPrefix(strings.Trim(msg, `"`), "transport: ")
	// gRPC reports a refused certificate like a broken connection, in its text only.
	if strings.Contains(msg, "tls: ") || strings.Contains(msg, "x509: ") {
		return untrusted(addr, err, msg)
	}
	return fault(nstance.Unavailable, err, "check that the server runs there, or name another address with --server",
		fmt.Sprintf("%s cannot be reached: %s", addr, msg))
}

func untrusted(addr string, err error, msg string) error {
	return fault(nstance.Denied, err, "check that it is the server of this identity's shard, or log in again with nstance-admin login",
		fmt.Sprintf("%s: no trust between it and this identity: %s", addr, msg))
}

// explainBroken finds out why a connection broke. In TLS 1.3 a client may write as soon
// as it has sent its certificate (RFC 8446 §2). If the server refuses that, the
// client may see a broken pipe instead of the reason. This connection only reads,
// and so receives the alert.
func (d dialer) explainBroken(ctx context.Context, addr string, err error) error {
	if st, ok := status.FromError(errors.Unwrap(err)); !ok || st.Code() != codes.Unavailable || len(st.Details()) > 0 || nstance.CodeOf(err) == nstance.Denied {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	cfg := d.tls.Clone()
	cfg.NextProtos = []string{"h2"}
	conn, derr := (&tls.Dialer{Config: cfg}).DialContext(ctx, "tcp", addr)
	if derr != nil {
		return err // no connection at all, as err says
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	_, rerr := conn.Read(make([]byte, 1))
	if alert, ok := errors.AsType[tls.AlertError](rerr); ok {
		return untrusted(addr, err, alert.Error())
	}
	if op, ok := errors.AsType[*net.OpError](rerr); ok && op.Op == "remote error" {
		return untrusted(addr, err, op.Err.Error())
	}
	return err
}
