// Package logqueue separates a program from the reader of its output. Lines wait in a
// bounded queue until the reader takes them; a line that does not fit is dropped and
// counted. A reader that hangs or has gone delays nothing and ends nothing.
package logqueue

import (
	"bytes"
	"io"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/nstance-go/nstance"
)

const (
	// DefaultLimit is how many bytes may wait.
	DefaultLimit = 4 << 20
	// closeGrace is how long Close waits for the reader.
	closeGrace = time.Second
)

// Options of a Queue. Nil and zero fields mean the defaults.
type Options struct {
	Limit int // bytes that may wait; DefaultLimit

	// Lost is called once the reader reads again, with how many lines were dropped
	// since it was last called. What it returns is written in their place.
	Lost func(lines int64) []byte

	// Failed is called once, with the first error of a write.
	Failed func(err error)
}

// A Queue is an io.Writer that never blocks. Each Write is one line, or several that
// belong together. It is safe for concurrent use.
type Queue struct {
	out  io.Writer
	opts Options

	mu      sync.Mutex
	lines   [][]byte
	size    int   // bytes of lines
	dropped int64 // lines, in all
	told    int64 // of those, how many Lost was called with
	closed  bool

	wake  chan struct{} // has room for one
	done  chan struct{} // closed when nothing more is written
	pipes chan os.Signal
}

// New returns a queue in front of out, which only the queue writes to. Until Close,
// writes to a closed pipe fail in the whole process instead of ending it.
func New(out io.Writer, opts *Options) *Queue {
	q := &Queue{out: out, wake: make(chan struct{}, 1), done: make(chan struct{}), pipes: make(chan os.Signal, 1)}
	if opts != nil {
		q.opts = *opts
	}
	if q.opts.Limit <= 0 {
		q.opts.Limit = DefaultLimit
	}
	signal.Notify(q.pipes, syscall.SIGPIPE) // not Ignore, which programs that this one starts would inherit
	go q.run()                              // ends with Close, or once the reader reads again
	return q
}

// Write queues a copy of p. It always succeeds.
func (q *Queue) Write(p []byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || q.size+len(p) > q.opts.Limit {
		q.dropped++
		return len(p), nil
	}
	q.lines = append(q.lines, append([]byte(nil), p...))
	q.size += len(p)
	q.signal()
	return len(p), nil
}

// Dropped returns how many lines were dropped, because too many were waiting or a write
// failed.
func (q *Queue) Dropped() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.dropped
}

// Close waits until everything has been written, but at most a second. What is written
// to the queue afterwards is dropped.
func (q *Queue) Close() {
	q.mu.Lock()
	q.closed = true
	q.signal()
	q.mu.Unlock()
	select {
	case <-q.done:
		signal.Stop(q.pipes)
	case <-time.After(closeGrace): // the write under way must not end the process either
	}
}

// signal wakes run. Callers hold the lock.
func (q *Queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *Queue) run() {
	defer close(q.done)
	failed := false
	for {
		line, lost, over := q.next()
		if lost > 0 && q.opts.Lost != nil {
			line = append(q.opts.Lost(lost), line...)
		}
		if len(line) > 0 {
			if _, err := q.out.Write(line); err != nil {
				q.drop()
				if !failed && q.opts.Failed != nil {
					q.opts.Failed(err)
				}
				failed = true
			}
			continue
		}
		if over {
			return
		}
		<-q.wake
	}
}

// next takes the oldest line out of the queue, and returns how many lines were dropped
// before it was taken. Without a line, over reports whether there will be none.
func (q *Queue) next() (line []byte, lost int64, over bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.lines) == 0 {
		lost, q.told = q.dropped-q.told, q.dropped
		return nil, lost, q.closed
	}
	line = q.lines[0]
	q.lines[0] = nil
	q.lines = q.lines[1:]
	q.size -= len(line)
	return line, 0, false
}

// drop counts a line that could not be written. The next one that can be follows it.
func (q *Queue) drop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.dropped++
	q.told++ // a message about it could not be written either
}

// Handler returns what makes a handler of lines in a format: text, or json. An empty format is
// text. Fails with Invalid for another one, naming the flag or variable.
func Handler(field, format string, level slog.Level) (func(io.Writer) slog.Handler, error) {
	to := &slog.HandlerOptions{Level: level}
	switch format {
	case "", "text":
		return func(w io.Writer) slog.Handler { return slog.NewTextHandler(w, to) }, nil
	case "json":
		return func(w io.Writer) slog.Handler { return slog.NewJSONHandler(w, to) }, nil
	}
	return nil, nstance.FieldError(field, "use text or json", "%.64q is no format", format)
}

// Logger returns a logger whose handler writes to a queue in front of out, with room for
// limit bytes (0: the default). It logs itself how many lines were dropped. The caller
// closes the queue after its last line.
func Logger(out io.Writer, limit int, handler func(io.Writer) slog.Handler) (*slog.Logger, *Queue) {
	q := New(out, &Options{Limit: limit, Lost: func(lines int64) []byte {
		var b bytes.Buffer
		slog.New(handler(&b)).Warn("log lines dropped: the reader of this log is too slow", "lost", lines)
		return b.Bytes()
	}})
	return slog.New(handler(q)), q
}

// Libraries has libraries that log by themselves, through package log or as gRPC does, write
// lines of to's, until the function is called that it returns. Its calls are not concurrent.
func Libraries(to *slog.Logger) (restore func()) {
	flags, out := log.Flags(), log.Writer()
	log.SetFlags(0)
	log.SetOutput(slog.NewLogLogger(to.Handler(), slog.LevelInfo).Writer())
	return func() {
		log.SetFlags(flags)
		log.SetOutput(out)
	}
}
