package qemu

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestConsolesShareAWriter: lines of machines that print at the same time stay
// whole.
func TestConsolesShareAWriter(t *testing.T) {
	var shared bytes.Buffer
	one := newConsole(filepath.Join(t.TempDir(), "console"), &shared)
	two := newConsole(filepath.Join(t.TempDir(), "console"), &shared)
	for i, part := range []string{"fi", "sec", "rst\nla", "ond\n", "st"} {
		_, err := []*console{one, two}[i%2].Write([]byte(part))
		require.NoError(t, err)
	}
	require.Equal(t, "first\nsecond\n", shared.String())
	one.close()
	two.close()
	require.Equal(t, "first\nsecond\nlast", shared.String())
}
