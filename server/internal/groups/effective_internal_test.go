package groups

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/storage"
)

// TestGroupsThatWereInEffect: what an overlay says of a group, where the configuration says less
// by now, or more.
func TestGroupsThatWereInEffect(t *testing.T) {
	s := newEditedShard(t, storage.NewMemory())
	defer s.stop()
	static, dynamic := nstance.GroupKey{Tenant: "default", Group: "web"}, keyOf(1)
	e := overlay{
		Override: config.Override{Template: "vm", BootstrapData: "named"}, Dynamic: true,
		Effective: &effective{Template: "vm", Size: 7}, Removing: &removal{By: "eve"}, Owner: "joe",
	}
	last := s.last(s.conf, dynamic, e)
	require.Equal(t, "named", last.BootstrapData)
	base, err := s.base(s.conf, last, e)
	require.NoError(t, err)
	require.Equal(t, 7, base.Size, "the template has none")
	require.Empty(t, s.last(s.conf, static, e).BootstrapData, "a group that is configured now is another one")

	var file overlays
	for _, key := range []nstance.GroupKey{static, dynamic} {
		require.NoError(t, file.put(key, e))
	}
	require.NoError(t, file.put(keyOf(2), overlay{Override: e.Override, Dynamic: true}))
	removing := map[nstance.GroupKey]bool{}
	for _, r := range s.lastEffective(s.conf, file) {
		removing[r.Key] = r.Removing
		require.Equal(t, []any{7, "joe", r.Key == static}, []any{r.Size, r.Owner, r.Static})
	}
	require.Equal(t, map[nstance.GroupKey]bool{static: false, dynamic: true}, removing)

	require.False(t, e.standalone(s.conf, dynamic))
	e.Template = "gone"
	require.True(t, e.standalone(s.conf, dynamic))
	require.False(t, e.standalone(s.conf, static), "it follows the configuration")
}
