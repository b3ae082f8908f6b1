package storage

import "time"

// A Dated store knows what time it was at its back end when that last answered.
// Object stores say so in every answer. A [Dir] and a [Memory] have no clock but
// this machine's, so they are not Dated.
type Dated interface {
	// Date returns the latest reading; false: there is none yet. It does no
	// I/O and may be called concurrently.
	Date() (Reading, bool)
}

// A Reading of a clock far away is never exact: the answer was under way for a
// while, and HTTP knows whole seconds only.
type Reading struct {
	Local  time.Time     // when the answer arrived, with this process's monotonic clock
	Remote time.Time     // the earliest that the back end's clock can have shown then, UTC
	Within time.Duration // and so much later at most
}
