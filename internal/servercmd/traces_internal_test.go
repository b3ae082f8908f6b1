package servercmd

import (
	"context"
	"log/slog"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
)

// gatherer is an OpenTelemetry collector that keeps the names of spans.
type gatherer struct {
	collector.UnimplementedTraceServiceServer
	names chan string
}

// Export implements collector.TraceServiceServer.
func (g *gatherer) Export(_ context.Context, req *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	for _, r := range req.GetResourceSpans() {
		service := ""
		for _, a := range r.GetResource().GetAttributes() {
			if a.GetKey() == "service.name" {
				service = a.GetValue().GetStringValue()
			}
		}
		for _, s := range r.GetScopeSpans() {
			for _, span := range s.GetSpans() {
				g.names <- service + " " + span.GetName()
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

func TestTraces(t *testing.T) {
	r := &running{getenv: os.Getenv, log: slog.New(slog.DiscardHandler)}
	t.Run("off unless asked for", func(t *testing.T) {
		t.Setenv(otlpEndpoint, "")
		t.Setenv(otlpTracesEndpoint, "")
		tp, end, err := r.traces(t.Context(), "s1")
		require.NoError(t, err)
		require.Nil(t, tp)
		require.NoError(t, end())
	})
	t.Run("spans reach the collector, the last ones too", func(t *testing.T) {
		lis, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		require.NoError(t, err)
		g, s := &gatherer{names: make(chan string, 10)}, grpc.NewServer()
		collector.RegisterTraceServiceServer(s, g)
		served := make(chan error, 1)
		go func() { served <- s.Serve(lis) }()
		defer func() { s.Stop(); require.NoError(t, <-served) }()
		t.Setenv(otlpEndpoint, "http://"+lis.Addr().String())
		tp, end, err := r.traces(t.Context(), "s1")
		require.NoError(t, err)
		_, span := tp.Tracer("test").Start(t.Context(), "work")
		span.End()
		require.NoError(t, end())
		select {
		case name := <-g.names:
			require.Equal(t, "nstance-server work", name)
		case <-time.After(time.Minute):
			require.FailNow(t, "no span came")
		}
	})
	t.Run("a missing collector delays nothing", func(t *testing.T) {
		t.Setenv(otlpEndpoint, "http://127.0.0.1:1")
		_, end, err := r.traces(t.Context(), "s1")
		require.NoError(t, err)
		require.NoError(t, end())
	})
}
