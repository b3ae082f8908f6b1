// Package servercmd is the command lines nstance-server and nstance-dev, each as
// one library call. What a program is linked with, it passes: this package links
// no cloud.
package servercmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/admin"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/dev"
	"github.com/nstance-go/nstance/internal/logqueue"
	"github.com/nstance-go/nstance/internal/version"
	"github.com/nstance-go/nstance/journal"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/secret"
)

// The exit codes. docs/programs.md lists them for all programs.
const (
	exitOK     = 0
	exitFailed = 1 // it could not be done: see the message
	exitUsage  = 2 // the command line or the configuration is wrong or not there: repeating is useless
)

// Parts are what a program is linked with: what its configuration can name.
type Parts struct {
	Kinds provider.Kinds

	// Storage opens the store that a URL names. Nil: storage.Open, which knows directories
	// and memory.
	Storage func(ctx context.Context, rawURL string) (storage.Store, error)

	// Secrets opens a source of secrets by its URL. Nil: storage, variables and directories.
	Secrets func(ctx context.Context, rawURL string) (secret.Source, error)

	// Journal opens the journal that is kept in a file, and makes it where there is none.
	// Nil: events are kept in memory.
	Journal func(path string, log *slog.Logger) (Journal, error)

	// Clouds are those whose test servers single-machine mode can use beside
	// provider local, by the names of their providers.
	Clouds map[string]func() *dev.Cloud
}

// A Journal is one that has to be closed.
type Journal interface {
	journal.Journal
	io.Closer
}

// Machine is the command by which this program is a machine of provider local.
func Machine() []string {
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	return []string{self, "machine"}
}

// A program is one run of the command.
type program struct {
	name           string
	parts          Parts
	stdout, stderr io.Writer
	getenv         func(string) string
	level          string
	format         string
	begun          bool // the command line was understood
}

// errReported is the error of a command that has printed what is wrong with configurations.
var errReported = errors.New("reported")

// Main runs nstance-server with args, which leave out the program's name, and
// returns its exit code. Errors are printed to stderr, once. It returns soon
// after ctx has ended, when nothing that it started runs any more.
func Main(ctx context.Context, parts Parts, args []string, stdout, stderr io.Writer, getenv func(string) string) int {
	p := &program{name: "nstance-server", parts: parts, stdout: stdout, stderr: stderr, getenv: getenv}
	return p.execute(ctx, p.root(), args)
}

// Command returns the commands and flags of nstance-server, to describe them.
func Command(parts Parts) *cobra.Command {
	return (&program{name: "nstance-server", parts: parts}).root()
}

// Dev runs nstance-dev, as Main does nstance-server: single-machine mode by
// itself.
func Dev(ctx context.Context, parts Parts, args []string, stdout, stderr io.Writer, getenv func(string) string) int {
	p := &program{name: "nstance-dev", parts: parts, stdout: stdout, stderr: stderr, getenv: getenv}
	return p.execute(ctx, p.devRoot(), args)
}

func (p *program) execute(ctx context.Context, root *cobra.Command, args []string) int {
	root.SetArgs(args)
	root.SetOut(p.stdout)
	root.SetErr(p.stderr)
	root.SilenceErrors, root.SilenceUsage = true, true
	root.PersistentPreRun = func(*cobra.Command, []string) { p.begun = true }
	root.CompletionOptions.HiddenDefaultCmd = true
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errReported):
		return exitUsage
	}
	if code, ok := errors.AsType[exited](err); ok {
		return int(code)
	}
	fmt.Fprintf(p.stderr, "%s: %s\n", p.name, printable(err))
	if !p.begun {
		fmt.Fprintf(p.stderr, "see %s --help\n", p.name)
		return exitUsage
	}
	return exitCode(err)
}

func exitCode(err error) int {
	if _, failed := errors.AsType[*dev.Failure](err); failed {
		return exitFailed
	}
	switch nstance.CodeOf(err) {
	case nstance.Invalid, nstance.NotFound: // of a configuration
		return exitUsage
	}
	return exitFailed
}

func (p *program) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "nstance-server",
		Short: "Keep the groups of one shard at their size",
		Long: `nstance-server keeps groups of machines at their size on capacity that can
disappear at any second. To try it on this machine without any set-up:
nstance-server dev.

Exit codes: 0 done or stopped by a signal, 1 error, 2 invalid command line or
configuration, or none.`,
	}
	root.AddCommand(p.runCommand(), p.devCommand(), p.validateCommand(), p.versionCommand(), p.machineCommand(), p.drainDemoCommand())
	p.logFlags(root)
	return root
}

// devRoot is dev without a word in front of it, and what dev starts itself.
func (p *program) devRoot() *cobra.Command {
	root := p.devCommand()
	root.Use = p.name
	run := p.runCommand()
	run.Hidden = true
	root.AddCommand(run, p.versionCommand(), p.machineCommand(), p.drainDemoCommand(), p.adminCommand())
	p.logFlags(root)
	return root
}

// logFlags adds the flags of the log to every command.
func (p *program) logFlags(root *cobra.Command) {
	root.PersistentFlags().StringVar(&p.level, "log-level", "", "debug, info, warn or error (default info; for dev warn)")
	root.PersistentFlags().StringVar(&p.format, "log-format", "text", "text or json")
}

// adminCommand is nstance-admin, so that this program alone suffices for a trial.
func (p *program) adminCommand() *cobra.Command {
	return &cobra.Command{
		Use: "admin ...", Short: "Administer the shard, as nstance-admin does", DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			defer logqueue.Libraries(admin.LibraryLog(args, p.stderr))()
			if code := admin.Main(cmd.Context(), storage.Open, args, cmd.InOrStdin(), p.stdout, p.stderr, p.getenv); code != exitOK {
				return exited(code)
			}
			return nil
		},
	}
}

// exited is the exit code of a command that has printed what is wrong.
type exited int

func (e exited) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// logger writes logs to stderr, from the level that the flag names, else def. Lines wait
// in a queue, so that a reader of stderr that hangs delays nothing; the caller closes it.
func (p *program) logger(def slog.Level) (*slog.Logger, *logqueue.Queue, error) {
	level := def
	if p.level != "" {
		if err := level.UnmarshalText([]byte(p.level)); err != nil {
			return nil, nil, nstance.FieldError("--log-level", "use debug, info, warn or error", "%.64q is no level", p.level)
		}
	}
	handler, err := logqueue.Handler("--log-format", p.format, level)
	if err != nil {
		return nil, nil, err
	}
	log, lines := logqueue.Logger(p.stderr, 0, handler)
	return log, lines, nil
}

// printed prints the error that ends a command as the last line of its log, and returns
// the exit code as an error.
func (p *program) printed(log *slog.Logger, lines *logqueue.Queue, err error) error {
	if p.format == "json" {
		log.Error(p.name+" ends", "err", err)
		return exited(exitCode(err))
	}
	fmt.Fprintf(lines, "%s: %s\n", p.name, printable(err))
	return exited(exitCode(err))
}

// printable returns an error's text without what a terminal would obey: it may quote
// others.
func printable(err error) string { return clip.Text(err.Error(), math.MaxInt) }

func (p *program) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(p.stdout, p.name, versionText())
			return err
		},
	}
}

// versionText is the software's version, and what the toolchain knows about this
// build.
func versionText() string {
	text := version.Software
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				text += " " + s.Value[:min(12, len(s.Value))]
			}
		}
	}
	return text + " " + runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH
}
