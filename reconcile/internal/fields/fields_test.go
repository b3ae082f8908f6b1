package fields_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/confighash"
	"github.com/nstance-go/nstance/reconcile/internal/fields"
)

func TestPlain(t *testing.T) {
	before := nstance.Group{Size: 3, DrainTimeout: time.Minute}
	require.Empty(t, fields.Plain(&before, &before))
	after := before
	after.Size, after.Definition.Subnets = 4, []string{"a", "b"}
	after.WarmPool = nstance.WarmPool{Size: 2, Mode: nstance.ParkRunning, MaxAge: time.Hour, NoReturn: true}
	after.Spread = nstance.Spread{By: nstance.SpreadZone, MaxShare: nstance.Count{N: 34, Percent: true}}
	after.Definition.Market.FallbackWhen = nstance.ReclaimLimit{Reclaims: 2, Window: time.Hour}
	require.Equal(t, []confighash.Change{
		{Path: "size", Before: "3", After: "4"},
		{Path: "subnets", After: `["a","b"]`},
		{Path: "market.fallback_when", After: "2 reclaims in 1h0m0s"},
		{Path: "spread", After: "at most 34% in one zone"},
		{Path: "warm_pool", After: "2 running, at most 1h0m0s old, used once"},
	}, fields.Plain(&before, &after))
}

func TestAbridge(t *testing.T) {
	short := confighash.Change{Path: "image", Before: "a", After: "b"}
	require.Equal(t, short, fields.Abridge(short))
	long := fields.Abridge(confighash.Change{Path: "image", After: strings.Repeat("x", 129)})
	require.Contains(t, long.After, "129 bytes, sha256 ")
	require.Empty(t, long.Before)
	for _, path := range []string{"userdata.content", "files./a.content"} {
		require.Contains(t, fields.Abridge(confighash.Change{Path: path, Before: "x"}).Before, "1 bytes, sha256 ")
	}
}
