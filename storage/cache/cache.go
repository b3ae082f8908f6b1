// Package cache remembers, on the machine itself, what a server would like to
// show but can do without: the journal of events and each instance's latest
// health report. It is a SQLite file that may be deleted whenever no server
// runs on it. Nothing is ever decided by what it says.
//
// Writers never wait: what they hand over is queued, bounded, and written in
// batches by [Cache.Run].
package cache

import (
	"database/sql"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nstance-go/nstance"
)

// A Cache is an open file. Its methods may be called concurrently.
type Cache struct {
	opts    Options
	write   *sql.DB // one connection: SQLite has one writer anyway
	read    *sql.DB
	rebuilt string

	mu      sync.Mutex // guards what follows, never held over I/O
	events  []nstance.Event
	reports reports // queued
	writing reports // being written: not queued any more, not readable from the file yet

	wake    chan struct{} // something is queued
	full    chan struct{} // a whole batch is
	dropped atomic.Uint64
	trims   uint64 // of Run only
	failing bool   // of Run only: the last batch could not be written
}

// Options adjust Open. Nil and zero mean the defaults.
type Options struct {
	MaxEvents  int           // events kept; 100,000. Older ones go, in batches, so that there may be a tenth more for a while
	MaxReports int           // reports kept, and waiting; 50,000. The oldest go
	Queue      int           // events waiting to be written; 8,192. What comes beyond is dropped and counted
	Interval   time.Duration // longest wait before a batch is written; 250ms
	Log        *slog.Logger  // nil: discard
}

const (
	batch    = 512              // events after which a batch is written at once
	chunk    = 1000             // rows deleted in one transaction
	patience = 10 * time.Second // for one batch, also for the last one after Run's context has ended
	busy     = 10 * time.Second // wait for a lock that another process holds
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
	}
	c.mu.Unlock()
	if n >= c.opts.Queue {
		c.dropped.Add(1)
	}
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
	fits := known || len(c.reports) < c.opts.MaxReports
	if fits {
		c.reports[id] = r
	}
	c.mu.Unlock()
	if !fits {
		c.dropped.Add(1)
	}
	signal(c.wake)
}

// Dropped returns how many events and reports were lost because too many were
// waiting.
func (c *Cache) Dropped() uint64 { return c.dropped.Load() }

// Rebuilt returns where the file is that Open could not use and set aside, or
// "" if there was none.
func (c *Cache) Rebuilt() string { return c.rebuilt }

// Close closes the file. Call it after Run has returned.
func (c *Cache) Close() error { return errors.Join(c.read.Close(), c.write.Close()) }

func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
