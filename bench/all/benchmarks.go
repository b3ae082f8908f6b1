package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/nstance-go/nstance/bench/internal/figures"
)

// benchTime is how long each benchmark runs.
const benchTime = "300ms"

// benchmarks runs the Go benchmarks of this module.
func benchmarks(ctx context.Context, to map[string]figures.Metrics) error {
	packages, err := withBenchmarks(".")
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-run", "^$", "-bench", ".", "-benchmem", "-benchtime", benchTime}, packages...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	pkg := ""
	for lines := bufio.NewScanner(out); lines.Scan(); {
		line := lines.Text()
		fmt.Println(line)
		if name, ok := strings.CutPrefix(line, "pkg: "); ok {
			pkg = name
		}
		if name, m := parse(line); m != nil {
			to[pkg+"."+name] = m
		}
	}
	return cmd.Wait()
}

// withBenchmarks returns the packages below a directory that have benchmarks without a build
// tag, but not those of other modules.
func withBenchmarks(root string) (packages []string, err error) {
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if _, err := os.Stat(filepath.Join(path, "go.mod")); path != root && (err == nil || strings.HasPrefix(d.Name(), ".")) {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		data, err := os.ReadFile(path)
		if err == nil && bytes.Contains(data, []byte("\nfunc Benchmark")) && !bytes.HasPrefix(data, []byte("//go:build")) {
			packages = append(packages, "./"+filepath.ToSlash(filepath.Dir(path)))
		}
		return err
	})
	slices.Sort(packages)
	return slices.Compact(packages), err
}

// parse reads a line such as "BenchmarkPlan/1x10-2  100  550 ns/op  0 B/op". Nil: it is none.
func parse(line string) (name string, m figures.Metrics) {
	f := strings.Fields(line)
	if len(f) < 4 || len(f)%2 != 0 || !strings.HasPrefix(f[0], "Benchmark") {
		return "", nil
	}
	m = figures.Metrics{}
	for i := 2; i < len(f); i += 2 {
		v, err := strconv.ParseFloat(f[i], 64)
		if err != nil {
			return "", nil
		}
		m[f[i+1]] = v
	}
	name = f[0]
	if at := strings.LastIndexByte(name, '-'); at > 0 { // the number of processors
		name = name[:at]
	}
	return name, m
}
