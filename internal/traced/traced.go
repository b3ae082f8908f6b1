// Package traced decorates what a server is made of with OpenTelemetry spans.
package traced

import (
	"context"
	"iter"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
)

// scope names this instrumentation.
const scope = "github.com/nstance-go/nstance"

// Store returns s with a span around each call.
func Store(s storage.Store, tp trace.TracerProvider) storage.Store {
	return &store{s, tp.Tracer(scope)}
}

type store struct {
	storage.Store
	tracer trace.Tracer
}

// Separate implements storage.Shared.
func (s *store) Separate() storage.Store { return &store{storage.Separate(s.Store), s.tracer} }

// Folders implements storage.Foldered.
func (s *store) Folders(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		ctx, end := s.start(ctx, "list", prefix)
		var err error
		defer end(&err)
		for name, e := range storage.Folders(ctx, s.Store, prefix) {
			if err = e; !yield(name, e) {
				return
			}
		}
	}
}

func (s *store) start(ctx context.Context, op, key string) (context.Context, func(*error)) {
	ctx, span := s.tracer.Start(ctx, "storage."+op, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attribute.String("nstance.key", key)))
	return ctx, func(err *error) {
		note(span, nstance.CodeOf(*err))
		span.End()
	}
}

func note(span trace.Span, code nstance.Code) {
	if code != "" {
		span.SetAttributes(attribute.String("nstance.code", string(code)))
		span.SetStatus(codes.Error, string(code))
	}
}

// Get implements storage.Store.
func (s *store) Get(ctx context.Context, key string) (_ storage.Object, err error) {
	ctx, end := s.start(ctx, "get", key)
	defer end(&err)
	return s.Store.Get(ctx, key)
}

// PutIfAbsent implements storage.Store.
func (s *store) PutIfAbsent(ctx context.Context, key string, data []byte) (_ storage.Version, err error) {
	ctx, end := s.start(ctx, "put_if_absent", key)
	defer end(&err)
	return s.Store.PutIfAbsent(ctx, key, data)
}

// PutIfMatch implements storage.Store.
func (s *store) PutIfMatch(ctx context.Context, key string, data []byte, v storage.Version) (_ storage.Version, err error) {
	ctx, end := s.start(ctx, "put_if_match", key)
	defer end(&err)
	return s.Store.PutIfMatch(ctx, key, data, v)
}

// DeleteIfMatch implements storage.Store.
func (s *store) DeleteIfMatch(ctx context.Context, key string, v storage.Version) (err error) {
	ctx, end := s.start(ctx, "delete_if_match", key)
	defer end(&err)
	return s.Store.DeleteIfMatch(ctx, key, v)
}

// List implements storage.Store.
func (s *store) List(ctx context.Context, prefix, after string) iter.Seq2[storage.Entry, error] {
	return func(yield func(storage.Entry, error) bool) {
		ctx, end := s.start(ctx, "list", prefix)
		var err error
		defer end(&err)
		for entry, e := range s.Store.List(ctx, prefix, after) {
			if err = e; !yield(entry, e) {
				return
			}
		}
	}
}

// Provider returns a provider.Options.Observe that makes a span of each call
// to the provider. Calls come from the reconciler's own lanes, so a span has no
// parent.
func Provider(tp trace.TracerProvider) func(op string, code nstance.Code, d time.Duration) {
	tracer := tp.Tracer(scope)
	return func(op string, code nstance.Code, d time.Duration) {
		now := time.Now()
		_, span := tracer.Start(context.Background(), "provider."+op, trace.WithSpanKind(trace.SpanKindClient), trace.WithTimestamp(now.Add(-d)))
		note(span, code)
		span.End(trace.WithTimestamp(now))
	}
}
