package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/bench/internal/figures"
)

func runOf(ratio, ms string) figures.All {
	return figures.All{
		Programs: map[string]json.RawMessage{
			"takeover": json.RawMessage(`{"cpus": 2, "with": {"records": 5}, "results": [{"case": "snapshot", "ready_ms": ` + ms + `, "ratio": ` + ratio + `}]}`),
			"agent":    json.RawMessage(`{"idle": {"resident_mib": ` + ms + `}, "ok": true}`),
		},
		Benchmarks: map[string]figures.Metrics{"p.BenchmarkPlan": {"ns/op": 100}, "p.BenchmarkRegister": {"ns/op": 1, "of-floor": 0.5}},
	}
}

func TestCompare(t *testing.T) {
	a, b := runOf("2", "100"), runOf("3", "101")
	delete(b.Benchmarks, "p.BenchmarkPlan")
	var out strings.Builder
	require.NoError(t, compare(&out, a, b, false, 0))
	lines := strings.Split(out.String(), "\n")
	require.Equal(t, []string{"before", "after", "after", "/", "before", "figure"}, strings.Fields(lines[0]))
	require.Equal(t, []string{"100", "101", "1.01", "agent/idle/resident_mib"}, strings.Fields(lines[1]), "it has no ratio")
	require.Equal(t, []string{"0.5", "0.5", "1.00", "p.BenchmarkRegister:", "of-floor"}, strings.Fields(lines[2]))
	require.Equal(t, []string{"2", "3", "1.50", "takeover/results/snapshot/ratio"}, strings.Fields(lines[3]))
	require.Equal(t, "only before: p.BenchmarkPlan: ns/op", lines[4])

	out.Reset()
	require.NoError(t, compare(&out, a, b, false, 0.1))
	require.NotContains(t, out.String(), "resident_mib", "it changed by less")
	require.Contains(t, out.String(), "takeover/results/snapshot/ratio")

	out.Reset()
	require.NoError(t, compare(&out, a, b, true, 0))
	require.Contains(t, out.String(), "takeover/results/snapshot/ready_ms")
	require.NotContains(t, out.String(), "records", "a flag is no figure")
}

func TestFiles(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.json")
	require.NoError(t, figures.Save(file, runOf("2", "100")))
	var out strings.Builder
	require.NoError(t, run(&out, file, file, false, 0))
	require.Contains(t, out.String(), "1.00")
	require.NoError(t, figures.Save(file, map[string]string{"bench": "reports"}))
	require.ErrorContains(t, run(&out, file, file, false, 0), "pass a file of bench/all")
}
