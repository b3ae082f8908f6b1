// Package sqlite keeps a journal in a SQLite file on the machine itself, which may be
// deleted at any time.
//
// Writers never wait: events are queued, bounded, and written in batches by
// [Journal.Run]. While the disk is full they stay queued; events beyond the bound
// are dropped and counted. A file that is damaged or deleted is replaced by an
// empty one, open or not. [Journal.Problems] reports all that.
//
// A Journal is safe for concurrent use.
package sqlite

import (
	"log/slog"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/journal"
)

var _ journal.Journal = (*Journal)(nil)

// A Journal is an open file. Its methods may be called concurrently.
type Journal struct {
	path    string
	opts    Options
	rebuilt string

	mu              sync.Mutex // guards what follows, never held over I/O
	file            *file      // nil: none at present, Run retries
	replaceReason   error      // why file must be replaced; nil: it need not be
	events          []nstance.Event
	dropped         uint64 // since the beginning
	droppedReported uint64 // dropped events that notes report
	failure         error  // why writes fail; nil: they succeed
	since           time.Time
	notes           []note

	running  bool            // Run is active
	flushing bool            // a flush is active
	waiting  []chan struct{} // of readers; closed by the next flush that begins after they were added

	wake chan struct{} // something is queued
	full chan struct{} // a whole batch is

	retryDelay time.Duration // of Run only: after a failed write; 0: the last one succeeded
	last       int64         // of Run only: number of the newest event

	counts map[share]int // of Run only: events in the file; nil: not counted yet
}

// Options adjust Open. Nil and zero mean the defaults.
type Options struct {
	MaxEvents int           // events kept, without alarms; 100,000. Older ones are deleted in batches, so that there may be a tenth more for a while: first those of the tenants with the most events
	MaxAlarms int           // alarms kept; 10,000. Likewise
	Queue     int           // events waiting to be written; 8,192. Beyond that, events of the tenant with the most are dropped and counted
	Interval  time.Duration // longest wait before a batch is written; 250ms. The file is checked at twenty times that
	Log       *slog.Logger  // nil: discard
}

const (
	batch         = 512              // events after which a batch is written at once
	deleteChunk   = 1000             // rows deleted in one transaction
	flushTimeout  = 10 * time.Second // for one batch, also for the last one after Run's context has ended
	busyTimeout   = 10 * time.Second // wait for a lock that another process holds
	maxRetryDelay = 5 * time.Second  // between two attempts to write
)

func (o *Options) orDefaults() Options {
	out := Options{}
	if o != nil {
		out = *o
	}
	set := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	set(&out.MaxEvents, 100_000)
	set(&out.MaxAlarms, 10_000)
	set(&out.Queue, 8_192)
	if out.Interval <= 0 {
		out.Interval = 250 * time.Millisecond
	}
	if out.Log == nil {
		out.Log = slog.New(slog.DiscardHandler)
	}
	return out
}

// Append queues an event for the journal. It never blocks. The journal gives
// it a sequence number of its own, whatever e.Seq says. What e points to must
// not be changed any more.
func (j *Journal) Append(e nstance.Event) {
	j.mu.Lock()
	n := len(j.events)
	j.queueEvent(e)
	j.mu.Unlock()
	signal(j.wake)
	if n+1 >= batch {
		signal(j.full)
	}
}

// Dropped returns how many events were lost because too many were waiting.
func (j *Journal) Dropped() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.dropped
}

// Rebuilt returns the new path of a file that Open could not use and set aside, or
// "" if there was none.
func (j *Journal) Rebuilt() string { return j.rebuilt }

// Close closes the file. Call it after Run has returned.
func (j *Journal) Close() error {
	j.mu.Lock()
	f := j.file
	j.file = nil
	j.mu.Unlock()
	if f == nil {
		return nil
	}
	return f.close()
}

func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
