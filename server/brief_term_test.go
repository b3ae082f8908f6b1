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

// A briefElector grants terms. The first one ends at once.
type briefElector struct {
	lease.Elector
	once sync.Once
}

func (b *briefElector) Campaign(ctx context.Context) (term *lease.Term, err error) {
	term, err = b.Elector.Campaign(ctx)
	b.once.Do(func() {
		if err == nil {
			err = b.Resign(ctx)
		}
	})
	return term, err
}

// TestBriefTerm: the lease is lost, or the server is stopped, just when it starts to
// lead.
func TestBriefTerm(t *testing.T) {
	t.Parallel()
	store := storage.NewMemory()
	w := newWorld(t, setup{store: store, opts: server.Options{Elector: &briefElector{Elector: immediateElector(t, store)}}})
	require.NoError(t, w.stopServer())
}
