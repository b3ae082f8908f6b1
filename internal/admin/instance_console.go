package admin

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
)

func instanceConsoleCommand(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use: "console ID", Short: "Show the end of an instance's console output",
		Long: "Show the end of an instance's console output, at most 64 KiB, if its provider keeps it. Clouds deliver it\n" +
			"minutes late. Control characters are omitted.",
		Args: instanceArgument,
	}
	r, out := newRemote(cmd, env), newOutput(cmd)
	cmd.RunE = r.runInstance(func(c *client, id nstance.InstanceID) error {
		resp, err := c.GetConsoleOutput(cmd.Context(), &apiv1.GetConsoleOutputRequest{Id: string(id)})
		return out.result(document{resp}, err, func(t *table) {
			text := harmless(resp.GetOutput())
			if text == "" {
				t.say("no output yet: clouds deliver it minutes late")
				return
			}
			for line := range strings.Lines(strings.ReplaceAll(text, "\t", "        ")) {
				t.say("%s", strings.TrimSuffix(line, "\n"))
			}
		})
	})
	return cmd
}

// harmless returns text without what a terminal would obey: it was written by a
// machine that may be hostile.
func harmless(output []byte) string {
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || unicode.IsControl(r) && r != '\n' && r != '\t' || unicode.Is(unicode.Bidi_Control, r) {
			return -1
		}
		return r
	}, string(output))
}
