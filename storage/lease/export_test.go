package lease

import "time"

// ErrLost is the cause of a term that another process's write ended.
var ErrLost = errLost

// ErrRanOut is the cause of a term that was not renewed in time.
var ErrRanOut = errRanOut

// Until returns when the term ends on its process's clock, without looking at
// the clock, which could end it.
func Until(t *Term) time.Duration { return time.Duration(t.until.Load()) }

// SystemClock returns the clock that servers use.
func SystemClock() Clock { return systemClock() }

// Sliced returns the timers of the system's clock over another source.
func Sliced(now func() time.Duration) Clock { return sliced{now} }
