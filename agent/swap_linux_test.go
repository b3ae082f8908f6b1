package agent

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/test/dirwatch"
)

// TestPairIsReplacedByOneRename: no reader of the directory finds the identity
// missing while it is renewed.
func TestPairIsReplacedByOneRename(t *testing.T) {
	t.Parallel()
	m := newCertificateIssuer(t)
	require.NoError(t, m.v.install(m.credential()))
	for name, want := range map[string][]dirwatch.Change{linkCurrent: {dirwatch.Moved}, fileCert: nil, fileKey: nil, fileRoots: nil} {
		w, err := dirwatch.New(m.v.dir)
		require.NoError(t, err)
		require.NoError(t, m.v.install(m.credential()))
		changes, err := w.Of(name)
		require.NoError(t, err)
		require.Equal(t, want, changes, name)
		require.NoError(t, w.Close())
	}
}
