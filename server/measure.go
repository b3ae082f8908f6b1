package server

import (
	"net/http"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/traced"
	"github.com/nstance-go/nstance/internal/version"
	"github.com/nstance-go/nstance/internal/web"
	"github.com/nstance-go/nstance/server/internal/metrics"
	"github.com/nstance-go/nstance/server/internal/ports"
	"github.com/nstance-go/nstance/storage"
)

// measure gathers what metrics show of this moment.
func (s *Server) measure() metrics.State {
	conf := s.config.InForce()
	out := metrics.State{Cluster: string(conf.Cluster.ID), Shard: string(conf.Shard.ID), Version: version.Software, JournalLost: s.events.Dropped(), LogLost: s.opts.LogLost()}
	t := s.term.Load()
	if t == nil {
		out.Attention, out.Acknowledged = attentionCounts(s.attention())
		return out
	}
	out.Leading, out.Epoch, out.LeaseAge = true, t.granted.Epoch(), t.granted.Age()
	out.LeaseTTL = conf.Shard.Election.TTL
	out.Agents, out.QueueAge, out.Groups = t.agents.Count(), t.reconciler.QueueAge(), t.reconciler.Groups()
	_, out.MetadataUnreadable = t.agents.MetadataProblems()
	out.Versions = t.agents.Versions()
	out.Pools = t.reconciler.CountPools()
	out.Orphans = len(t.reconciler.Orphans())
	out.Attention, out.Acknowledged = attentionCounts(t.attention())
	return out
}

// pages serves everything on the HTTP port.
func (s *Server) pages(ending <-chan struct{}) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", s.telemetry.Handler())
	mux.Handle("/", web.Handler(&web.Options{
		Status: s.status, Leading: s.leads, Ending: ending,
	}))
	return ports.KnownHosts(mux, s.hostNames)
}

// telemetry observes requests, storage and provider.
type telemetry struct {
	*metrics.Metrics
	traces trace.TracerProvider // nil: there are none
}

// store returns a store whose calls are observed.
func (t telemetry) store(s storage.Store) storage.Store {
	s = t.Store(s)
	if t.traces != nil {
		s = traced.Store(s, t.traces)
	}
	return s
}

// provider returns what observes each call to the provider.
func (t telemetry) provider() func(op string, code nstance.Code, d time.Duration) {
	if t.traces == nil {
		return t.Provider
	}
	span := traced.Provider(t.traces)
	return func(op string, code nstance.Code, d time.Duration) {
		t.Provider(op, code, d)
		span(op, code, d)
	}
}

// observed adds to a port's options what observes its requests.
func (t telemetry) observed(o []grpc.ServerOption) []grpc.ServerOption {
	o = append(o, grpc.ChainUnaryInterceptor(t.Unary), grpc.ChainStreamInterceptor(t.Stream))
	if t.traces != nil {
		o = append(o, grpc.StatsHandler(otelgrpc.NewServerHandler(otelgrpc.WithTracerProvider(t.traces))))
	}
	return o
}
