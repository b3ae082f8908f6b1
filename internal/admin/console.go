package admin

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/nstance-go/nstance/internal/clip"
)

// slowAfter is the duration after which a slow call is reported.
const slowAfter = time.Second

// A console is standard error of a command.
type console struct{ writer func() io.Writer }

// stderrOf returns what the messages of a command go to.
func stderrOf(cmd *cobra.Command) *console { return &console{cmd.ErrOrStderr} }

// A lockedWriter writes one message at a time.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

// Write implements io.Writer.
func (l *lockedWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

// note writes one message.
func (c *console) note(format string, args ...any) {
	lines := strings.Split(strings.TrimRight(fmt.Sprintf(format, args...), "\n"), "\n")
	for i, line := range lines {
		lines[i] = printable(line)
	}
	fmt.Fprintln(c.writer(), strings.Join(lines, "\n"))
}

// slow runs fn, and prints what it waits for after slowAfter.
func (c *console) slow(what string, fn func() error) error {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		t := time.NewTimer(slowAfter)
		defer t.Stop()
		select {
		case <-t.C:
			c.note("%s ...", what)
		case <-done:
		}
	})
	defer wg.Wait()
	defer close(done)
	return fn()
}

// printable removes control characters from text that came from machines: they could
// rewrite the terminal's screen.
func printable(s string) string { return clip.Line(s) }
