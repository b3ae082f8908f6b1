package servercmd

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/logqueue"
)

// events prints the journal for programs. A reader that falls behind misses some; the
// server does not wait for it.
type events struct {
	log   *slog.Logger
	lines *logqueue.Queue // nil: nothing is printed
}

// newEvents prints to out until it is closed. A nil out prints nothing.
func newEvents(out io.Writer, log *slog.Logger) *events {
	e := &events{log: log}
	if out != nil {
		e.lines = logqueue.New(out, &logqueue.Options{
			Lost: func(n int64) []byte {
				log.Warn("events not printed: the reader of standard output is too slow", "lost", n)
				return nil
			},
			Failed: func(err error) { log.Warn("events cannot be printed", "err", err) },
		})
	}
	return e
}

// tell is a server's Journal.
func (e *events) tell(ev nstance.Event) {
	if e.lines == nil {
		return
	}
	line, err := json.Marshal(ev)
	if err != nil {
		e.log.Error("an event cannot be printed", "event", ev.Type, "err", err)
		return
	}
	_, _ = e.lines.Write(append(line, '\n')) // it always succeeds
}

// close waits for a moment until everything that was told has been printed. Nothing may be
// told any more.
func (e *events) close() {
	if e.lines == nil {
		return
	}
	e.lines.Close()
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
