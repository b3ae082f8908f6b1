package shards

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
)

// TestDiffering: what differs from a list is asked for: another node, a record that can be
// read again, what is not listed, and what is not known.
func TestDiffering(t *testing.T) {
	s := New(Options{})
	for id, i := range map[nstance.InstanceID]*apiv1.Instance{
		"same": {State: "ready"}, "unreadable": {State: "ready", Conditions: []string{wire.Unreadable}}, "unlisted": {}, "node": {}, "drifted": {},
	} {
		s.putInstance(id, i)
	}
	differ := s.differing(map[nstance.InstanceID]*apiv1.Instance{
		"same": {State: "ready"}, "unreadable": {State: "ready"}, "node": {NodeProviderId: "nstance:///node"}, "new": {State: "pending"}, "drifted": {Conditions: []string{"drifted"}},
	})
	require.Equal(t, []nstance.InstanceID{"new", "node", "unlisted", "unreadable"}, slices.Sorted(maps.Keys(differ)), "reports change other conditions")
}
