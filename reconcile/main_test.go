package reconcile_test

import (
	"os"
	"runtime/debug"
	"testing"
)

// TestMain lets these tests, which wait for nothing, collect garbage less often: it took a
// third of their time.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	os.Exit(m.Run())
}
