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
	"time"

	"github.com/spf13/cobra"

	"github.com/nstance-go/nstance/storage"
)

// A program is one run of the command.
type program struct {
	stdin  io.Reader
	stdout io.Writer
	stderr *console
	getenv func(string) string
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
	p := &program{stdin: stdin, stdout: stdout, stderr: &console{w: stderr}, getenv: getenv, open: open}
	root := p.root()
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	if !p.begun {
		err = misused(root, err)
	}
	p.fail(formOf(cmd, args), err)
	return exitCode(err)
}

// Command returns the commands and flags of nstance-admin, to describe them.
func Command() *cobra.Command {
	p := &program{stdin: strings.NewReader(""), stdout: io.Discard, stderr: &console{w: io.Discard}, getenv: func(string) string { return "" }}
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
		p.clusterCommand(), p.loginCommand(), p.statusCommand(), p.attentionCommand(), p.topCommand(), p.groupCommand(), p.instanceCommand(), p.drainCommand(),
		p.interruptCommand(), p.interruptionCommand(), p.costCommand(), p.eventsCommand(), p.configCommand(), p.orphanCommand(), p.operatorCommand(), p.recordCommand(),
		p.auditCommand(), p.debugCommand(), p.planCommand(), p.freezeCommand(), p.thawCommand(), p.poolCommand(), p.warmPoolCommand(), p.secretCommand(), p.backupCommand(), p.restoreCommand(), p.versionCommand(),
	)
	root.InitDefaultCompletionCmd()
	section(root)
	p.complete(root)
	return root
}

// now is the time that people see ages by and certificates are judged by.
func (p *program) now() time.Time { return time.Now() }
