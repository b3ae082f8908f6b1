package metrics_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/nstance-go/nstance/internal/traced"
	"github.com/nstance-go/nstance/server/internal/metrics"
	"github.com/nstance-go/nstance/storage"
)

// twin is a store that knows which one it is.
type twin struct {
	*storage.Memory
	separate *twin
}

func (t *twin) Separate() storage.Store { return t.separate }

// TestDecoratedStoresSeparate: what is timed and traced has connections of its
// own where the store beneath has.
func TestDecoratedStoresSeparate(t *testing.T) {
	one := &twin{storage.NewMemory(), &twin{storage.NewMemory(), nil}}
	s := metrics.New(nil).Store(one)
	s = traced.Store(s, noop.NewTracerProvider())
	_, err := storage.Separate(s).PutIfAbsent(t.Context(), "a", nil)
	require.NoError(t, err)
	_, err = one.separate.Get(t.Context(), "a")
	require.NoError(t, err)
}
