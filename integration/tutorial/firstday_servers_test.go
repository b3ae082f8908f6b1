//go:build servers && linux

package tutorial_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestServersFirstDays runs the commands of each cloud's first day as one shell would, word for
// word, with its configuration as it stands there. The cloud's names lead to its test cloud, and
// the machines run the user data and the agent. See serveWorld.
func TestServersFirstDays(t *testing.T) {
	for cloud, day := range firstDays {
		t.Run(cloud, func(t *testing.T) {
			t.Parallel()
			programs, dir := folders(t)
			require.NoError(t, os.WriteFile(filepath.Join(dir, "script"), []byte(script(t, cloud, day)), 0o600))
			links(t, filepath.Join(dir, "bin"), append([]string{"world", "guest", "systemctl", byHand}, day.cli...))
			root, err := filepath.Abs("../..")
			require.NoError(t, err)
			path := strings.Join([]string{filepath.Join(dir, "bin"), programs, os.Getenv("PATH")}, string(filepath.ListSeparator))
			out, err := inNamespace(t, dir, []string{"PATH=" + path, "HOME=" + dir, repository + "=" + root}, filepath.Join(dir, "bin", "world"), cloud)
			require.NoError(t, err, out)
			t.Log(out)
		})
	}
}

// A firstDay is what the test knows of a page's section beside its commands.
type firstDay struct {
	// open returns the test cloud, as it is after the operator's preparations: those that
	// the page has in words, and those of the cloud's own command where cli names it.
	open func(*world) (*site, error)

	// cli are the cloud's commands that cannot be run here: the site's commands stand in for
	// them.
	cli []string

	// byHand are steps that the page has in words, each with what the operator does.
	byHand map[string]string
}

// repository is a variable that names the folder of this repository, in a world.
const repository = "NSTANCE_TUTORIAL_REPOSITORY"

// byHand is a command of the test only: what the operator does without a command.
const byHand = "by-hand"

// script returns the commands of a first day in the order of the page. The configuration is
// written where it stands.
func script(t *testing.T, cloud string, day firstDay) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/providers/" + cloud + ".md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(text), "\n## First day\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n## ")
	parts := "(?ms)^( *)```(sh|jsonc)\n(.*?)^ *```$"
	for words := range day.byHand {
		require.Contains(t, section, words)
		parts += "|" + regexp.QuoteMeta(words)
	}
	out := "set -euo pipefail\n"
	for _, m := range regexp.MustCompile(parts).FindAllStringSubmatch(section, -1) {
		switch lines := regexp.MustCompile("(?m)^"+m[1]).ReplaceAllString(m[3], ""); m[2] {
		case "sh":
			out += lines
		case "jsonc":
			out += "cat >prod.jsonc <<'END OF FILE'\n" + lines + "END OF FILE\n"
		default:
			out += byHand + " " + day.byHand[m[0]] + "\n"
		}
	}
	return out
}

// links has the test's own program do what is called one of names.
func links(t *testing.T, dir string, names []string) {
	t.Helper()
	require.NoError(t, os.Mkdir(dir, 0o700))
	self, err := os.Executable()
	require.NoError(t, err)
	for _, name := range names {
		require.NoError(t, os.Symlink(self, filepath.Join(dir, name)))
	}
}

// TestMain is also the program of the world, of its machines, and of commands that the world
// answers: by its name.
func TestMain(m *testing.M) {
	name := filepath.Base(os.Args[0])
	if os.Getenv(repository) == "" {
		os.Exit(m.Run())
	}
	switch name {
	case "world":
		exit(serveWorld(os.Args[1]))
	case "guest":
		exit(boot(os.Args[1]))
	case "systemctl":
		exit(enable(os.Args[1:]))
	default:
		exit(askWorld(append([]string{name}, os.Args[1:]...)))
	}
}

func exit(err error) {
	if err != nil {
		os.Stderr.WriteString(filepath.Base(os.Args[0]) + ": " + err.Error() + "\n")
		os.Exit(1)
	}
	os.Exit(0)
}
