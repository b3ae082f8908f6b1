package spot

import (
	"cmp"
	"context"
	"iter"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/validate"
)

// Poll is the Watch of a SpotDetector whose source is read at intervals from 1 ms to an hour
// (0 or less: DefaultPollInterval). read returns everything that the source announces now, with
// times by this machine's clock; Poll sets DetectedAt and yields what has changed: new
// and changed notices, then withdrawn ones as Cancelled. After an error nothing is
// withdrawn, each different error of an outage is yielded once, and the next read comes
// within a second. A notice whose deadline was past at the first complete reading is
// ignored, with an error that says so. Poll yields until ctx ends; without read, or with
// another interval, it yields Invalid and ends.
func Poll(ctx context.Context, interval time.Duration, read func(ctx context.Context) ([]nstance.Notice, error)) iter.Seq2[nstance.Notice, error] {
	interval = max(interval, 0)
	err := validate.Setting("interval", interval, time.Hour)
	if read == nil {
		err = nstance.FieldError("read", "give the function that reads the source", "is nil")
	}
	if err != nil {
		return func(yield func(nstance.Notice, error) bool) { yield(nstance.Notice{}, err) }
	}
	return watch(ctx, &Options{PollInterval: cmp.Or(interval, DefaultPollInterval)}, &lastReads{}, nil, polled(read))
}

// polled is a source that needs no clock but the machine's.
type polled func(ctx context.Context) ([]nstance.Notice, error)

func (polled) noticeSource() string { return "" }

func (f polled) read(ctx context.Context) (reading, error) {
	found, err := f(ctx)
	now := time.Now().UTC()
	return reading{found: found, at: instant{local: now, cloud: now}}, err
}
