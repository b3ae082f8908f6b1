package repository_test

import (
	"cmp"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/eventtype"
)

// TestLinks checks that every relative link in README and docs leads to a file,
// and every anchor to a heading.
func TestLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^()\s]+)\)`)
	for _, doc := range documents(t) {
		text := read(t, doc)
		for _, m := range link.FindAllStringSubmatch(withoutCode(text), -1) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			path, anchor, _ := strings.Cut(m[1], "#")
			target := doc
			if path != "" {
				target = filepath.Join(filepath.Dir(doc), filepath.FromSlash(path))
				require.FileExists(t, existing(target), "%s links to %s", doc, m[1])
			}
			if anchor != "" {
				require.Contains(t, headings(read(t, target)), anchor, "%s links to %s", doc, m[1])
			}
		}
	}
}

// TestSymbolicLinks: every link of the tree leads to something.
func TestSymbolicLinks(t *testing.T) {
	found := 0
	require.NoError(t, filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() && (entry.Name() == ".bin" || entry.Name() == ".git") {
			return cmp.Or(err, fs.SkipDir)
		}
		if entry.Type() != fs.ModeSymlink {
			return nil
		}
		found++
		_, err = os.Stat(path)
		return err
	}))
	require.Greater(t, found, 5)
}

// TestNamedTests: a test that a document links to is in the file to which the link leads.
func TestNamedTests(t *testing.T) {
	found := 0
	for _, doc := range documents(t) {
		for _, m := range regexp.MustCompile("\\[`(Test\\w+)`\\]\\(([^()]+)\\)").FindAllStringSubmatch(read(t, doc), -1) {
			found++
			require.Contains(t, read(t, filepath.Join(filepath.Dir(doc), filepath.FromSlash(m[2]))), "\nfunc "+m[1]+"(t *testing.T)", doc)
		}
	}
	require.Greater(t, found, 40)
}

// TestNamedFiles: a file that a document names exists, and declares the names that follow it.
func TestNamedFiles(t *testing.T) {
	found := 0
	for _, doc := range documents(t) {
		for _, m := range regexp.MustCompile("`([\\w/]+/\\w+\\.go)`((?:(?:,| and) `\\w+`)*)").FindAllStringSubmatch(read(t, doc), -1) {
			text := read(t, filepath.FromSlash(m[1]))
			for _, name := range regexp.MustCompile(`\w{4,}`).FindAllString(m[2], -1) {
				found++
				declared := regexp.MustCompile(`(?m)^(func (\(.*\) )?|type |var |const )` + name + `\b`).MatchString(text)
				require.True(t, declared, "%s: %s declares no %s", doc, m[1], name)
			}
		}
	}
	require.Greater(t, found, 5)
}

// existing returns path, or a file within it if it is a directory.
func existing(path string) string {
	if found, err := filepath.Glob(filepath.Join(path, "*.go")); err == nil && len(found) > 0 {
		return found[0]
	}
	if found, err := filepath.Glob(filepath.Join(path, "*", "*.go")); err == nil && len(found) > 0 {
		return found[0]
	}
	return path
}

// headings returns the anchors of a document's headings.
func headings(text string) []string {
	var out []string
	for line := range strings.Lines(withoutCode(text)) {
		if title, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && strings.HasPrefix(line, "#") {
			title = strings.ToLower(strings.TrimSpace(title))
			title = regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(title, "")
			out = append(out, strings.ReplaceAll(title, " ", "-"))
		}
	}
	return out
}

var fence = regexp.MustCompile("(?ms)^```(\\w*)\n(.*?)^```$")

func withoutCode(text string) string { return fence.ReplaceAllString(text, "") }

// TestSnippets checks that each line of Go in README and docs/embedding.md is
// part of a file of this module, and so compiles.
func TestSnippets(t *testing.T) {
	var code []string
	for _, path := range files(t, ".go") {
		code = append(code, strings.Join(lines(read(t, path)), "\n"))
	}
	all := strings.Join(code, "\n\x00\n")
	for _, doc := range []string{"README.md", "docs/embedding.md"} {
		found := 0
		for _, m := range fence.FindAllStringSubmatch(read(t, doc), -1) {
			if m[1] == "go" {
				found++
				require.True(t, strings.Contains(all, strings.Join(lines(m[2]), "\n")), "%s: no file holds\n%s", doc, m[2])
			}
		}
		require.GreaterOrEqual(t, found, 5, doc)
	}
}

// lines returns text without indentation, blank lines and comments.
func lines(text string) []string {
	var out []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "//") {
			out = append(out, line)
		}
	}
	return out
}

// withoutExample are packages that need no Example, and why.
var withoutExample = map[string]string{
	"internal/dev":        "it starts processes: cmd/nstance-dev shows it",
	"api/v1":              "it is generated",
	"kubernetes/kubetest": "it starts servers that have to be built first: the tests of kubernetes/operator show it",
}

// TestPackages checks that every package has a package comment, and every public
// one an Example.
func TestPackages(t *testing.T) {
	packages := folders(t)
	public := publicFolders(t)
	for dir, paths := range packages {
		name, commented, example := survey(t, paths)
		require.True(t, commented, "package in %s has no comment", dir)
		if name == "main" || !slices.Contains(public, dir) || withoutExample[dir] != "" {
			continue
		}
		require.True(t, example, "no Example in the tests of %s", dir)
	}
}

// folders returns the Go files of each folder, of all modules.
func folders(t *testing.T) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	for _, path := range files(t, ".go") {
		dir := filepath.ToSlash(filepath.Dir(path))
		out[dir] = append(out[dir], path)
	}
	return out
}

// publicFolders returns those of packages that other programs import.
func publicFolders(t *testing.T) (out []string) {
	t.Helper()
	for dir := range folders(t) {
		if strings.Contains("/"+dir+"/", "/internal/") || strings.HasPrefix(dir+"/", "integration/") {
			continue
		}
		out = append(out, dir)
	}
	return out
}

// survey returns a package's name, and whether any of its files has a package
// comment and any of its tests an Example.
func survey(t *testing.T, paths []string) (name string, commented, example bool) {
	t.Helper()
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			example = example || regexp.MustCompile(`(?m)^func Example`).MatchString(read(t, path))
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.PackageClauseOnly|parser.ParseComments)
		require.NoError(t, err)
		name, commented = file.Name.Name, commented || file.Doc != nil
	}
	return name, commented, example
}

// TestEvents checks that docs/events.md explains every event type, and no
// other.
func TestEvents(t *testing.T) {
	var want, got []string
	for _, m := range regexp.MustCompile(`(?m)^\t\w+ +(?:nstance\.)?EventType = "(\w+)"`).FindAllStringSubmatch(read(t, "event.go")+read(t, "internal/eventtype/eventtype.go"), -1) {
		want = append(want, m[1])
	}
	_, table, found := strings.Cut(read(t, "docs/events.md"), "\n| type | meaning |\n|---|---|\n")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "\n\n")
	for line := range strings.Lines(table) {
		types, says, _ := strings.Cut(strings.TrimPrefix(line, "| "), " | ")
		require.NotEmpty(t, strings.Trim(says, " |\n"), types)
		for _, m := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(types, -1) {
			got = append(got, m[1])
		}
	}
	require.Greater(t, len(want), 50)
	var known []string
	for _, typ := range eventtype.All() {
		known = append(known, string(typ))
	}
	require.ElementsMatch(t, want, known, "All must name all")
	require.ElementsMatch(t, want, got)
}

// documents returns the paths of README and the documents.
func documents(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, path := range files(t, ".md") {
		if !strings.Contains(path, "/") || strings.HasPrefix(path, "docs/") || strings.HasPrefix(path, "examples/") {
			out = append(out, path)
		}
	}
	require.Contains(t, out, "README.md")
	return out
}

// files returns this module's files of a kind.
func files(t *testing.T, ext string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "tools" || d.Name() == "dist"):
			return filepath.SkipDir
		case !d.IsDir() && strings.HasSuffix(d.Name(), ext):
			out = append(out, filepath.ToSlash(path))
		}
		return nil
	})
	require.NoError(t, err)
	return out
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(data)
}

// TestPlantedBugs: docs/testing.md lists each planted bug with the first line of its
// patch.
func TestPlantedBugs(t *testing.T) {
	table, err := os.ReadFile("docs/testing.md")
	require.NoError(t, err)
	patches, err := filepath.Glob("internal/test/sim/planted/bugs/*.patch")
	require.NoError(t, err)
	require.NotEmpty(t, patches)
	for _, path := range patches {
		patch, err := os.ReadFile(path)
		require.NoError(t, err)
		what, _, _ := strings.Cut(string(patch), "\n")
		row := "| `" + strings.TrimSuffix(filepath.Base(path), ".patch") + "`: " + what + " |"
		require.Contains(t, string(table), row)
	}
}
