package lease

import (
	"context"
	"iter"
	"log/slog"
	"time"

	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/internal/validate"
	"github.com/nstance-go/nstance/storage"
)

const (
	defaultTTL  = 6 * time.Second
	defaultPoll = 400 * time.Millisecond
)

// Options adjust an elector. Nil and zero mean the defaults.
type Options struct {
	Address string        // where clients reach this process
	TTL     time.Duration // of its own terms: 1s to 60s, whole milliseconds; 6s
	Log     *slog.Logger  // nil: discard

	// Registration is where clients without a certificate reach this process.
	Registration string

	// Peer is where Watch of other servers reaches this process; empty: nowhere.
	Peer string

	// Poll is how often a standby reads the lease while no watch works;
	// 400ms, at most a third of the ttl. It bounds a planned hand-over without
	// a watch, and adds to a take-over after a crash. 400ms is 6.5 million
	// reads a month for each standby.
	Poll time.Duration

	// Watch opens a stream to the holder and yields what its Announcements
	// yields there, in order, the latest one at first. It returns promptly
	// when ctx ends, and with or without an error when the stream breaks; then
	// it is called again. It is never called for a holder without
	// Peer. Nil: there is none, and standbys poll.
	Watch func(ctx context.Context, holder Holder) iter.Seq2[Announcement, error]

	// Standby reports whether another process is known that would take the
	// lease. A process that released the lease then leaves it to standbys for
	// two ttl.
	// It must not block. Nil: none is ever known.
	Standby func() bool

	// Marks returns the highest epoch that any machine of the shard is marked
	// with at its provider. It is called when the lease is missing or new, and may
	// be slow. Nil: only storage is searched.
	Marks func(ctx context.Context) (uint64, error)

	// TakeAtOnce takes the lease without waiting until its holder's term has
	// ended. It is for setups where something else keeps other servers away, such as
	// the lock on the directory of nstance-server dev. The term ends, as any
	// other, when another process writes the lease.
	TakeAtOnce bool

	// OnChange is called whenever the holder of the lease changes: one call at a
	// time, in order. It must not block. Nil: no calls.
	OnChange func(Holder)

	// Clock is for simulations. Nil: the system's, which counts suspend.
	Clock Clock
}

// A Holder is who holds the lease, as last seen in storage. The zero Holder
// means that no holder is known.
type Holder struct {
	ID      string // random, new with every process
	Address string // as in its Options
	Peer    string // as in its Options

	Registration string // as in its Options
	Epoch        uint64
	Self         bool // this process; whether its term lasts, only the Term knows
	Released     bool // by its holder
}

// An Announcement says that the holder's write has reached storage.
type Announcement struct {
	Epoch    uint64
	Version  storage.Version // what storage returned for the write
	WriteID  string
	Released bool // by its holder
}

func (o *Options) validate() error {
	if o.TTL == 0 {
		o.TTL = defaultTTL
	}
	if err := validate.Duration("election.ttl", o.TTL, records.MinLeaseTTL, records.MaxLeaseTTL); err != nil {
		return err
	}
	o.TTL = o.TTL.Truncate(time.Millisecond) // the precision of the object
	if err := validate.Setting("poll", o.Poll, o.TTL/3); err != nil {
		return err
	}
	if o.Poll == 0 {
		o.Poll = min(defaultPoll, o.TTL/3)
	}
	if o.Clock == nil {
		o.Clock = systemClock()
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return nil
}
