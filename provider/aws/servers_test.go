//go:build servers

package aws_test

import (
	"testing"

	"github.com/nstance-go/nstance/internal/test/testcloud/ec2/ec2judge"
)

// TestMain holds every call that the tests of this package make against AWS's
// own model.
func TestMain(m *testing.M) { ec2judge.Main(m, func(r *ec2judge.Recorder) { record = r.Record }) }
