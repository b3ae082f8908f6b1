// Package wallclock gives tests the time of a machine whose wall clock is wrong.
package wallclock

import (
	"time"
	"unsafe"
)

// Ahead returns the result of [time.Now] if the wall clock was set
// forward by so much; back if it is negative. The monotonic clock, by which the
// time between two such times is measured, is not moved. There is no
// public way to make such a time: Add moves both clocks, and inside a
// testing/synctest bubble time.Now has no monotonic one. For times up to 2157.
func Ahead(by time.Duration) (t time.Time) {
	const monotonic, seconds = 1 << 63, 30 // see the comment in [time.Time]
	layout := (*struct {
		wall uint64
		ext  int64
		loc  *time.Location
	})(unsafe.Pointer(&t))
	now, epoch := time.Now(), time.Date(1885, 1, 1, 0, 0, 0, 0, time.UTC)
	layout.ext = now.UnixNano()
	now = now.Add(by)
	layout.wall = monotonic | uint64(now.Unix()-epoch.Unix())<<seconds | uint64(now.Nanosecond())
	return t
}
