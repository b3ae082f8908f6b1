package records_test

import (
	"bytes"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/storage"
)

// BenchmarkUpdate changes the record of a registered instance, over a store in memory.
func BenchmarkUpdate(b *testing.B) {
	r := records.New(storage.NewMemory(), shard, &records.Options{Epoch: 7})
	rec := newInstance(1)
	rec.RegisteredAt = born.Add(time.Minute)
	rec.Current = &records.KeyRecord{
		Fingerprint: "f", PublicKey: make([]byte, 32), Serial: "5e", NotBefore: born, NotAfter: born.Add(24 * time.Hour),
		Certificate: bytes.Repeat([]byte{1}, 420),
	}
	rec, err := r.Create(b.Context(), rec)
	require.NoError(b, err)
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		_, err := r.Update(b.Context(), rec.ID, host(strconv.Itoa(n)))
		require.NoError(b, err)
	}
}
