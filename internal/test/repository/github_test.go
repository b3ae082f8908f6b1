package repository_test

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDependabotCoversEveryModule: no module's dependencies stay as they are because its
// folder is not in the list.
func TestDependabotCoversEveryModule(t *testing.T) {
	config := read(t, ".github/dependabot.yml")
	for ecosystem, file := range map[string]string{"gomod": "go.mod", "npm": "package-lock.json"} {
		var want []string
		for _, below := range versioned(t, file) {
			want = append(want, path.Join("/", path.Dir(below)))
		}
		require.NotEmpty(t, want)
		require.ElementsMatch(t, want, updated(t, config, ecosystem), "the folders of %s in .github/dependabot.yml", ecosystem)
	}
}

// updated returns the folders that dependabot.yml lists for an ecosystem.
func updated(t *testing.T, config, ecosystem string) (out []string) {
	t.Helper()
	_, text, found := strings.Cut(config, "- package-ecosystem: "+ecosystem+"\n    directories:\n")
	require.True(t, found, ecosystem)
	for line := range strings.Lines(text) {
		folder, ok := strings.CutPrefix(line, "      - ")
		if !ok {
			break
		}
		out = append(out, strings.TrimSpace(folder))
	}
	return out
}

// versioned returns the files of a name, without those that make has installed.
func versioned(t *testing.T, name string) (out []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(".", func(file string, d os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".bin" || d.Name() == ".git" || d.Name() == "dist" || d.Name() == "node_modules" || d.Name() == "testdata"):
			return filepath.SkipDir
		case d.Name() == name:
			out = append(out, filepath.ToSlash(file))
		}
		return nil
	}))
	return out
}

// TestWorkflowsUseTargets: what GitHub runs are targets that the Makefile has, and between
// them those that the gate runs.
func TestWorkflowsUseTargets(t *testing.T) {
	makefile := read(t, "Makefile")
	called := targets(read(t, ".github/workflows/test.yml") + read(t, ".github/workflows/release.yml"))
	require.NotEmpty(t, called)
	for _, target := range called {
		require.Regexp(t, `(?m)^`+regexp.QuoteMeta(target)+`:`, makefile, "a workflow calls a target that is not there")
	}
	gate := targets(read(t, ".ci/run"))
	require.Greater(t, len(gate), 15)
	for _, target := range gate {
		if target == "tools" { // what other targets build, in one go
			continue
		}
		require.True(t, slices.Contains(called, target), "the gate calls %s, and no workflow does", target)
	}
}

// targets returns the targets of each call of make in a text, without its comments.
func targets(text string) (out []string) {
	text = regexp.MustCompile(`(?m)^\s*#.*$`).ReplaceAllString(text, "")
	for _, m := range regexp.MustCompile(`\bmake((?: [a-z][a-z0-9-]*\b(?:=\S+)?| [A-Z]+=\S+)+)`).FindAllStringSubmatch(text, -1) {
		for _, word := range strings.Fields(m[1]) {
			if !strings.Contains(word, "=") {
				out = append(out, word)
			}
		}
	}
	return out
}
