package lease

import (
	"time"

	"golang.org/x/sys/unix"
)

// systemClock counts the time that the machine was suspended: clock_gettime(2),
// CLOCK_BOOTTIME. A kernel or sandbox without it gets Go's clock.
func systemClock() Clock {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) != nil {
		return GoClock()
	}
	return sliced{bootTime}
}

func bootTime() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) // it worked before, and fails only for bad arguments
	return time.Duration(ts.Nano())
}
