package admin

import (
	"errors"
	"io"
	"log/slog"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nstance-go/nstance"
)

// The exit codes. Scripts rely on them: docs/programs.md lists them for all programs.
const (
	exitOK          = 0
	exitFailed      = 1 // anything else
	exitUsage       = 2 // the command line, or what it asks for, is wrong: repeating is useless
	exitNotFound    = 3 // there is no such group or instance
	exitDenied      = 4 // not logged in, or not permitted
	exitUnavailable = 5 // no answer in time: repeat later
	exitConflict    = 6 // it exists, or changed meanwhile: look, then decide again
)

func exitCode(err error) int {
	switch nstance.CodeOf(err) {
	case "":
		return exitOK
	case nstance.Invalid:
		return exitUsage
	case nstance.NotFound:
		return exitNotFound
	case nstance.Denied:
		return exitDenied
	case nstance.Unavailable, nstance.Throttled:
		return exitUnavailable
	case nstance.Conflict:
		return exitConflict
	}
	return exitFailed
}

// A Failure is the last line on standard error of a failed command with JSON or YAML
// output: one JSON object, which is YAML too.
type Failure struct {
	Error    string       `json:"error"` // what is wrong, without field and remedy
	Code     nstance.Code `json:"code"`
	Field    string       `json:"field,omitempty"`  // the input that is wrong
	Remedy   string       `json:"remedy,omitempty"` // what to do
	ExitCode int          `json:"exit_code"`
}

// printFailure prints why a command failed.
func printFailure(cmd *cobra.Command, form string, err error) {
	if form != formJSON && form != formYAML {
		stderrOf(cmd).note("error: %v", err)
		return
	}
	f := Failure{Error: err.Error(), Code: nstance.CodeOf(err), ExitCode: exitCode(err)}
	if e, ok := errors.AsType[*nstance.Error](err); ok {
		f.Field, f.Remedy = e.Field, e.Remedy
		f.Error = strings.Replace(f.Error, e.Error(), e.Msg, 1)
	}
	line, err := marshal(f, "")
	if err != nil {
		stderrOf(cmd).note("error: %v", err)
		return
	}
	_, _ = cmd.ErrOrStderr().Write(line)
}

// formOf returns the form of output that the command line names, as far as it could
// be parsed.
func formOf(cmd *cobra.Command, args []string) string {
	flag := cmd.Flags().Lookup("output")
	if flag == nil {
		return ""
	}
	words, ok := flag.Value.(*oneOf)
	switch {
	case !ok || !slices.Contains(words.words, formJSON): // it is a file
		return ""
	case flag.Changed:
		return flag.Value.String()
	}
	return askedForm(args) // an earlier flag may be wrong
}

// askedForm returns the form of output that words of the command line name; empty: a table.
func askedForm(args []string) string {
	for i, arg := range args {
		for _, form := range []string{formJSON, formYAML} {
			switch arg {
			case "-o" + form, "-o=" + form, "--output=" + form:
				return form
			case "-o", "--output":
				if i+1 < len(args) && args[i+1] == form {
					return form
				}
			}
		}
	}
	return ""
}

// LibraryLog returns what libraries log to while a command line runs: one JSON object a line
// where it asks for JSON or YAML.
func LibraryLog(args []string, stderr io.Writer) *slog.Logger {
	if askedForm(args) == "" {
		return slog.New(slog.NewTextHandler(stderr, nil))
	}
	return slog.New(slog.NewJSONHandler(stderr, nil))
}

// fault returns an error with a remedy.
func fault(code nstance.Code, err error, remedy, msg string) error {
	return &nstance.Error{Code: code, Msg: msg, Remedy: remedy, Err: err}
}
