package qemu

import (
	"bytes"
	"io"
	"os"
	"sync"

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
	copy io.Writer // also gets everything, by lines; may be nil

	mu   sync.Mutex
	file *os.File
	size int
	last []byte
	line []byte // not copied yet
}

func newConsole(path string, also io.Writer) *console { return &console{path: path, copy: also} }

// Write never fails: a full disk must not stop a machine.
func (c *console) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = append(c.last, b...)
	c.last = clip.Console(c.last)
	c.record(b)
	if c.copy != nil {
		c.line = append(c.line, b...)
		c.copyLines(len(c.line) >= maxLine)
	}
	return len(b), nil
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
		b, c.size = c.last, len(c.last)
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
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.copy != nil {
		c.copyLines(true)
	}
	if c.file != nil {
		_ = c.file.Close()
		c.file = nil
	}
}
