package health

import (
	"math"
	"time"

	"github.com/nstance-go/nstance"
)

// A sample is one reading of the machine. NaN is a value that could not be read.
type sample struct {
	at                 time.Time
	cpu                ticks
	memory, disk, load float64
}

// ticks are processor time since boot, summed over all processors. A total of
// zero is unknown.
type ticks struct{ busy, total uint64 }

// within returns the samples of the window that ends at now.
func within(samples []sample, now time.Time) []sample {
	for len(samples) > 0 && now.Sub(samples[0].at) > window {
		samples = samples[1:]
	}
	return samples
}

func average(samples []sample) nstance.Usage {
	return nstance.Usage{
		CPUPercent:    busy(samples),
		MemoryPercent: mean(samples, func(s sample) float64 { return s.memory }),
		DiskPercent:   mean(samples, func(s sample) float64 { return s.disk }),
		Load:          mean(samples, func(s sample) float64 { return s.load }),
	}
}

// busy returns the processors' usage in percent between the first and the last
// sample that have it. Counters may not change within a tick, and some may run
// backwards briefly: both count as 0 %.
func busy(samples []sample) float64 {
	var first, last ticks
	for _, s := range samples {
		if s.cpu.total == 0 {
			continue
		}
		if first.total == 0 {
			first = s.cpu
		}
		last = s.cpu
	}
	if last.total <= first.total || last.busy <= first.busy {
		return 0
	}
	return percent(float64(last.busy-first.busy), float64(last.total-first.total))
}

func mean(samples []sample, of func(sample) float64) float64 {
	sum, n := 0.0, 0
	for _, s := range samples {
		if v := of(s); !math.IsNaN(v) {
			sum, n = sum+v, n+1
		}
	}
	if n == 0 {
		return 0
	}
	return sum / float64(n)
}

// percent returns part of whole in percent, from 0 to 100, or NaN if whole is 0.
func percent(part, whole float64) float64 {
	if whole <= 0 {
		return math.NaN()
	}
	return min(100, max(0, 100*part/whole))
}
