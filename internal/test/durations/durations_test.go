package durations_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/test/durations"
)

type inner struct {
	Own     time.Duration
	Outside time.Time
	private time.Duration
}

type outer struct {
	Plain  time.Duration
	Struct inner
	Behind *inner
	Named  map[string]inner
	Listed []inner
	Call   func() time.Duration
	Count  int64
	Again  *outer
}

func TestOf(t *testing.T) {
	var names []string
	for _, f := range durations.Of[outer]() {
		names = append(names, f.Name)
		v := outer{Named: map[string]inner{"a": {private: 1}}, Behind: &inner{Outside: time.Unix(1, 0)}}
		was := v
		f.Set(&v, time.Hour)
		require.NotEqual(t, was, v, f.Name)
		require.Equal(t, time.Unix(1, 0), v.Behind.Outside, "what was there stays")
		require.Equal(t, time.Duration(1), v.Named["a"].private)
		require.Zero(t, was.Behind.Own, "what others hold is not changed")
		require.Zero(t, was.Named["a"].Own)
	}
	require.Equal(t, []string{"Plain", "Struct.Own", "Behind.Own", "Named.Own", "Listed.Own"}, names)
}
