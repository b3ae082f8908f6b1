package sim

import (
	"math/rand/v2"
	"time"

	"github.com/nstance-go/nstance/storage/lease"
)

// skewed is a clock that runs slightly too fast or too slow.
type skewed struct {
	lease.Clock
	rate float64
}

// skew returns a clock with a rate error of up to 2 %.
func skew(seed uint64) lease.Clock {
	return skewed{lease.GoClock(), 0.98 + 0.04*rand.New(rand.NewPCG(seed, 5)).Float64()}
}

func (c skewed) Now() time.Duration { return time.Duration(float64(c.Clock.Now()) * c.rate) }

// AfterFunc is never early by this clock.
func (c skewed) AfterFunc(d time.Duration, f func()) func() bool {
	return c.Clock.AfterFunc(time.Duration(float64(d)/c.rate)+time.Microsecond, f)
}
