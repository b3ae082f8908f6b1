// Package cache remembers, on the machine itself, what a server would like to
// show but can do without: the journal of events. It is a SQLite file that may
// be deleted at any time. Nothing is ever decided by what it says.
//
// Writers never wait: what they hand over is queued, bounded, and written in
// batches by [Cache.Run]. While the disk is full it is kept, and when there are
// too many, dropped and counted. A file that is found damaged, or deleted, is
// replaced by an empty one, open or not. [Cache.Problems] tells of all that.
package cache

import (
	"log/slog"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
)

// A Cache is an open file. Its methods may be called concurrently.
type Cache struct {
	path    string
	opts    Options
	rebuilt string

	mu      sync.Mutex // guards what follows, never held over I/O
	file    *file      // nil: there is none at present, Run goes on trying
	unsound error      // why file must be replaced; nil: no reason is known
	events  []nstance.Event
	dropped uint64 // since the beginning
	told    uint64 // those of them that remarks speak of
	failure error  // why nothing can be written; nil: it can
	since   time.Time
	remarks []remark

	running  bool            // Run writes
	flushing bool            // at this moment
	readers  []chan struct{} // closed by the next flush that began after they came

	wake chan struct{} // something is queued
	full chan struct{} // a whole batch is

	pause time.Duration // of Run only: until the next attempt, after one that failed; 0: none did
	last  int64         // of Run only: number of the newest event

	counts map[share]int // of Run only: events in the file; nil: not counted yet
}

// Options adjust Open. Nil and zero mean the defaults.
type Options struct {
	MaxEvents int           // events kept, without alarms; 100,000. Older ones go, in batches, so that there may be a tenth more for a while: first those of the tenants that have most
	MaxAlarms int           // alarms kept; 10,000. Likewise
	Queue     int           // events waiting to be written; 8,192. What comes beyond costs the tenant that has most, and is counted
	Interval  time.Duration // longest wait before a batch is written; 250ms. The file is looked after at twenty times that
	Log       *slog.Logger  // nil: discard
}

const (
	batch    = 512              // events after which a batch is written at once
	chunk    = 1000             // rows deleted in one transaction
	patience = 10 * time.Second // for one batch, also for the last one after Run's context has ended
	busy     = 10 * time.Second // wait for a lock that another process holds
	slowest  = 5 * time.Second  // between two attempts to write
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
func (c *Cache) Append(e nstance.Event) {
	c.mu.Lock()
	n := len(c.events)
	c.queueEvent(e)
	c.mu.Unlock()
	signal(c.wake)
	if n+1 >= batch {
		signal(c.full)
	}
}

// Dropped returns how many events were lost because too many were waiting.
func (c *Cache) Dropped() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dropped
}

// Rebuilt returns where the file is that Open could not use and set aside, or
// "" if there was none.
func (c *Cache) Rebuilt() string { return c.rebuilt }

// Close closes the file. Call it after Run has returned.
func (c *Cache) Close() error {
	c.mu.Lock()
	f := c.file
	c.file = nil
	c.mu.Unlock()
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
