// Package exact makes seeds replay exactly. It writes an overlay for go build
// in which Go's own scheduler makes its random choices from a seed and never
// asks the real clock:
//
//	go run ./internal/test/sim/exact/cmd -o DIR
//	go build -overlay DIR/overlay.json ...
//
// The files come from the Go installation that builds; each change to them is
// a line or two, and a line that is not found is an error that names it, as
// after an upgrade of Go. Nothing is installed or changed in place.
//
// A program built so reads the seed of its next testing/synctest bubble from
// the environment variable SIM_SCHEDULE. It must run with GOMAXPROCS=1,
// GOGC=off and GODEBUG=asyncpreemptoff=1, take crypto/rand from a seed, and may
// collect garbage only when nothing in the bubble can run.
package exact

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Write writes the overlay of a module into dir and returns the path of the
// file that go build wants. The module's own files in replaced, by path within
// it, are built from the given paths instead.
func Write(dir, module string, replaced map[string]string) (string, error) {
	root, err := goroot()
	if err != nil {
		return "", err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return "", err
	}
	if module, err = filepath.Abs(module); err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	replace := map[string]string{}
	for path, by := range replaced {
		replace[filepath.Join(module, filepath.FromSlash(path))] = by
	}
	for _, f := range files {
		base := filepath.Join(root, "src")
		if f.own {
			base = module
		}
		from, to := filepath.Join(base, filepath.FromSlash(f.path)), filepath.Join(dir, strings.ReplaceAll(f.path, "/", "_"))
		if err := f.patch(from, to); err != nil {
			return "", err
		}
		replace[from] = to
	}
	data, err := json.MarshalIndent(map[string]any{"Replace": replace}, "", "\t")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	return path, keep(path, string(data))
}

func goroot() (string, error) {
	out, err := exec.Command("go", "env", "GOROOT").Output()
	return strings.TrimSpace(string(out)), err
}

// patch writes the file with every change made.
func (f file) patch(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	text := string(data)
	for _, c := range f.changes {
		if n := strings.Count(text, c.old); n != 1 {
			return fmt.Errorf("%s: found %d times instead of once:\n%s\nlook at what this version of Go does there, and change internal/test/sim/exact/changes.go", from, n, c.old)
		}
		text = strings.Replace(text, c.old, c.new, 1)
	}
	return keep(to, text+f.more)
}

// keep writes a file unless it is already so: an unchanged one costs no build.
func keep(path, text string) error {
	switch was, err := os.ReadFile(path); {
	case err == nil && string(was) == text:
		return nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	return os.WriteFile(path, []byte(text), 0o644)
}
