package server

import (
	"net/http"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"google.golang.org/grpc"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/traced"
	"github.com/nstance-go/nstance/server/internal/ports"
	"github.com/nstance-go/nstance/server/metrics"
)

// measure gathers what metrics show of this moment.
func (s *Server) measure() metrics.State {
	conf := s.config.InForce()
	out := metrics.State{Cluster: string(conf.Cluster.ID), Shard: string(conf.Shard.ID), Version: Version, JournalLost: s.cache.Dropped()}
	t := s.term.Load()
	if t == nil {
		out.Attention = attentionCounts(s.attention())
		return out
	}
	out.Leading, out.Epoch, out.LeaseAge = true, t.granted.Epoch(), t.granted.Age()
	out.Agents, out.QueueAge, out.Groups = t.agents.Count(), t.reconciler.QueueAge(), t.reconciler.Groups()
	out.Orphans, out.Attention = len(t.reconciler.Orphans()), attentionCounts(t.attention())
	return out
}

// pages serves everything on the HTTP port.
func (s *Server) pages() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", s.metrics.Handler())
	mux.Handle("/", s.handler())
	return ports.KnownHosts(mux, s.hostNames)
}

// watchProvider notes each call to the provider.
func (s *Server) watchProvider() func(op string, code nstance.Code, d time.Duration) {
	if s.opts.Traces == nil {
		return s.metrics.Provider
	}
	span := traced.Provider(s.opts.Traces)
	return func(op string, code nstance.Code, d time.Duration) {
		s.metrics.Provider(op, code, d)
		span(op, code, d)
	}
}

// watched adds to a port's options what watches its requests.
func (s *Server) watched(o []grpc.ServerOption) []grpc.ServerOption {
	o = append(o, grpc.ChainUnaryInterceptor(s.metrics.Unary), grpc.ChainStreamInterceptor(s.metrics.Stream))
	if s.opts.Traces != nil {
		o = append(o, grpc.StatsHandler(otelgrpc.NewServerHandler(otelgrpc.WithTracerProvider(s.opts.Traces))))
	}
	return o
}
