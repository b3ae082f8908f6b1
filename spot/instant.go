package spot

import (
	"net/http"
	"time"
)

// An instant is one moment by two clocks: the machine's own, which may be wrong
// by hours, and the cloud's, by which deadlines are announced.
type instant struct {
	local, cloud time.Time
}

// instantOf returns the moment local, at which an answer arrived that carries
// date and took at most this long. A date has whole seconds and was under way
// for a while, so that the cloud's clock is known to be within an interval: a
// local clock that lies within it is taken to be right, any other to be off by
// what it lies outside. Without a date there is only the local clock.
func instantOf(date string, local time.Time, took time.Duration) instant {
	at := instant{local: local.UTC(), cloud: local.UTC()}
	earliest, err := http.ParseTime(date)
	if err != nil {
		return at
	}
	earliest = earliest.UTC()
	latest := earliest.Add(time.Second + min(took, requestTimeout)) // a long poll is dated when it ends
	switch {
	case at.cloud.Before(earliest):
		at.cloud = earliest
	case at.cloud.After(latest):
		at.cloud = latest
	}
	return at
}

// localOf returns a time of the cloud's clock by the machine's own, the zero time
// for none.
func (at instant) localOf(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return at.local.Add(t.Sub(at.cloud))
}
