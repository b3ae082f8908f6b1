package storage

import "time"

// A Dated store knows the time at its back end when that last answered. Object
// stores send it with every answer. A [Dir] and a [Memory] use this machine's
// clock, so they are not Dated. Date may be called concurrently.
type Dated interface {
	// Date returns the latest reading; false: there is none yet. It does no I/O.
	Date() (Reading, bool)
}

// A Reading of a remote clock is never exact: the answer took a while, and HTTP
// sends whole seconds only.
type Reading struct {
	Local  time.Time     // when the answer arrived, with this process's monotonic clock
	Remote time.Time     // the earliest that the back end's clock can have shown then, UTC
	Within time.Duration // it was at most this much later
}
