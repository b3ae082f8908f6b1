package server_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
)

func TestRefreshDryRunAtTheServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 4})
	api := w.admin()
	require.Eventually(t, func() bool { return w.countEvents(nstance.EventCreated) == 5 }, eventually, time.Millisecond)
	the := func(size int) string { return configWithChangeLimit(t, "2", size) }
	w.conf.set(the(4), nil)
	require.NoError(t, w.refreshConfig(api))
	before := w.configStatus(api)
	refresh := func(text string) (*apiv1.RefreshConfigResponse, error) {
		w.conf.set(text, nil)
		resp, err := api.RefreshConfig(t.Context(), &apiv1.RefreshConfigRequest{DryRun: true})
		now := w.configStatus(api)
		require.Equal(t, before.GetDigest(), now.GetDigest(), "nothing else is in force")
		require.Nil(t, now.GetRejectedAt(), "and nothing is reported")
		require.Empty(t, now.GetHeldDigest())
		require.EqualValues(t, 4, w.getGroup(api, "web").GetSize())
		return resp, wire.ErrorOf(err)
	}
	_, err := refresh(`{"cluster": `)
	require.ErrorIs(t, err, nstance.Invalid)
	_, err = refresh(the(1))
	require.ErrorIs(t, err, nstance.Conflict)
	require.ErrorContains(t, err, "would be held")
	resp, err := refresh(the(3))
	require.NoError(t, err)
	require.True(t, resp.GetChanged())
	require.NotEqual(t, before.GetDigest(), resp.GetDigest())
	resp, err = refresh(the(4))
	require.NoError(t, err)
	require.False(t, resp.GetChanged())
	require.Equal(t, before.GetDigest(), resp.GetDigest())
}
