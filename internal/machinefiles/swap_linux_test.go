package machinefiles_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/rules"
	"github.com/nstance-go/nstance/internal/test/dirwatch"
)

// TestSetIsReplacedByOneRename: no reader finds a file missing while another set
// is put to use, nor while a link that was changed on the machine is put right.
func TestSetIsReplacedByOneRename(t *testing.T) {
	b := newTestStore(t)
	b.apply("h1", tree{"a": "1", "b": "1"})
	own, err := dirwatch.New(b.path(rules.ReservedFileDir))
	require.NoError(t, err)
	defer own.Close()
	top, err := dirwatch.New(b.o.Dir)
	require.NoError(t, err)
	defer top.Close()

	b.apply("h2", tree{"a": "2", "b": "1"})
	b.apply("h3", tree{"a": "3"})
	changes, err := own.Of("current")
	require.NoError(t, err)
	require.Equal(t, []dirwatch.Change{dirwatch.Moved, dirwatch.Moved}, changes)
	changes, err = top.Of("a")
	require.NoError(t, err)
	require.Empty(t, changes, "its link stays")

	require.NoError(t, os.WriteFile(b.path("mine"), nil, 0o640))
	require.NoError(t, os.Rename(b.path("mine"), b.path("a")))
	_, err = top.Of("a")
	require.NoError(t, err)
	b.apply("h4", tree{"a": "4"})
	changes, err = top.Of("a")
	require.NoError(t, err)
	require.Equal(t, []dirwatch.Change{dirwatch.Moved}, changes)
}
