package servercmd

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/config"
)

func (p *program) validateCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "validate FILE...",
		Short: "Check configurations without using them",
		Long: `Check configurations without using them and without calling any cloud. For each
file it prints ok, or all errors with their positions.

Exit codes: 0 all are valid, 2 not all are, or the command line is invalid.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, files []string) error {
			var bad error
			for _, file := range files {
				if _, err := config.Load(file, p.parts.Kinds...); err != nil {
					bad = errReported
					p.report(file, err)
				} else {
					fmt.Fprintf(p.stdout, "%s: ok\n", file)
				}
			}
			return bad
		},
	}
}

// report prints every error that is joined in err, its place first, as editors
// expect it.
func (p *program) report(file string, err error) {
	all := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok { // as Parse joined them
		all = joined.Unwrap()
	}
	for _, err := range all {
		fmt.Fprintln(p.stderr, placed(file, err))
	}
}

func placed(file string, err error) string {
	e, ok := errors.AsType[*nstance.Error](err)
	if !ok {
		return file + ": " + err.Error()
	}
	rest, ok := strings.CutPrefix(e.Msg, file+":")
	if !ok {
		return file + ": " + err.Error()
	}
	place, msg, ok := strings.Cut(rest, ": ")
	if !ok {
		return err.Error()
	}
	return file + ":" + place + ": " + (&nstance.Error{Field: e.Field, Msg: msg, Remedy: e.Remedy}).Error()
}
