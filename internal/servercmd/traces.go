package servercmd

import (
	"cmp"
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/nstance-go/nstance"
)

// The variables of OpenTelemetry's specification that say where spans go.
const (
	otlpEndpoint       = "OTEL_EXPORTER_OTLP_ENDPOINT"
	otlpTracesEndpoint = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
)

// farewellOfSpans is how long the last spans may take to be sent.
const farewellOfSpans = 5 * time.Second

// traces returns what sends spans to a collector, if the environment names
// one, and what ends that; nil if it does not. A collector that cannot be reached
// costs spans and nothing else.
func (r *running) traces(ctx context.Context, shard nstance.ShardID) (trace.TracerProvider, func() error, error) {
	if cmp.Or(r.getenv(otlpTracesEndpoint), r.getenv(otlpEndpoint)) == "" {
		return nil, func() error { return nil }, nil
	}
	exporter, err := otlptracegrpc.New(ctx)
	if err != nil {
		return nil, nil, nstance.FieldError(otlpEndpoint, "name a collector, such as http://127.0.0.1:4317", "%v", err)
	}
	of, err := resource.Merge(resource.NewSchemaless(
		attribute.String("service.name", "nstance-server"), attribute.String("service.version", versionText()), attribute.String("nstance.shard", string(shard)),
	), resource.Environment()) // OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES have the last word
	if err != nil {
		return nil, nil, errors.Join(nstance.FieldError("OTEL_RESOURCE_ATTRIBUTES", "write name=value, separated by commas", "%v", err), exporter.Shutdown(ctx))
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { r.log.Warn("spans are not sent", "err", err) }))
	tp := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(of))
	return tp, func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewellOfSpans)
		defer cancel()
		if err := tp.Shutdown(ctx); err != nil {
			r.log.Warn("the last spans were not sent", "err", err)
		}
		return nil
	}, nil
}
