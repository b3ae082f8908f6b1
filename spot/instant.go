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

// instantOf returns the instant at which an answer with this Date header arrived,
// local by the machine's clock, after took. The header has whole seconds and is as
// old as the transfer, so the cloud's clock is known to be within an interval. A
// local clock within the interval is taken as right, any other is corrected to
// the nearer end. Without a date the local clock is used.
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

// localOf converts a time from the cloud's clock to the machine's. The zero time
// stays zero.
func (at instant) localOf(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return at.local.Add(t.Sub(at.cloud))
}
