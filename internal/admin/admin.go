// Package admin is nstance-admin, the command line for people and scripts, as
// one library call. docs/nstance-admin.md is its reference.
//
// What it prints with --output json is defined by the exported types here:
// their field names are a contract.
package admin

import (
	"context"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nstance-go/nstance/storage"
)

// An environment returns the value of an environment variable.
type environment func(name string) string

// A program is one run of the command.
type program struct {
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
	env    environment
	open   openStore
	begun  bool // the command line was parsed
}

// Main runs nstance-admin with args, without the program's name, and returns its
// exit code. Results go to stdout, everything else to stderr. It returns soon
// after ctx has ended, which is no failure for a command that watches until then. open opens
// the cluster's storage; nil: storage.Open, which knows directories and memory.
func Main(ctx context.Context, open func(ctx context.Context, rawURL string) (storage.Store, error), args []string, stdin io.Reader, stdout, stderr io.Writer, getenv func(string) string) int {
	if open == nil {
		open = storage.Open
	}
	p := &program{stdin: stdin, stdout: stdout, stderr: &lockedWriter{w: stderr}, env: getenv, open: open}
	root := p.root()
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	if !p.begun {
		err = misused(cmd, err)
	}
	printFailure(root, formOf(cmd, args), err)
	return exitCode(err)
}

// Command returns the commands and flags of nstance-admin, to describe them.
func Command() *cobra.Command {
	p := &program{stdin: strings.NewReader(""), stdout: io.Discard, stderr: io.Discard, env: func(string) string { return "" }}
	return p.root()
}

const help = `Administer the shards of an Nstance cluster.

Results go to standard output, as tables or with -o json or yaml, everything else
to standard error.

Exit codes: 0 done; 1 failed, or not confirmed; 2 the command line or the request is
wrong; 3 not found; 4 not logged in, or not
permitted; 5 no answer in time, repeat later; 6 it exists already, or is in
another state than the command needs.`

func (p *program) root() *cobra.Command {
	env, open := p.env, p.open
	root := &cobra.Command{
		Use:              "nstance-admin",
		Short:            "Administer the shards of an Nstance cluster",
		Long:             help,
		SilenceErrors:    true,
		SilenceUsage:     true,
		PersistentPreRun: func(*cobra.Command, []string) { p.begun = true },
	}
	root.SetIn(p.stdin)
	root.SetOut(p.stdout) // before the completion command, which keeps it
	root.SetErr(p.stderr)
	root.SetFlagErrorFunc(misused)
	root.AddCommand(
		clusterCommand(env, open), loginCommand(env), statusCommand(env), attentionCommand(env), topCommand(env), groupCommand(env), instanceCommand(env), drainCommand(env),
		interruptCommand(env), interruptionCommand(env), costCommand(env), eventsCommand(env), configCommand(env, open), orphanCommand(env), operatorCommand(env), recordCommand(env, open),
		auditCommand(env), debugCommand(env), planCommand(env), freezeCommand(env), thawCommand(env), poolCommand(env), warmPoolCommand(), secretCommand(env, open), backupCommand(open), restoreCommand(open), versionCommand(),
	)
	root.InitDefaultCompletionCmd()
	section(root)
	complete(root, env, open)
	return root
}
