package rig

import (
	"fmt"
	"io"
	"runtime"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/nstance-go/nstance/bench/internal/figures"
)

// A Result is the distribution of one measurement, in milliseconds.
type Result struct {
	Case     string  `json:"case"`
	Samples  int     `json:"samples"`
	P50MS    float64 `json:"p50_ms"`
	P90MS    float64 `json:"p90_ms"`
	P99MS    float64 `json:"p99_ms"`
	MaxMS    float64 `json:"max_ms"`
	TargetMS float64 `json:"target_ms,omitempty"` // for p99; 0: no target
	OK       bool    `json:"ok"`

	Ratio       float64 `json:"ratio,omitempty"`        // p50, by the floor's
	TargetRatio float64 `json:"target_ratio,omitempty"` // p99, by the target
}

// Sum returns the distribution of samples, in any order.
func Sum(name string, samples []time.Duration, target time.Duration) Result {
	s := slices.Sorted(slices.Values(samples))
	at := func(q float64) float64 {
		if len(s) == 0 {
			return 0
		}
		return ms(s[min(int(q*float64(len(s))), len(s)-1)])
	}
	r := Result{Case: name, Samples: len(s), P50MS: at(0.5), P90MS: at(0.9), P99MS: at(0.99), MaxMS: at(1), TargetMS: ms(target)}
	r.OK = len(s) > 0 && (target == 0 || r.P99MS <= r.TargetMS)
	if target > 0 {
		r.TargetRatio = r.P99MS / r.TargetMS
	}
	return r
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// A Report is what a program prints, and writes as JSON.
type Report struct {
	Bench   string         `json:"bench"`
	Target  string         `json:"target"`
	Go      string         `json:"go"`
	CPUs    int            `json:"cpus"`
	With    map[string]any `json:"with"` // the flags that matter
	Results []Result       `json:"results"`

	FloorFirst bool `json:"-"` // the first result is the floor of the others
}

// Show prints r as a table on w and writes it to file, unless that is empty.
func (r Report) Show(w io.Writer, file string) error {
	r.Go, r.CPUs = runtime.Version(), runtime.GOMAXPROCS(0)
	if r.FloorFirst {
		for i := range r.Results[1:] {
			r.Results[1+i].Ratio = r.Results[1+i].P50MS / r.Results[0].P50MS
		}
	}
	fmt.Fprintf(w, "%s (%s), %s, %d CPUs, %v\n", r.Bench, r.Target, r.Go, r.CPUs, r.With)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\tsamples\tp50 ms\tp90 ms\tp99 ms\tmax ms\ttarget\t")
	for _, s := range r.Results {
		target := "-"
		if s.TargetMS > 0 {
			target = fmt.Sprintf("%g: %s", s.TargetMS, map[bool]string{true: "ok", false: "missed"}[s.OK])
		}
		fmt.Fprintf(t, "%s\t%d\t%.3f\t%.3f\t%.3f\t%.3f\t%s\t\n", s.Case, s.Samples, s.P50MS, s.P90MS, s.P99MS, s.MaxMS, target)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	return figures.Save(file, r)
}
