package repository_test

import (
	"fmt"
	"os"
	"testing"
)

// TestMain runs the tests at the root of the repository. They are not in the root package:
// its tests would then import half of the repository, and a program that embeds any part
// would fetch what that needs.
func TestMain(m *testing.M) {
	if err := os.Chdir("../../.."); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}
