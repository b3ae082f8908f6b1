package qemu

import (
	"bytes"
	"io"
	"os"
	"sync"
	"time"

	"github.com/nstance-go/nstance/internal/clip"
)

// maxConsoleFile is how long a machine's log may grow, in bytes, before it is cut
// to its end.
const maxConsoleFile = 1 << 20

// maxLine is how many bytes without an end of line are kept for one.
const maxLine = 4096

// A console keeps what a machine prints: all of it in a file up to
// maxConsoleFile, the end of it in memory.
type console struct {
	path string
	copy io.Writer // also gets everything, by lines; does not block; may be nil

	writing sync.Mutex // guards what follows; a disk may hang while it is held
	file    *os.File
	size    int
	line    []byte // not copied yet

	mu   sync.Mutex
	last []byte
}

func newConsole(path string, also io.Writer) *console { return &console{path: path, copy: also} }

// Write never fails: a full disk must not stop a machine.
func (c *console) Write(b []byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.keep(b)
	c.record(b)
	if c.copy != nil {
		c.line = append(c.line, b...)
		c.copyLines(len(c.line) >= maxLine)
	}
	return len(b), nil
}

func (c *console) keep(b []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = append(c.last, b...)
	c.last = clip.Console(c.last)
}

// copyLines passes the whole lines on, or everything: machines share that writer.
func (c *console) copyLines(everything bool) {
	end := len(c.line)
	if !everything {
		end = bytes.LastIndexByte(c.line, '\n') + 1
	}
	if end > 0 {
		_, _ = c.copy.Write(c.line[:end])
		c.line = c.line[end:]
	}
}

// record appends b to the file, and starts the file anew with its end when it is
// long.
func (c *console) record(b []byte) {
	if c.size += len(b); c.file == nil || c.size > maxConsoleFile {
		if c.file != nil {
			_ = c.file.Close()
		}
		var err error
		if c.file, err = os.Create(c.path); err != nil {
			c.file = nil
			return
		}
		b = c.end()
		c.size = len(b)
	}
	_, _ = c.file.Write(b)
}

// end returns the end of what was printed.
func (c *console) end() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]byte(nil), c.last...)
}

func (c *console) close() {
	c.writing.Lock()
	defer c.writing.Unlock()
	if c.copy != nil {
		c.copyLines(true)
	}
	if c.file != nil {
		_ = c.file.Close()
		c.file = nil
	}
}

// maxCopies is how many writes may wait for Options.Console. One is at most 32 KiB long.
const maxCopies = 256

// A copier writes to Options.Console what machines print. It never blocks: what does
// not fit is dropped.
type copier struct {
	out     io.Writer
	waiting chan []byte
	stop    chan struct{}
	once    sync.Once
	done    chan struct{}
}

// newCopier returns a copier in front of out; close it.
func newCopier(out io.Writer) *copier {
	c := &copier{out: out, waiting: make(chan []byte, maxCopies), stop: make(chan struct{}), done: make(chan struct{})}
	go c.run() // ends with close, or once out returns
	return c
}

func (c *copier) Write(b []byte) (int, error) {
	select {
	case c.waiting <- append([]byte(nil), b...):
	default:
	}
	return len(b), nil
}

func (c *copier) run() {
	defer close(c.done)
	for {
		select {
		case b := <-c.waiting:
			_, _ = c.out.Write(b)
		case <-c.stop:
			c.writeRest()
			return
		}
	}
}

func (c *copier) writeRest() {
	for {
		select {
		case b := <-c.waiting:
			_, _ = c.out.Write(b)
		default:
			return
		}
	}
}

// close waits until everything has been written, for outputLimit at most.
func (c *copier) close() {
	c.once.Do(func() { close(c.stop) })
	limit := time.NewTimer(outputLimit)
	defer limit.Stop()
	select {
	case <-c.done:
	case <-limit.C:
	}
}
