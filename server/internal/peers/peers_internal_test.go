package peers

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
)

// TestPeers is about the standbys that a leader leaves the lease to.
func TestPeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Options{TTL: func() time.Duration { return 6 * time.Second }})
		join := func(id string, failed bool) func(bool) {
			leave, err := p.join(&apiv1.WatchRequest{Server: id, AddressFailed: failed})
			require.NoError(t, err)
			return leave
		}
		require.False(t, p.HasStandby())
		again, leave := join("b", true), join("b", true)
		require.True(t, p.HasStandby())
		require.False(t, p.HasRelief(), "it has failed before")
		fresh := join("c", false)
		require.True(t, p.HasRelief())

		fresh(false)
		require.False(t, p.HasRelief(), "it has gone away")
		leave(false)
		require.True(t, p.HasStandby(), "one of its streams is left")
		again(true)
		require.True(t, p.HasStandby(), "it was this side that ended the stream")
		sleep.For(t.Context(), 12*time.Second)
		require.True(t, p.HasStandby())
		sleep.For(t.Context(), time.Millisecond)
		require.False(t, p.HasStandby())
		require.Empty(t, p.standbys)

		gone, err := p.join(&apiv1.WatchRequest{Server: "d", Address: strings.Repeat("ä", 500), Version: "1"})
		require.NoError(t, err)
		require.Len(t, p.List()[0].GetAddress(), maxText)
		gone(false)
		require.Empty(t, p.List())

		for i := range maxStandbys {
			join(fmt.Sprint(i), false)
		}
		for _, b := range p.List() {
			require.NotEmpty(t, b.GetServer())
		}
		require.Len(t, p.List(), maxStandbys)
		_, err = p.join(&apiv1.WatchRequest{Server: "one more"})
		require.ErrorIs(t, err, nstance.Throttled)
	})
}
