package provider_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
)

// TestListOfEndedContext: a list without machines is complete, unless its context has
// ended: then find may have seen nothing for that reason.
func TestListOfEndedContext(t *testing.T) {
	list := func(ctx context.Context, find func() ([]nstance.Machine, error)) (n int, err error) {
		for _, e := range provider.ListOf(ctx, find) {
			if err = e; err == nil {
				n++
			}
		}
		return n, err
	}
	ctx, cancel := context.WithCancel(t.Context())
	n, err := list(ctx, func() ([]nstance.Machine, error) { return nil, nil })
	require.NoError(t, err)
	require.Zero(t, n)
	n, err = list(ctx, func() ([]nstance.Machine, error) { cancel(); return nil, nil })
	require.ErrorIs(t, err, nstance.Unavailable, "it ended during find")
	require.ErrorIs(t, err, context.Canceled)
	require.Zero(t, n)
	for found := range 2 {
		n, err = list(ctx, func() ([]nstance.Machine, error) { return make([]nstance.Machine, found), nil })
		require.ErrorIs(t, err, nstance.Unavailable, "it ended before find")
		require.Zero(t, n)
	}
}
