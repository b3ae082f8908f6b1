// Package never asks again and again that something is not so. It has no tests of its own:
// those that use it show that it works.
package never

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/sleep"
)

// True fails the test if holds returns true within d, asked every so often. Unlike
// require.Never it returns when the last look has ended: that may use what the test changes
// next.
func True(t testing.TB, holds func() bool, d, every time.Duration, why ...any) {
	t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); sleep.For(t.Context(), every) {
		require.False(t, holds(), why...)
	}
}
