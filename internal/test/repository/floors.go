package repository

import (
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A Floor says which packages a package may reach, directly or not.
type Floor struct {
	Package string   // relative to the module, as ./storage
	May     []string // packages of the repository, below [Repository]; a trailing /... means all below
	Ban     []string // import paths by prefix
	Reason  string
}

// RequireFloors checks the floors of packages of the core, from its folder. Every package may reach those of
// all besides the root, but the root itself.
func RequireFloors(t *testing.T, floors []Floor, all []string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-f", "{{.ImportPath}} {{join .Deps \" \"}}", "./...").Output()
	require.NoError(t, err)
	deps := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		deps[fields[0]] = fields[1:]
	}
	for _, f := range floors {
		t.Run(f.Package, func(t *testing.T) {
			reached, known := deps[path.Join(Repository, f.Package)]
			require.True(t, known, "there is no package %s", f.Package)
			for _, dep := range reached {
				own, isOwn := strings.CutPrefix(dep, Repository+"/")
				for _, banned := range f.Ban {
					require.False(t, !isOwn && dep != Repository && strings.HasPrefix(dep, banned), "%s reaches %s: %s", f.Package, dep, f.Reason)
				}
				if isOwn {
					require.True(t, permitted(own, f.May) || f.Package != "." && permitted(own, all), "%s reaches %s, which is not below it: %s", f.Package, own, f.Reason)
				}
			}
		})
	}
}

// RequireNoTesting keeps test suites out of what is shipped.
func RequireNoTesting(t *testing.T, programs string) {
	t.Helper()
	for _, dep := range Deps(t, programs) {
		require.NotContains(t, dep, "stretchr/testify")
		require.NotEqual(t, "testing", dep)
	}
}

// Deps returns what the packages that a pattern of the module matches are linked with.
func Deps(t *testing.T, pattern string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", pattern).Output()
	require.NoError(t, err)
	return strings.Fields(string(out))
}

func permitted(pkg string, may []string) bool {
	return slices.ContainsFunc(may, func(m string) bool {
		below, all := strings.CutSuffix(m, "/...")
		return all && strings.HasPrefix(pkg, below+"/") || pkg == m
	})
}
