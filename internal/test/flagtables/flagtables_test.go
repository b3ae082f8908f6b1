package flagtables_test

import (
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/test/flagtables"
)

func TestFlags(t *testing.T) {
	f := pflag.NewFlagSet("program", pflag.ContinueOnError)
	f.StringP("output", "o", "table", "form: a|b, or <c>")
	f.Bool("quiet", false, "print nothing")
	f.Bool("secret", false, "for tests")
	require.NoError(t, f.MarkHidden("secret"))
	require.Equal(t, "| flag | default | meaning |\n|---|---|---|\n"+
		"| `--output string`, `-o` | `table` | form: a\\|b, or &lt;c> |\n"+
		"| `--quiet` |  | print nothing |\n", flagtables.Flags(f))
}

func TestCommands(t *testing.T) {
	root := &cobra.Command{Use: "program"}
	root.PersistentFlags().Int("level", 3, "how much")
	for _, name := range []string{"put", "get", "list"} {
		sub := &cobra.Command{Use: name, Run: func(*cobra.Command, []string) {}}
		if name != "list" {
			sub.Flags().String("file", "", "where it is")
		}
		sub.Hidden = name == "get"
		root.AddCommand(sub)
	}
	group := &cobra.Command{Use: "group"}
	del := &cobra.Command{Use: "delete", Run: func(*cobra.Command, []string) {}}
	del.Flags().String("file", "", "where it is")
	group.AddCommand(del)
	root.AddCommand(group)
	require.Equal(t, "| flag | default | meaning | commands |\n|---|---|---|---|\n"+
		"| `--level int` | `3` | how much | all |\n"+
		"| `--file string` |  | where it is | `group delete`, `put` |\n", flagtables.Commands(root))
}
