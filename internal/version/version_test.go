package version_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/version"
)

func TestMinors(t *testing.T) {
	for _, v := range []struct {
		a, b string
		want int
	}{{"0.3.0", "0.3.9", 0}, {"0.3.0", "0.1.0", 2}, {"v1.2.0-rc.1", "1.10.0", 8}} {
		got, ok := version.Minors(v.a, v.b)
		require.True(t, ok, v)
		require.Equal(t, v.want, got, v)
	}
	for _, other := range []string{"", "0.3", "0.3.0.1", "0.x.0", "0.-3.0", "1.3.0"} {
		_, ok := version.Minors("0.3.0", other)
		require.False(t, ok, other)
	}
}
