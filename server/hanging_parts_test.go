package server_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// TestNewWithAStoreThatHangs: whichever call the store does not answer, the caller gets an
// error by which the start is repeated.
func TestNewWithAStoreThatHangs(t *testing.T) {
	for skip := range 19 {
		t.Run(fmt.Sprint(skip), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := storagetest.NewFaulty(storage.NewMemory())
				_, err := store.PutIfAbsent(t.Context(), layout.ConfigKey(zone), []byte(fmt.Sprintf(configuration, "", 1)))
				require.NoError(t, err)
				store.Inject(storagetest.Fault{Mode: storagetest.Hang, Skip: skip})
				cloud := simcloud.New(nil)
				defer cloud.Close()
				began := time.Now()
				_, err = server.New(t.Context(), store, cloud, server.StoreSource(store, zone), nil)
				require.LessOrEqual(t, time.Since(began), time.Minute)
				if time.Since(began) > 0 && err != nil {
					require.Contains(t, []nstance.Code{nstance.Unavailable, nstance.Ambiguous}, nstance.CodeOf(err))
				}
				require.Greater(t, store.Count(""), skip, "it has hung")
			})
		})
	}
}

// TestNewWithASourceThatHangs: the same for where the configuration is.
func TestNewWithASourceThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cloud := simcloud.New(nil)
		defer cloud.Close()
		silent := func(ctx context.Context) (string, []byte, error) {
			<-ctx.Done()
			return "", nil, nstance.Errorf(nstance.Unavailable, "no answer: %w", ctx.Err())
		}
		_, err := server.New(t.Context(), storage.NewMemory(), cloud, silent, nil)
		require.ErrorIs(t, err, nstance.Unavailable)
	})
}
