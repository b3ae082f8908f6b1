package lease

import "time"

// ErrLost is the cause of a term ended by another process's write.
var ErrLost = errLost

// ErrRanOut is the cause of an expired term.
var ErrRanOut = errRanOut

// Until returns when the term ends by its process's clock, without reading the clock,
// which could end it.
func Until(t *Term) time.Duration { return time.Duration(t.until.Load()) }

// SystemClock returns the clock that servers use.
func SystemClock() Clock { return systemClock() }

// Sliced returns the timers of the system's clock over another source.
func Sliced(now func() time.Duration) Clock { return sliced{now} }
