package server_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/lease"
)

// brief grants terms, of which the first is over before anything comes of it.
type brief struct {
	lease.Elector
	once sync.Once
}

func (b *brief) Campaign(ctx context.Context) (term *lease.Term, err error) {
	term, err = b.Elector.Campaign(ctx)
	b.once.Do(func() {
		if err == nil {
			err = b.Resign(ctx)
		}
	})
	return term, err
}

// TestBriefTerm: a lease may be lost, and a server told to stop, in the moment
// in which it begins to lead.
func TestBriefTerm(t *testing.T) {
	store := storage.NewMemory()
	w := newWorld(t, setup{store: store, opts: server.Options{Elector: &brief{Elector: takesAtOnce(t, store)}}})
	require.NoError(t, w.stop())
}
