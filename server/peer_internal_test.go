package server

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/server/config"
)

// TestPeers is about whom a leader that gives the lease back leaves it to.
func TestPeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeers(&Server{conf: &config.Config{Shard: config.Shard{Election: config.Election{TTL: 6 * time.Second}}}})
		join := func(id string, failed bool) func(bool) {
			leave, err := p.join(&apiv1.WatchRequest{Server: id, AddressFailed: failed})
			require.NoError(t, err)
			return leave
		}
		require.False(t, p.known())
		again, leave := join("b", true), join("b", true)
		require.True(t, p.known())
		require.False(t, p.relief(), "it has failed before")
		fresh := join("c", false)
		require.True(t, p.relief())

		fresh(false)
		require.False(t, p.relief(), "it has gone away")
		leave(false)
		require.True(t, p.known(), "one of its streams is left")
		again(true)
		require.True(t, p.known(), "it was this side that ended the stream")
		sleep.For(t.Context(), 12*time.Second)
		require.True(t, p.known())
		sleep.For(t.Context(), time.Millisecond)
		require.False(t, p.known())
		require.Empty(t, p.standbys)

		gone, err := p.join(&apiv1.WatchRequest{Server: "d", Address: strings.Repeat("ä", 500), Version: "1"})
		require.NoError(t, err)
		require.Len(t, p.list()[0].GetAddress(), maxSaid)
		gone(false)
		require.Empty(t, p.list())

		for i := range maxStandbys {
			join(fmt.Sprint(i), false)
		}
		for _, b := range p.list() {
			require.NotEmpty(t, b.GetServer())
		}
		require.Len(t, p.list(), maxStandbys)
		_, err = p.join(&apiv1.WatchRequest{Server: "one more"})
		require.ErrorIs(t, err, nstance.Throttled)
	})
}
