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
		join("0", false) // it is remembered already
	})
}

// TestList: standbys in the order of their addresses, each as it last said, since its first stream.
func TestList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Options{TTL: func() time.Duration { return 6 * time.Second }})
		join := func(id, address, version string, failed bool) func(bool) {
			leave, err := p.join(&apiv1.WatchRequest{Server: id, Address: address, Version: version, AddressFailed: failed})
			require.NoError(t, err)
			return leave
		}
		began := time.Now().UTC()
		join("z", "a:1", "1", false)
		first := join("b", "b:1", "1", false)
		join("a", "b:1", strings.Repeat("v", 500), true)
		sleep.For(t.Context(), time.Minute)
		join("b", "c:1", "2", true)
		first(false)
		var got []string
		for _, s := range p.List() {
			require.LessOrEqual(t, len(s.GetVersion()), maxText)
			require.Equal(t, began, s.GetSince().AsTime(), s.GetServer())
			got = append(got, fmt.Sprint(s.GetServer(), " ", s.GetAddress(), " ", s.GetAddressFailed()))
		}
		require.Equal(t, []string{"z a:1 false", "a b:1 true", "b c:1 true"}, got)
		require.Equal(t, 3, p.Connected())
		for _, id := range []string{"", strings.Repeat("x", 65)} {
			_, err := p.join(&apiv1.WatchRequest{Server: id})
			require.ErrorIs(t, err, nstance.Invalid)
		}
	})
}

// TestMemory: a standby that went away by itself is no standby at once, whatever it did before, and
// one that this side left counts for two TTLs as they are now, whether it can take the address or
// not.
func TestMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ttl := 6 * time.Second
		p := New(Options{TTL: func() time.Duration { return ttl }})
		visit := func(endedHere bool) {
			leave, err := p.join(&apiv1.WatchRequest{Server: "b"})
			require.NoError(t, err)
			leave(endedHere)
		}
		visit(true)
		require.True(t, p.HasStandby())
		require.False(t, p.HasRelief(), "it is not connected")
		require.Zero(t, p.Connected())
		visit(false)
		require.False(t, p.HasStandby())
		visit(true)
		sleep.For(t.Context(), 10*time.Second)
		require.True(t, p.HasStandby())
		ttl = time.Second
		require.False(t, p.HasStandby())
	})
}
