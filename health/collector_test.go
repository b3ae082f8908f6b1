package health_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/health"
	"github.com/stretchr/testify/require"
)

// proc is a directory that looks like /proc.
type proc string

func newProc(t testing.TB) proc {
	p := proc(t.TempDir())
	p.stat(t, 1000, 9000)
	p.memory(t, 16000, 12000)
	p.write(t, "loadavg", "0.50 0.20 0.10 1/234 5678\n")
	return p
}

func (p proc) write(t testing.TB, name, content string) {
	require.NoError(t, os.WriteFile(filepath.Join(string(p), name), []byte(content), 0o600))
}

// stat sets ticks of work and idle since boot.
func (p proc) stat(t testing.TB, busy, idle int) {
	p.write(t, "stat", fmt.Sprintf("cpu  %d 0 0 %d 0 0 0 0 0 0\ncpu0 1 2 3 4\nintr 5\n", busy, idle))
}

func (p proc) memory(t testing.TB, total, available int) {
	p.write(t, "meminfo", fmt.Sprintf("MemTotal: %8d kB\nMemFree:  1 kB\nMemAvailable: %8d kB\n", total, available))
}

// start runs a collector over p in the background of a synctest bubble.
func (p proc) start(t *testing.T, log *slog.Logger) *health.Collector {
	c, err := health.NewCollector(&health.CollectorOptions{Proc: string(p), DiskPath: string(p), Log: log})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	synctest.Wait()
	return c
}

// advance advances virtual time.
func advance(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestUsage(t *testing.T) {
	t.Run("is zero before the first measurement", func(t *testing.T) {
		c, err := health.NewCollector(nil)
		require.NoError(t, err)
		require.Zero(t, c.Usage())
	})
	t.Run("of the first sample has everything except the processor", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			u := newProc(t).start(t, nil).Usage()
			require.Zero(t, u.CPUPercent)
			require.Equal(t, 25.0, u.MemoryPercent)
			require.Equal(t, 0.5, u.Load)
			require.Greater(t, u.DiskPercent, 0.0)
			require.LessOrEqual(t, u.DiskPercent, 100.0)
		})
	})
	t.Run("of the processor is its share of work between samples", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newProc(t)
			c := p.start(t, nil)
			p.stat(t, 1030, 9070)
			advance(5 * time.Second)
			require.Equal(t, 30.0, c.Usage().CPUPercent)
		})
	})
	t.Run("waiting for devices is idle, stolen time is busy, guests count once", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newProc(t)
			p.write(t, "stat", "cpu 0 0 0 1 0 0 0 0 0 0\n")
			c := p.start(t, nil)
			p.write(t, "stat", "cpu 10 10 10 21 20 10 10 10 99 99\n")
			advance(5 * time.Second)
			require.Equal(t, 60.0, c.Usage().CPUPercent)
		})
	})
	t.Run("is averaged over the last minute", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newProc(t)
			p.stat(t, 0, 100)
			p.memory(t, 100, 0)
			p.write(t, "loadavg", "8 8 8 1/1 1\n")
			c := p.start(t, nil)
			advance(2 * time.Second)
			for i := range 60 {
				p.stat(t, 0, 200+i)
				p.memory(t, 100, 100)
				p.write(t, "loadavg", "0 0 0 1/1 1\n")
				if i == 3 {
					require.Equal(t, 25.0, c.Usage().MemoryPercent)
					require.Equal(t, 2.0, c.Usage().Load)
				}
				advance(5 * time.Second)
			}
			require.Zero(t, c.Usage().MemoryPercent)
			require.Zero(t, c.Usage().Load)

			for i := range 12 {
				p.stat(t, 6*(i+1), 259+4*(i+1))
				advance(5 * time.Second)
			}
			require.Equal(t, 60.0, c.Usage().CPUPercent)
		})
	})
	t.Run("a minute holds both of its ends", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newProc(t)
			p.memory(t, 100, 0)
			c := p.start(t, nil)
			p.memory(t, 100, 100)
			advance(time.Minute)
			require.Equal(t, 100.0/13, c.Usage().MemoryPercent)
		})
	})
	t.Run("of the processor comes from samples that have it", func(t *testing.T) {
		p := newProc(t)
		c, err := health.NewCollector(&health.CollectorOptions{Proc: string(p)})
		require.NoError(t, err)
		for i, busy := range []int{0, 1000, 0, 1030, 0} {
			if p.write(t, "stat", ""); i%2 == 1 {
				p.stat(t, busy, 10000-busy+100*i)
			}
			once(t, c)
		}
		require.Equal(t, 15.0, c.Usage().CPUPercent)
	})
	t.Run("old samples are not reported", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newProc(t)
			c, err := health.NewCollector(&health.CollectorOptions{Proc: string(p)})
			require.NoError(t, err)
			once(t, c)
			require.NotZero(t, c.Usage())
			advance(61 * time.Second)
			require.Zero(t, c.Usage())
		})
	})
}

// once takes one sample.
func once(t testing.TB, c *health.Collector) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.NoError(t, c.Run(ctx))
}

func TestClocksThatStopOrRunBackwards(t *testing.T) {
	for name, then := range map[string][2]int{
		"no tick between two samples": {1000, 9000},
		"no work":                     {1000, 9050},
		"rest ran backwards":          {1010, 8000},
		"work ran backwards":          {900, 9500},
		"everything started again":    {0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProc(t)
			c, err := health.NewCollector(&health.CollectorOptions{Proc: string(p)})
			require.NoError(t, err)
			once(t, c)
			p.stat(t, then[0], then[1])
			once(t, c)
			require.Zero(t, c.Usage().CPUPercent)
		})
	}
}

func TestUnreadableValuesAreOmitted(t *testing.T) {
	for name, c := range map[string]struct {
		file, content string
		want          nstance.Usage
	}{
		"stat is cut short":               {"stat", "cpu 1 2", nstance.Usage{MemoryPercent: 25, Load: 0.5}},
		"stat is of another kind":         {"stat", "cpu0 1 2 3 4 5 6 7 8\n", nstance.Usage{MemoryPercent: 25, Load: 0.5}},
		"stat has words":                  {"stat", "cpu a b c d e f g h\n", nstance.Usage{MemoryPercent: 25, Load: 0.5}},
		"meminfo has no total":            {"meminfo", "MemAvailable: 5 kB\n", nstance.Usage{CPUPercent: 50, Load: 0.5}},
		"meminfo has a total of 0":        {"meminfo", "MemTotal: 0 kB\nMemAvailable: 0 kB\n", nstance.Usage{CPUPercent: 50, Load: 0.5}},
		"meminfo has no numbers":          {"meminfo", "MemTotal:\nMemAvailable: many\n", nstance.Usage{CPUPercent: 50, Load: 0.5}},
		"loadavg is empty":                {"loadavg", "", nstance.Usage{CPUPercent: 50, MemoryPercent: 25}},
		"loadavg is not a number":         {"loadavg", "NaN 1 2\n", nstance.Usage{CPUPercent: 50, MemoryPercent: 25}},
		"loadavg is infinite":             {"loadavg", "Inf 1 2\n", nstance.Usage{CPUPercent: 50, MemoryPercent: 25}},
		"loadavg is less than none":       {"loadavg", "-1 1 2\n", nstance.Usage{CPUPercent: 50, MemoryPercent: 25}},
		"more is available than is there": {"meminfo", "MemTotal: 5 kB\nMemAvailable: 6 kB\n", nstance.Usage{CPUPercent: 50, Load: 0.5}},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			p := newProc(t)
			collector, err := health.NewCollector(&health.CollectorOptions{
				Proc: string(p), DiskPath: "/nowhere", Log: slog.New(slog.NewTextHandler(&log, nil)),
			})
			require.NoError(t, err)
			p.write(t, c.file, c.content)
			once(t, collector)
			if c.file != "stat" {
				p.stat(t, 1010, 9010)
			}
			once(t, collector)
			require.Equal(t, c.want, collector.Usage())
			require.Contains(t, log.String(), "/nowhere")
			if !strings.HasPrefix(name, "more") {
				require.Contains(t, log.String(), c.file)
			}
		})
	}
}

func TestReadErrorsAreLoggedAtStartAndEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		p := newProc(t)
		p.write(t, "loadavg", "")
		p.start(t, slog.New(slog.NewTextHandler(&log, nil)))
		advance(21 * time.Second)
		require.Equal(t, 1, strings.Count(log.String(), "\n"), log.String())
		p.write(t, "loadavg", "1 1 1 1/1 1\n")
		advance(20 * time.Second)
		require.Equal(t, 2, strings.Count(log.String(), "\n"), log.String())
		require.Contains(t, log.String(), "can be read again")
	})
}

func TestCollectorRefuses(t *testing.T) {
	for _, interval := range []time.Duration{-1, time.Second - 1, time.Minute + 1} {
		_, err := health.NewCollector(&health.CollectorOptions{Interval: interval})
		require.ErrorIs(t, err, nstance.Invalid)
	}
}

func TestRealMachine(t *testing.T) {
	c, err := health.NewCollector(nil)
	require.NoError(t, err)
	once(t, c)
	u := c.Usage()
	require.Greater(t, u.MemoryPercent, 0.0)
	require.Greater(t, u.DiskPercent, 0.0)
}

func FuzzProc(f *testing.F) {
	f.Add("cpu 1 2 3 4 5 6 7 8\n", "cpu 2 2 3 4 5 6 7 8\n", "MemTotal: 5 kB\nMemAvailable: 2 kB\n", "1.5 1 1\n")
	f.Add("cpu", "cpu  -1 0 0 0 0", "MemTotal: -5", "1e999")
	p := proc(f.TempDir())
	f.Fuzz(func(t *testing.T, stat, later, meminfo, loadavg string) {
		c, err := health.NewCollector(&health.CollectorOptions{Proc: string(p)})
		require.NoError(t, err)
		p.write(t, "meminfo", meminfo)
		p.write(t, "loadavg", loadavg)
		for _, s := range []string{stat, later} {
			p.write(t, "stat", s)
			once(t, c)
		}
		u := c.Usage()
		for _, percent := range []float64{u.CPUPercent, u.MemoryPercent, u.DiskPercent} {
			require.True(t, percent >= 0 && percent <= 100, "%+v", u)
		}
		require.True(t, u.Load >= 0 && !math.IsInf(u.Load, 0), "%+v", u)
	})
}
