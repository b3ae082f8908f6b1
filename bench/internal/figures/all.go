package figures

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
)

// An All is the figures of every program and benchmark of one run.
type All struct {
	Go         string                     `json:"go"`
	CPUs       int                        `json:"cpus"`
	Programs   map[string]json.RawMessage `json:"programs"`   // what each wrote, by the name of its run
	Benchmarks map[string]Metrics         `json:"benchmarks"` // by package and name
	Failed     map[string]string          `json:"failed,omitempty"`
}

// Metrics are the metrics of a Go benchmark by unit.
type Metrics map[string]float64

// Load reads the figures that Save wrote.
func Load(file string) (a All, err error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return a, err
	}
	if err := json.Unmarshal(data, &a); err != nil {
		return a, fmt.Errorf("%s: %w", file, err)
	}
	if len(a.Programs)+len(a.Benchmarks) == 0 {
		return a, errors.New(file + " has no figures: pass a file of bench/all")
	}
	return a, nil
}
