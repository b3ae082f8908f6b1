// Package flagtables renders the flags of programs as tables for docs/flags.md, for a
// test in the module of each program. Its functions may be called concurrently, but not
// for the same command or set of flags.
package flagtables

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// many is the number of commands from which on a table does not name them.
const many = 15

// Flags renders a set of flags. Hidden ones are left out.
func Flags(set *pflag.FlagSet) string {
	var out strings.Builder
	out.WriteString("| flag | default | meaning |\n|---|---|---|\n")
	set.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			fmt.Fprintf(&out, "| %s |\n", cells(f))
		}
	})
	return out.String()
}

// A Command is a *cobra.Command: not all programs that use this package are linked with cobra.
type Command[C any] interface {
	Name() string
	LocalFlags() *pflag.FlagSet
	Commands() []C
	IsAvailableCommand() bool
}

// Commands renders the flags of root and of all commands below it: in one row those of
// several commands that are the same. Hidden commands and flags are left out, and --help.
// The commands of a flag are all, many, or listed.
func Commands[C Command[C]](root C) string {
	commands := map[string][]string{} // of each flag, by its cells
	var order []string
	collect(root, "", func(command string, f *pflag.Flag) {
		row := cells(f)
		if commands[row] == nil {
			order = append(order, row)
		}
		commands[row] = append(commands[row], command)
	})
	// Those of most commands first; the others as their first commands come in --help.
	slices.SortStableFunc(order, func(a, b string) int { return rank(commands[b]) - rank(commands[a]) })
	var out strings.Builder
	out.WriteString("| flag | default | meaning | commands |\n|---|---|---|---|\n")
	for _, row := range order {
		of := strings.Join(commands[row], ", ")
		if len(commands[row]) >= many {
			of = "many"
		}
		fmt.Fprintf(&out, "| %s | %s |\n", row, of)
	}
	return out.String()
}

// rank is the number of a flag's commands, where it decides about its place.
func rank(commands []string) int {
	switch {
	case commands[0] == allCommands:
		return 1 << 16
	case len(commands) >= many:
		return len(commands)
	}
	return 0
}

// allCommands stands for the commands of a flag of the root.
const allCommands = "all"

// collect calls add for each flag of cmd and of what is below it. path is empty for the root.
func collect[C Command[C]](cmd C, path string, add func(command string, f *pflag.Flag)) {
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		switch {
		case f.Hidden || f.Name == "help":
		case path == "":
			add(allCommands, f)
		default:
			add("`"+path+"`", f)
		}
	})
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			collect(sub, strings.TrimSpace(path+" "+sub.Name()), add)
		}
	}
}

// cells returns a flag, its default and its meaning as cells of a table.
func cells(f *pflag.Flag) string {
	value, usage := pflag.UnquoteUsage(f)
	name := "`--" + strings.TrimSpace(f.Name+" "+value) + "`"
	if f.Shorthand != "" {
		name += ", `-" + f.Shorthand + "`"
	}
	def := ""
	if !slices.Contains([]string{"", "0", "0s", "false", "[]"}, f.DefValue) {
		def = "`" + f.DefValue + "`"
	}
	return name + " | " + def + " | " + Text(usage)
}

// Text returns a text as it stands in a cell of a table.
func Text(s string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", "*", `\*`, "\n", " ").Replace(s)
}
