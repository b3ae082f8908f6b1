package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/bench/internal/figures"
)

func TestParse(t *testing.T) {
	name, m := parse("BenchmarkEvent/plan/1x10-2   \t  974\t   3325.5 ns/op\t         0.9782 of-floor\t 12 B/op")
	require.Equal(t, "BenchmarkEvent/plan/1x10", name)
	require.Equal(t, figures.Metrics{"ns/op": 3325.5, "of-floor": 0.9782, "B/op": 12}, m)
	for _, line := range []string{"", "PASS", "ok  \tx\t3.3s", "pkg: x", "BenchmarkEvent", "BenchmarkEvent-2 1 x ns/op"} {
		_, m := parse(line)
		require.Nil(t, m, line)
	}
}

// TestWithBenchmarks: benchmarks are found, and those of other modules are not.
func TestWithBenchmarks(t *testing.T) {
	packages, err := withBenchmarks("../..")
	require.NoError(t, err)
	require.Contains(t, packages, "./../../registration")
	require.NotContains(t, packages, "./../../kubernetes/operator")
}
