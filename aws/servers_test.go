//go:build servers

package aws_test

import (
	"testing"

	"github.com/nstance-go/nstance/aws/internal/modelcheck"
)

// TestMain checks every call of this package's tests against AWS's own model.
func TestMain(m *testing.M) { modelcheck.Main(m, func(r *modelcheck.Recorder) { record = r.Record }) }
