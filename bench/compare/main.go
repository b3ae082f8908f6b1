// Command compare sets two files of bench/all side by side: every figure that both have, and
// the second by the first.
//
//	go run ./bench/compare [-all] [-over 0] before.json after.json
//
// Only ratios to floors and targets are compared where a program has any, because they depend
// least on the machine; with -all every number is.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/nstance-go/nstance/bench/internal/figures"
)

func main() {
	all := flag.Bool("all", false, "compare every number, not only ratios")
	over := flag.Float64("over", 0, "leave out changes of less than this part, such as 0.1")
	flag.Parse()
	if flag.NArg() != 2 {
		fmt.Fprintln(os.Stderr, "usage: compare [-all] [-over 0.1] before.json after.json")
		os.Exit(2)
	}
	if err := run(os.Stdout, flag.Arg(0), flag.Arg(1), *all, *over); err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		os.Exit(1)
	}
}

func run(to io.Writer, before, after string, all bool, over float64) error {
	a, err := figures.Load(before)
	if err != nil {
		return err
	}
	b, err := figures.Load(after)
	if err != nil {
		return err
	}
	return compare(to, a, b, all, over)
}

// compare prints the figures that both have, and names those that one lacks.
func compare(to io.Writer, a, b figures.All, all bool, over float64) error {
	x, err := flatten(a, all)
	if err != nil {
		return err
	}
	y, err := flatten(b, all)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "before\tafter\tafter / before\t  figure")
	for _, name := range slices.Sorted(maps.Keys(x)) {
		v, ok := y[name]
		if !ok || x[name] != 0 && math.Abs(v/x[name]-1) < over {
			continue
		}
		by := "-"
		if x[name] != 0 {
			by = fmt.Sprintf("%.2f", v/x[name])
		}
		fmt.Fprintf(w, "%.4g\t%.4g\t%s\t  %s\n", x[name], v, by, name)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, side := range []struct {
		name       string
		have, lack map[string]float64
	}{{"only before", x, y}, {"only after", y, x}} {
		for _, name := range slices.Sorted(maps.Keys(side.have)) {
			if _, ok := side.lack[name]; !ok {
				fmt.Fprintf(to, "%s: %s\n", side.name, name)
			}
		}
	}
	return nil
}

// flatten returns the figures of a run by their path.
func flatten(a figures.All, all bool) (map[string]float64, error) {
	out := map[string]float64{}
	for program, data := range a.Programs {
		var v any
		if err := json.Unmarshal(data, &v); err != nil {
			return nil, fmt.Errorf("%s: %w", program, err)
		}
		numbers := map[string]float64{}
		add(numbers, program, v)
		maps.Copy(out, chosen(numbers, all))
	}
	for name, metrics := range a.Benchmarks {
		numbers := map[string]float64{}
		for unit, v := range metrics {
			numbers[name+": "+unit] = v
		}
		maps.Copy(out, chosen(numbers, all))
	}
	return out, nil
}

// chosen returns the ratios where there are any.
func chosen(numbers map[string]float64, all bool) map[string]float64 {
	ratios := maps.Clone(numbers)
	maps.DeleteFunc(ratios, func(path string, _ float64) bool { return !isRatio(path) })
	if all || len(ratios) == 0 {
		return numbers
	}
	return ratios
}

func isRatio(path string) bool {
	name := path[strings.LastIndexAny(path, " /")+1:]
	return name == "ratio" || strings.HasSuffix(name, "_ratio") || name == "of-floor"
}

// add adds the numbers in v. Members of a list are named by what they are about.
func add(to map[string]float64, path string, v any) {
	switch v := v.(type) {
	case float64:
		to[path] = v
	case map[string]any:
		for key, field := range v {
			if key != "with" { // the flags of the run
				add(to, path+"/"+key, field)
			}
		}
	case []any:
		for i, item := range v {
			add(to, path+"/"+label(item, i), item)
		}
	}
}

// label names a member of a list.
func label(item any, i int) string {
	fields, _ := item.(map[string]any)
	for _, key := range []string{"case", "name", "members"} {
		if v, ok := fields[key]; ok {
			return fmt.Sprint(v)
		}
	}
	return fmt.Sprint(i)
}
