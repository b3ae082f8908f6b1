package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nstance-go/nstance"
)

// section makes commands that only hold other commands report that when they are
// named alone, or with a command that they do not have.
func section(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		section(sub)
	}
	if cmd.Runnable() || !cmd.HasSubCommands() {
		return
	}
	cmd.Args, cmd.SuggestionsMinimumDistance = cobra.ArbitraryArgs, 2
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			cmd.SetOut(cmd.ErrOrStderr())
			_ = cmd.Help() // the error below says enough if it cannot be shown
			return misused(cmd, errors.New("name a command"))
		}
		err := fmt.Errorf("unknown command %q for %q", args[0], cmd.CommandPath())
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			alike := max(0, slices.IndexFunc(near, func(s string) bool { return s[0] == args[0][0] })) // the first letter is seldom wrong
			err = fmt.Errorf("%w, did you mean %q?", err, near[alike])
		}
		return misused(cmd, err)
	}
}

// misused returns err, about the command line, with where to look it up.
func misused(cmd *cobra.Command, err error) error {
	if err == nil || nstance.CodeOf(err) == nstance.Invalid {
		return err
	}
	msg, _, _ := strings.Cut(err.Error(), "\n")
	return &nstance.Error{Code: nstance.Invalid, Msg: msg, Remedy: "see " + cmd.CommandPath() + " --help", Err: err}
}

// arguments demands exactly the named arguments.
func arguments(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < len(names):
			return misused(cmd, fmt.Errorf("argument %s is missing", names[len(args)]))
		case len(args) > len(names):
			return misused(cmd, fmt.Errorf("unexpected argument %q", args[len(names)]))
		}
		return nil
	}
}

// instanceArgument demands exactly one instance ID, or how one begins.
func instanceArgument(cmd *cobra.Command, args []string) error {
	if err := arguments("ID")(cmd, args); err != nil {
		return err
	}
	if isPrefix(args[0]) {
		return nil
	}
	_, err := nstance.ParseInstanceID(args[0])
	return err
}

// The shortest beginning of an ID: the kind and some of the time.
const (
	shortestPrefix = 4
	idLength       = 29
)

func isPrefix(text string) bool {
	return len(text) >= shortestPrefix && len(text) < idLength && strings.Trim(text, "0123456789abcdefghijklmnopqrstuvwxyz") == ""
}

// instanceID returns the one instance of the shard whose ID is text, or begins so.
func (c *client) instanceID(ctx context.Context, text string) (nstance.InstanceID, error) {
	if !isPrefix(text) {
		return nstance.InstanceID(text), nil
	}
	list, err := c.instances(ctx, "", "")
	if err != nil {
		return "", err
	}
	var found []string
	for _, i := range list {
		if strings.HasPrefix(i.GetId(), text) {
			found = append(found, i.GetId())
		}
	}
	switch len(found) {
	case 0:
		return "", fault(nstance.NotFound, nil, "see nstance-admin instance list; one that is gone needs its whole ID",
			fmt.Sprintf("no instance whose ID begins with %s", text))
	case 1:
		return nstance.InstanceID(found[0]), nil
	}
	return "", nstance.FieldError("ID", "use a longer prefix", "%d instances begin with %s, such as %s and %s", len(found), text, found[0], found[1])
}

// instanceArguments demands one instance ID or more.
func instanceArguments(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return arguments("ID")(cmd, args)
	}
	for _, id := range args {
		if _, err := nstance.ParseInstanceID(id); err != nil {
			return err
		}
	}
	return nil
}

// oneOf is a flag that takes one of a few words.
type oneOf struct {
	value *string
	words []string
}

// completions completes a flag's value with words.
func completions[T ~string](words []T) cobra.CompletionFunc {
	var out []cobra.Completion
	for _, w := range words {
		out = append(out, string(w))
	}
	return cobra.FixedCompletions(out, cobra.ShellCompDirectiveNoFileComp)
}

// choice adds such a flag; the first word is the default.
func choice(cmd *cobra.Command, value *string, name, shorthand, usage string, words ...string) {
	*value = words[0]
	usage += ": " + strings.Join(words, ", ")
	cmd.Flags().VarP(&oneOf{value, words}, name, shorthand, usage)
	// It fails only for a flag that does not exist, or twice for one.
	_ = cmd.RegisterFlagCompletionFunc(name, completions(words))
}

// String implements pflag.Value.
func (o *oneOf) String() string { return *o.value }

// Type implements pflag.Value.
func (o *oneOf) Type() string { return "word" }

// Set implements pflag.Value.
func (o *oneOf) Set(s string) error {
	for _, w := range o.words {
		if s == w {
			*o.value = s
			return nil
		}
	}
	return fmt.Errorf("use %s", strings.Join(o.words, ", "))
}
