package reconcile

import (
	"time"
)

// earliest returns the first of the times that are not zero, or zero.
func earliest(times ...time.Time) time.Time {
	var first time.Time
	for _, t := range times {
		if !t.IsZero() && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	return first
}

// latest returns the later of two times.
func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// after returns when limit has passed since t; zero without a limit.
func after(t time.Time, limit time.Duration) time.Time {
	if limit <= 0 {
		return time.Time{}
	}
	return t.Add(limit)
}
