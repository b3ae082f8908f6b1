// Command release makes the commit that the tags of a release point to, and serves it as a
// module proxy would, without a network:
//
//	release commit -dir DIR -proxy DIR -modcache DIR
//	               in a work tree: no module replaces another of this repository any more,
//	               and each names the sums of those that it requires; the proxy gets each module
//	release tags   the tags to push
//	release vulns  PROGRAM: what govulncheck found, as JSON on standard input
//
// Go lets a program be installed by its version only if its module has no replace
// directives. On the main branch they serve build, test and tidy alike.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

const repository = "github.com/nstance-go/nstance"

// unreleased are modules that no other module imports.
var unreleased = []string{"tools", "integration", "examples"}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	f := flag.NewFlagSet("release", flag.ContinueOnError)
	dir := f.String("dir", ".", "work tree, with nothing uncommitted")
	proxy := f.String("proxy", "", "directory to write the module proxy into")
	modcache := f.String("modcache", "", "module cache to use: another release of the same version must not be in it")
	if len(args) == 0 {
		return errors.New("name a command: commit, tags or vulns")
	}
	if err := f.Parse(args[1:]); err != nil {
		return err
	}
	version, err := software(*dir)
	if err != nil {
		return err
	}
	modules, err := find(*dir)
	if err != nil {
		return err
	}
	switch args[0] {
	case "vulns":
		return vulnerabilities(os.Stdin, f.Arg(0))
	case "tags":
		for _, m := range modules {
			fmt.Println(path.Join(m.below, version))
		}
		return nil
	case "commit":
		if *proxy == "" || *modcache == "" {
			return errors.New("-proxy, -modcache: name directories")
		}
		return commit(*dir, *proxy, *modcache, version, modules)
	}
	return fmt.Errorf("%q is no command: use commit, tags or vulns", args[0])
}

// vulnerabilities reads what govulncheck found in a program, as JSON. It fails for what a module
// is called for. Go's own library is that of whoever builds the program: what is mended in a later
// release of Go is printed.
func vulnerabilities(in io.Reader, program string) error {
	called, standard := map[string]bool{}, map[string]bool{}
	for d := json.NewDecoder(in); ; {
		var m struct {
			Finding *struct {
				OSV   string `json:"osv"`
				Fixed string `json:"fixed_version"`
				Trace []struct{ Module, Function string }
			}
		}
		err := d.Decode(&m)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if m.Finding == nil || len(m.Finding.Trace) == 0 || m.Finding.Trace[0].Function == "" {
			continue // it is not called
		}
		if module := m.Finding.Trace[0].Module; module == "stdlib" {
			standard[m.Finding.OSV+" is mended in Go "+strings.TrimPrefix(m.Finding.Fixed, "v")] = true
		} else {
			called[fmt.Sprintf("%s of %s, mended in %s", m.Finding.OSV, module, m.Finding.Fixed)] = true
		}
	}
	for _, text := range slices.Sorted(maps.Keys(standard)) {
		fmt.Printf("%s: %s\n", program, text)
	}
	if len(called) > 0 {
		return fmt.Errorf("%s calls %s", program, strings.Join(slices.Sorted(maps.Keys(called)), "; "))
	}
	fmt.Printf("%s: no known weakness of a module is called\n", program)
	return nil
}

// software returns the version that the code gives itself.
func software(dir string) (string, error) {
	data, err := os.ReadFile(filepath.Join(dir, "internal/version/version.go"))
	if err != nil {
		return "", err
	}
	found := regexp.MustCompile(`(?m)^const Software = "(.*)"$`).FindSubmatch(data)
	if found == nil {
		return "", errors.New("internal/version/version.go names no version")
	}
	return "v" + string(found[1]), nil
}

// A released module is one that gets a tag.
type released struct {
	below    string // its folder, below the repository; empty: the root
	requires []string
	file     *modfile.File
}

func (m *released) path() string { return path.Join(repository, m.below) }

// find returns the modules of the repository that are released, each after those that it
// requires.
func find(dir string) ([]*released, error) {
	byPath := map[string]*released{}
	err := filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		below, err := filepath.Rel(dir, file)
		if err != nil {
			return err
		}
		if d.IsDir() && (below != "." && strings.HasPrefix(d.Name(), ".") || slices.Contains(unreleased, below)) {
			return filepath.SkipDir
		}
		if d.Name() != "go.mod" {
			return nil
		}
		m, err := read(file, filepath.ToSlash(filepath.Dir(below)))
		if err == nil {
			byPath[m.path()] = m
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return inOrder(byPath)
}

func read(file, below string) (*released, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	parsed, err := modfile.Parse(file, data, nil)
	if err != nil {
		return nil, err
	}
	m := &released{file: parsed, below: strings.TrimPrefix(below, ".")}
	if parsed.Module.Mod.Path != m.path() {
		return nil, fmt.Errorf("%s: the module is %s, not %s", file, parsed.Module.Mod.Path, m.path())
	}
	for _, r := range parsed.Require {
		if own(r.Mod.Path) {
			m.requires = append(m.requires, r.Mod.Path)
		}
	}
	return m, nil
}

func own(modulePath string) bool {
	return modulePath == repository || strings.HasPrefix(modulePath, repository+"/")
}

func inOrder(byPath map[string]*released) (out []*released, err error) {
	done := map[string]bool{}
	var names []string
	for name := range byPath {
		names = append(names, name)
	}
	slices.Sort(names)
	for len(out) < len(names) {
		before := len(out)
		for _, name := range names {
			m := byPath[name]
			if !done[name] && !slices.ContainsFunc(m.requires, func(r string) bool { return !done[r] }) {
				out, done[name] = append(out, m), true
			}
		}
		if len(out) == before {
			return nil, errors.New("modules require each other, or one that is not released")
		}
	}
	return out, nil
}

// commit rewrites the modules, one after the other, so that each finds those that it
// requires in the proxy, and commits that.
func commit(dir, proxy, modcache, version string, modules []*released) error {
	if err := git(dir, "commit", "--allow-empty", "-q", "-m", "release "+version+": require the modules of this version, replace none"); err != nil {
		return err
	}
	for _, m := range modules {
		if err := m.pin(dir, proxy, modcache, version); err != nil {
			return fmt.Errorf("%s: %w", m.path(), err)
		}
		if err := git(dir, "commit", "-q", "--amend", "--allow-empty", "--no-edit", "-a"); err != nil {
			return err
		}
		if err := m.publish(dir, proxy, version); err != nil {
			return fmt.Errorf("%s: %w", m.path(), err)
		}
	}
	return nil
}

// pin removes the module's replace directives for modules of this repository, and has it
// require this version of them.
func (m *released) pin(dir, proxy, modcache, version string) error {
	for _, r := range slices.Clone(m.file.Replace) {
		if !own(r.Old.Path) {
			return fmt.Errorf("it replaces %s: a program with a replace directive cannot be installed by its version", r.Old.Path)
		}
		if err := m.file.DropReplace(r.Old.Path, r.Old.Version); err != nil {
			return err
		}
	}
	for _, required := range m.requires {
		if err := m.file.AddRequire(required, version); err != nil {
			return err
		}
	}
	m.file.Cleanup()
	data, err := m.file.Format()
	if err != nil {
		return err
	}
	folder := filepath.Join(dir, filepath.FromSlash(m.below))
	if err := os.WriteFile(filepath.Join(folder, "go.mod"), data, 0o644); err != nil { //nolint:gosec // as git has it
		return err
	}
	tidy := exec.Command("go", "mod", "tidy")
	tidy.Dir = folder
	tidy.Env = append(os.Environ(), "GOMODCACHE="+modcache,
		"GOPROXY=file://"+proxy+",file://"+goEnv("GOMODCACHE")+"/cache/download,"+goEnv("GOPROXY"),
		"GONOSUMDB="+repository+","+repository+"/*", "GOFLAGS=-mod=mod")
	tidy.Stdout, tidy.Stderr = os.Stderr, os.Stderr
	return tidy.Run()
}

// publish adds the module, as it is committed, to the proxy.
func (m *released) publish(dir, proxy, version string) error {
	folder := filepath.Join(proxy, filepath.FromSlash(m.path()), "@v")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	mod, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(m.below), "go.mod"))
	if err != nil {
		return err
	}
	info := fmt.Sprintf(`{"Version":%q,"Time":%q}`, version, time.Now().UTC().Format(time.RFC3339))
	for name, data := range map[string][]byte{version + ".info": []byte(info), version + ".mod": mod, "list": []byte(version + "\n")} {
		if err := os.WriteFile(filepath.Join(folder, name), data, 0o644); err != nil { //nolint:gosec // a proxy is public
			return err
		}
	}
	out, err := os.Create(filepath.Join(folder, version+".zip"))
	if err != nil {
		return err
	}
	return errors.Join(zip.CreateFromVCS(out, module.Version{Path: m.path(), Version: version}, dir, "HEAD", m.below), out.Close())
}

func git(dir string, args ...string) error {
	cmd := exec.Command("git", append([]string{"-C", dir}, args...)...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	return cmd.Run()
}

func goEnv(name string) string {
	out, err := exec.Command("go", "env", name).Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}
