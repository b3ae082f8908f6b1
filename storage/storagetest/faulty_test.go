package storagetest_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

func TestFaultyWithoutFaultsIsAStore(t *testing.T) {
	storagetest.Run(t, func(*testing.T) storage.Store { return storagetest.NewFaulty(storage.NewMemory()) })
}

func TestFaulty(t *testing.T) {
	ctx := context.Background()
	fresh := func() (*storagetest.Faulty, *storage.Memory) {
		mem := storage.NewMemory()
		return storagetest.NewFaulty(mem), mem
	}
	there := func(t *testing.T, s storage.Store, want bool) {
		_, err := s.Get(ctx, "a")
		require.Equal(t, want, err == nil, "%v", err)
	}

	t.Run("a refused call does not reach the store", func(t *testing.T) {
		f, mem := fresh()
		f.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent})
		_, err := f.PutIfAbsent(ctx, "a", nil)
		require.ErrorIs(t, err, nstance.Unavailable)
		there(t, mem, false)
		_, err = f.PutIfAbsent(ctx, "a", nil)
		require.NoError(t, err, "a fault hits once by default")
	})
	t.Run("a call with a lost answer has its effect", func(t *testing.T) {
		f, mem := fresh()
		f.Inject(storagetest.Fault{Mode: storagetest.LoseAnswer, Err: nstance.Ambiguous})
		_, err := f.PutIfAbsent(ctx, "a", nil)
		require.Equal(t, nstance.Ambiguous, err)
		there(t, mem, true)
	})
	t.Run("a late write lands on request", func(t *testing.T) {
		f, mem := fresh()
		f.Inject(storagetest.Fault{Mode: storagetest.Late})
		_, err := f.PutIfAbsent(ctx, "a", nil)
		require.Error(t, err)
		there(t, mem, false)
		f.ApplyLate()
		there(t, mem, true)
	})
	t.Run("the nth call of a kind under a prefix fails", func(t *testing.T) {
		f, _ := fresh()
		f.Inject(storagetest.Fault{Op: storagetest.Get, Prefix: "b", Skip: 1, Err: nstance.Internal})
		for i, c := range []struct {
			key  string
			want nstance.Code
		}{{"b", nstance.NotFound}, {"a", nstance.NotFound}, {"b", nstance.Internal}, {"b", nstance.NotFound}} {
			_, err := f.Get(ctx, c.key)
			require.ErrorIs(t, err, c.want, "call %d", i)
		}
		require.Equal(t, 4, f.Count(storagetest.Get))
		require.Equal(t, 4, f.Count(""))
		f.Reset()
		require.Zero(t, f.Count(""))
	})
	t.Run("endless faults can be cleared", func(t *testing.T) {
		f, _ := fresh()
		f.Inject(storagetest.Fault{Times: -1})
		for range 5 {
			_, err := f.Get(ctx, "a")
			require.ErrorIs(t, err, nstance.Unavailable)
		}
		f.ClearFaults()
		_, err := f.Get(ctx, "a")
		require.ErrorIs(t, err, nstance.NotFound)
	})
	t.Run("a function runs first", func(t *testing.T) {
		f, mem := fresh()
		f.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Pass: true, Do: func() { _, _ = mem.PutIfAbsent(ctx, "a", nil) }})
		_, err := f.PutIfAbsent(ctx, "a", nil)
		require.ErrorIs(t, err, nstance.Conflict)
	})
	t.Run("a list breaks before or after its entries", func(t *testing.T) {
		for mode, want := range map[storagetest.Mode]int{storagetest.Refuse: 0, storagetest.LoseAnswer: 1} {
			f, mem := fresh()
			_, err := mem.PutIfAbsent(ctx, "a", nil)
			require.NoError(t, err)
			f.Inject(storagetest.Fault{Op: storagetest.List, Mode: mode})
			entries := 0
			for _, e := range f.List(ctx, "", "") {
				if err = e; e == nil {
					entries++
				}
			}
			require.Error(t, err)
			require.Equal(t, want, entries)
		}
	})
}
