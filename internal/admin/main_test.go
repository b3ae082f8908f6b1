package admin_test

import (
	"os"
	"testing"

	"github.com/nstance-go/nstance/internal/test/parallel"
)

// Tests wait for servers most of their time.
func TestMain(m *testing.M) { os.Exit(parallel.Run(m)) }
