package place

import (
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestClone: what is tried on a copy changes nothing of what is known.
func TestClone(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	shape, at := Shape{InstanceType: "m", Subnet: "a1"}, pool{InstanceType: "m"}
	m := New()
	m.capacity[shape] = &shapeState{inFlight: 1}
	m.refusals["x"] = map[Shape]*refusal{shape: {since: now}}
	m.scores["m"] = map[string]int{"za": 1} // replaced, never changed, like what is not set here
	m.addresses.free = map[string]int{"a1": 1}
	m.pools.zones["a1"] = "za"
	m.pools.memory[at] = reclaimMemory{struckUntil: now}
	m.pools.warned = map[pool]time.Time{at: now}
	m.pools.wantedAt = map[string]time.Time{"m": now}
	out := m.Clone()
	require.Equal(t, m, out)
	for i, pair := range [][2]any{
		{m.capacity, out.capacity}, {m.capacity[shape], out.capacity[shape]},
		{m.refusals, out.refusals}, {m.refusals["x"], out.refusals["x"]}, {m.refusals["x"][shape], out.refusals["x"][shape]},
		{m.scores, out.scores}, {m.addresses.free, out.addresses.free}, {m.pools.zones, out.pools.zones},
		{m.pools.memory, out.pools.memory}, {m.pools.warned, out.pools.warned}, {m.pools.wantedAt, out.pools.wantedAt},
	} {
		require.NotEqual(t, reflect.ValueOf(pair[0]).Pointer(), reflect.ValueOf(pair[1]).Pointer(), i)
	}
}
