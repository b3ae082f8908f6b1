package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"runtime"
	"strings"

	"github.com/nstance-go/nstance/agent"
	"github.com/nstance-go/nstance/internal/version"
)

// A command is the parsed command line.
type command struct {
	help, version bool
	getenv        func(string) string // with the flags in front of the environment
}

// parse makes a flag of every variable, so that the two cannot differ.
func parse(args []string, getenv func(string) string) (command, error) {
	var c command
	set := map[string]string{}
	fs := flag.NewFlagSet("nstance-agent", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.BoolVar(&c.version, "version", false, "")
	for _, v := range agent.Variables() {
		keep := func(value string) error { set[v.Name] = value; return nil }
		if isSwitch(v) {
			fs.BoolFunc(flagOf(v), "", keep)
		} else {
			fs.Func(flagOf(v), "", keep)
		}
	}
	err := fs.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		c.help = true
	case err != nil:
		return command{}, err
	case fs.NArg() > 0:
		return command{}, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	c.getenv = func(name string) string {
		if value, ok := set[name]; ok {
			return value
		}
		return getenv(name)
	}
	return c, nil
}

// flagOf returns instance-id for NSTANCE_INSTANCE_ID.
func flagOf(v agent.Variable) string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(v.Name, "NSTANCE_"), "_", "-"))
}

func isSwitch(v agent.Variable) bool { return flagOf(v) == "debug" }

func usage() string {
	var b strings.Builder
	b.WriteString(`nstance-agent is the agent of the machine it runs on: it registers with the server
of its shard, and reports health and the cloud's notices.

Usage: nstance-agent [flags]

Every flag overrides an environment variable:

`)
	for _, v := range agent.Variables() {
		value := " VALUE"
		if isSwitch(v) {
			value = ""
		}
		fmt.Fprintf(&b, "  --%s%s\n      %s\n      %s\n", flagOf(v), value, v.Name, v.Help)
	}
	b.WriteString(`
  --version   print the version and exit
  --help      print this and exit

The identity directory must hold nonce.jwt and ca.crt from the machine's user
data. The drain hook is run without a shell, with NSTANCE_DRAIN_DEADLINE,
NSTANCE_DRAIN_SECONDS, NSTANCE_DRAIN_REASON and NSTANCE_DRAIN_EVENT in its
environment.

Exit codes: 0 stopped by a signal, 1 error, 2 invalid flags or environment. Servers
that do not answer, or refuse, do not end the agent: see GET /healthz at
--health-addr.
`)
	return b.String()
}

// versionText is the software's version, and the toolchain's.
func versionText() string { return version.Software + " " + runtime.Version() }
