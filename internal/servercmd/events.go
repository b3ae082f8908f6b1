package servercmd

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/nstance-go/nstance"
)

// waiting is how many events may wait to be printed.
const waiting = 1 << 14

// events prints the journal for programs. A reader that falls behind misses
// some; the server does not wait for it.
type events struct {
	log  *slog.Logger
	ch   chan nstance.Event // nil: nothing is printed
	lost atomic.Int64
	wg   sync.WaitGroup
}

// newEvents prints to out until it is closed. A nil out prints nothing.
func newEvents(out io.Writer, log *slog.Logger) *events {
	e := &events{log: log}
	if out != nil {
		e.ch = make(chan nstance.Event, waiting)
		e.wg.Go(func() { e.print(out) })
	}
	return e
}

// tell is a server's Journal.
func (e *events) tell(ev nstance.Event) {
	if e.ch == nil {
		return
	}
	select {
	case e.ch <- ev:
	default:
		e.lost.Add(1)
	}
}

func (e *events) print(out io.Writer) {
	enc := json.NewEncoder(out)
	broken := false
	for ev := range e.ch {
		if broken {
			continue
		}
		if err := enc.Encode(ev); err != nil {
			broken = true
			e.log.Warn("events are not printed any more", "err", err)
		}
	}
}

// close returns when everything that was told has been printed. Nothing may be
// told any more.
func (e *events) close() {
	if e.ch == nil {
		return
	}
	close(e.ch)
	e.wg.Wait()
	if n := e.lost.Load(); n > 0 {
		e.log.Warn("events not printed: the reader of standard output is too slow", "lost", n)
	}
}

// tether returns a context that ends when in does, or ctx. The
// process at the other end of in only has to end, in any way.
func tether(ctx context.Context, in io.Reader) context.Context {
	tied, cut := context.WithCancelCause(ctx)
	go func() { // reads until the process ends: nothing can interrupt it
		_, _ = io.Copy(io.Discard, in)
		cut(nstance.Errorf(nstance.Unavailable, "standard input has ended"))
	}()
	return tied
}
