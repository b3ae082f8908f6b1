package operators

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/feed"
)

func TestTenantFeedsAreSeparate(t *testing.T) {
	events := newTenantFeeds[string]()
	quiet := caller{Identity: nstance.Identity{Role: nstance.RoleOperator, Tenant: "quiet"}}
	admin := caller{Identity: nstance.Identity{Role: nstance.RoleAdmin, Tenant: "quiet"}}
	seen := events.of(quiet).Last()
	events.publish("quiet", "first")
	for range 2 * feed.DefaultBacklog {
		events.publish("busy", "noise")
	}
	events.publishToAll("renew")

	var got []string
	for item, err := range events.of(quiet).Subscribe(t.Context(), seen, feed.View[string]{}) {
		require.NoError(t, err)
		require.Equal(t, feed.Event, item.Kind, "it goes on, without a snapshot")
		if got = append(got, item.Value); len(got) == 2 {
			break
		}
	}
	require.Equal(t, []string{"first", "renew"}, got)

	last := events.of(admin).Last()
	require.Equal(t, last+1, events.publish("quiet", "second"), "administrators see every tenant's events, in one order")
}
