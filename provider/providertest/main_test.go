package providertest_test

import (
	"os"
	"testing"

	"github.com/nstance-go/nstance/internal/test/parallel"
)

// TestMain: most tests are of providers that hang.
func TestMain(m *testing.M) { os.Exit(parallel.Run(m)) }
