package admin_test

import (
	"os"
	"testing"

	"github.com/nstance-go/nstance/internal/test/parallel"
)

// TestMain: tests wait for servers most of their time.
func TestMain(m *testing.M) { os.Exit(parallel.Run(m)) }
