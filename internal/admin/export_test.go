package admin

import (
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// Root returns the whole tree of commands.
func Root() *cobra.Command {
	p := &program{stdin: strings.NewReader(""), stdout: io.Discard, stderr: &console{w: io.Discard}, getenv: func(string) string { return "" }}
	return p.root()
}
