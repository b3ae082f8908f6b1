package qemu

import (
	"bytes"
	"fmt"
	"io"
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

// TestCopierThatWaits: what does not fit is dropped, and what fits is written in order, at the
// latest when the copier is closed.
func TestCopierThatWaits(t *testing.T) {
	in, out := io.Pipe()
	c := newCopier(out)
	var want []byte
	for i := range 2 * maxCopies {
		line := fmt.Appendf(nil, "line %d\n", i)
		_, err := c.Write(line) // returns, or the test hangs
		require.NoError(t, err)
		if i < maxCopies {
			want = append(want, line...)
		}
		clear(line) // callers use it again
	}
	got := make([]byte, len(want))
	_, err := io.ReadFull(in, got)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got))
	go func() { _, _ = io.Copy(io.Discard, in) }()
	c.close()
	<-c.done
	c.close()
}
