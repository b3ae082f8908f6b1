package admin

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nstance-go/nstance"
)

// maxAnswer bounds what is read of an answer, in bytes.
const maxAnswer = 64

// yesFlag adds the flag that answers every question.
func yesFlag(cmd *cobra.Command, yes *bool) {
	cmd.Flags().BoolVarP(yes, "yes", "y", false, "skip the confirmation")
}

func dryRunFlag(cmd *cobra.Command, dryRun *bool) {
	cmd.Flags().BoolVar(dryRun, "dry-run", false, "check, and print what would happen, without a change")
}

// confirm asks before something is destroyed. Without a terminal it fails with
// Invalid: a script must use --yes.
func confirm(cmd *cobra.Command, yes bool, what string) error {
	if yes {
		return nil
	}
	if !isTerminal(cmd.InOrStdin()) {
		return unasked(what)
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s. Continue? [y/N] ", printable(what))
	answer, err := readAnswer(cmd.Context(), cmd.InOrStdin())
	switch {
	case errors.Is(err, io.EOF) && answer == "": // such as /dev/null, which looks like a terminal
		stderrOf(cmd).note("")
		return unasked(what)
	case cmd.Context().Err() != nil:
		stderrOf(cmd).note("")
		return errors.New("interrupted, nothing was changed")
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return errors.New("cancelled, nothing was changed")
}

func unasked(what string) error {
	return fault(nstance.Invalid, nil, "repeat it with --yes", fmt.Sprintf("%s: this needs a confirmation, and standard input is not a terminal", what))
}

// isTerminal reports whether stream, an input or output, may be a terminal.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// readAnswer reads one line. A read from a terminal cannot be interrupted, so after ctx
// has ended it goes on until the process ends.
func readAnswer(ctx context.Context, stdin io.Reader) (string, error) {
	type reading struct {
		line string
		err  error
	}
	got := make(chan reading, 1)
	go func() {
		line, err := bufio.NewReader(io.LimitReader(stdin, maxAnswer)).ReadString('\n')
		got <- reading{line, err}
	}()
	select {
	case r := <-got:
		return r.line, r.err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}
