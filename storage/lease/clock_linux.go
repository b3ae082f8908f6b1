package lease

import (
	"syscall"
	"time"
	"unsafe"
)

// clockBootTime is CLOCK_BOOTTIME of linux/time.h. The module golang.org/x/sys has it too,
// at the price of 12 MB that every program with a reconciler would fetch for one call.
const clockBootTime = 7

// systemClock counts the time that the machine was suspended: clock_gettime(2),
// CLOCK_BOOTTIME. A kernel or sandbox without it gets Go's clock.
func systemClock() Clock {
	if _, ok := bootTimeClock(); !ok {
		return GoClock()
	}
	return sliced{bootTime}
}

func bootTime() time.Duration {
	now, _ := bootTimeClock() // it worked before, and fails only for bad arguments
	return now
}

func bootTimeClock() (time.Duration, bool) {
	var ts syscall.Timespec
	_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBootTime, uintptr(unsafe.Pointer(&ts)), 0) //nolint:gosec // as clock_gettime(2) asks for
	return time.Duration(ts.Nano()), errno == 0
}
