package metrics

import (
	"context"
	"path"
	"time"

	"google.golang.org/grpc"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/wire"
)

// Unary times requests. It is the outermost interceptor: refusals count too.
func (m *Metrics) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	from := time.Now()
	resp, err := next(ctx, req)
	m.requests.WithLabelValues(path.Base(info.FullMethod), label(codeOf(err))).Observe(time.Since(from).Seconds())
	return resp, err
}

// Refused counts a request that was refused before it was read, of a method that there
// is.
func (m *Metrics) Refused(method string, err error) {
	m.requests.WithLabelValues(path.Base(method), label(nstance.CodeOf(err))).Observe(0)
}

// Stream counts open streams.
func (m *Metrics) Stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	g := m.streams.WithLabelValues(path.Base(info.FullMethod))
	g.Inc()
	defer g.Dec()
	return next(srv, ss)
}

func codeOf(err error) nstance.Code {
	if err == nil {
		return ""
	}
	return nstance.CodeOf(wire.ErrorOf(err))
}
