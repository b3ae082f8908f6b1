// Package cache remembers, on the machine itself, what a server would like to
// show but can do without: the journal of events and each instance's latest
// health report. It is a SQLite file that may be deleted at any time. Nothing
// is ever decided by what it says.
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
	reports reports // queued
	writing reports // being written: not queued any more, not readable from the file yet
	dropped uint64  // since the beginning
	told    uint64  // those of them that remarks speak of
	failure error   // why nothing can be written; nil: it can
	since   time.Time
	remarks []remark

	wake chan struct{} // something is queued
	full chan struct{} // a whole batch is

	trims uint64        // of Run only
	pause time.Duration // of Run only: until the next attempt, after one that failed; 0: none did
	last  int64         // of Run only: number of the newest event
}

// Options adjust Open. Nil and zero mean the defaults.
type Options struct {
	MaxEvents  int           // events kept; 100,000. Older ones go, in batches, so that there may be a tenth more for a while
	MaxReports int           // reports kept, and waiting; 50,000. The oldest go
	Queue      int           // events waiting to be written; 8,192. What comes beyond is dropped and counted
	Interval   time.Duration // longest wait before a batch is written; 250ms. The file is looked after at twenty times that
	Log        *slog.Logger  // nil: discard
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
	set(&out.MaxReports, 50_000)
	set(&out.Queue, 8_192)
	if out.Interval <= 0 {
		out.Interval = 250 * time.Millisecond
	}
	if out.Log == nil {
		out.Log = slog.New(slog.DiscardHandler)
	}
	return out
}

// reports are the latest ones by instance; nil means that it is to be forgotten.
type reports map[nstance.InstanceID]*nstance.Report

// Append queues an event for the journal. It never blocks. The journal gives
// it a sequence number of its own, whatever e.Seq says. What e points to must
// not be changed any more.
func (c *Cache) Append(e nstance.Event) {
	c.mu.Lock()
	n := len(c.events)
	if n < c.opts.Queue {
		c.events = append(c.events, e)
	} else {
		c.dropped++
	}
	c.mu.Unlock()
	signal(c.wake)
	if n+1 >= batch {
		signal(c.full)
	}
}

// Report queues a health report. It never blocks. Of several reports of one
// instance only the last is written. What r points to must not be changed any
// more.
func (c *Cache) Report(r nstance.Report) { c.queue(r.InstanceID, &r) }

// Forget queues the removal of an instance's report.
func (c *Cache) Forget(id nstance.InstanceID) { c.queue(id, nil) }

func (c *Cache) queue(id nstance.InstanceID, r *nstance.Report) {
	c.mu.Lock()
	_, known := c.reports[id]
	if known || len(c.reports) < c.opts.MaxReports {
		c.reports[id] = r
	} else {
		c.dropped++
	}
	c.mu.Unlock()
	signal(c.wake)
}

// Dropped returns how many events and reports were lost because too many were
// waiting.
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
