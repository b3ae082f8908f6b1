package config

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/provider"
	"github.com/tailscale/hujson"
)

const (
	maxBytes  = 4 << 20 // of a configuration
	maxDepth  = 100     // of nested objects and lists: the parser recurses
	maxKey    = 64      // bytes of a key or value within a message
	maxErrors = 20      // reported at once
)

// Load reads and parses the file at path. It fails with NotFound or Denied when
// the file cannot be read for that reason, else as Parse does.
func Load(path string, kinds ...provider.Kind) (*Config, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, FileError(err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err != nil {
		return nil, FileError(err)
	}
	return Parse(path, data, kinds...)
}

// FileError classifies why a configuration file could not be read.
func FileError(err error) error {
	e := &nstance.Error{Code: nstance.Unavailable, Field: "configuration", Msg: err.Error(), Err: err}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		e.Code, e.Remedy = nstance.NotFound, "name a file that exists"
	case errors.Is(err, fs.ErrPermission):
		e.Code, e.Remedy = nstance.Denied, "let this program's user read it"
	case errors.Is(err, syscall.EISDIR):
		e.Code, e.Remedy = nstance.Invalid, "name a file, not a folder"
	}
	return e
}

// Parse reads a configuration; name is what its errors call it. Its error wraps
// up to 20 of type *nstance.Error, in the order of the file, each with code
// Invalid, the path of the setting in Field, file, line and column in Msg, and
// what to do about it in Remedy. Columns count bytes, from 1.
//
// With kinds, the provider is one of them, and checks its own settings and, with
// samples, what machines would be made from. Without, what only a provider
// understands is not checked.
func Parse(name string, data []byte, kinds ...provider.Kind) (*Config, error) {
	return ParseContext(context.Background(), name, data, kinds...)
}

// ParseContext is Parse, which renders every template of every group. It fails
// with Unavailable once ctx has ended.
func ParseContext(ctx context.Context, name string, data []byte, kinds ...provider.Kind) (*Config, error) {
	if err := provider.Kinds(kinds).Validate(); err != nil { // a mistake of the program, not of the file
		return nil, err
	}
	d := &decoder{ctx: ctx, name: name, src: data, at: map[string]int{}, said: map[string]bool{}, kinds: kinds}
	c := &Config{}
	if root, ok := d.syntax(); ok {
		d.unique("", root)
		setDefaults(reflect.ValueOf(c).Elem())
		d.value("", root, reflect.ValueOf(c).Elem(), "")
		// What the settings mean together is worth a look only once each is
		// right by itself: otherwise one slip is reported many times.
		if len(d.problems) == 0 {
			d.check(c)
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, nstance.Errorf(nstance.Unavailable, "%s: reading ended: %w", name, err)
	}
	if err := d.err(); err != nil {
		return nil, err
	}
	digest := sha256.Sum256(data)
	c.digest = hex.EncodeToString(digest[:])
	return c, nil
}

// syntax returns the file as a tree.
func (d *decoder) syntax() (*hujson.Value, bool) {
	if len(d.src) > maxBytes {
		d.fail("", 0, "split the shard", "has more than %d bytes", maxBytes)
		return nil, false
	}
	if !utf8.Valid(d.src) {
		d.fail("", len(d.src)-len(invalidTail(d.src)), "save the file as UTF-8", "is not UTF-8")
		return nil, false
	}
	if offset := tooDeep(d.src); offset >= 0 {
		d.fail("", offset, "flatten it", "more than %d levels of nesting", maxDepth)
		return nil, false
	}
	v, err := hujson.Parse(append(d.src[:len(d.src):len(d.src)], '\n')) // a comment may end the file
	if err != nil {
		d.broken(err)
		return nil, false
	}
	return &v, true
}

func invalidTail(b []byte) []byte {
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		if r == utf8.RuneError && n == 1 {
			break
		}
		b = b[n:]
	}
	return b
}

// broken reports a syntax error, taking the position out of the parser's text.
func (d *decoder) broken(err error) {
	var line, column int
	text := err.Error()
	if n, _ := fmt.Sscanf(text, "hujson: line %d, column %d:", &line, &column); n == 2 {
		_, text, _ = strings.Cut(text, ": ")
		_, text, _ = strings.Cut(text, ": ")
	}
	offset := 0
	for range line - 1 {
		offset += bytes.IndexByte(d.src[offset:], '\n') + 1
	}
	d.fail("", min(offset+max(column-1, 0), len(d.src)), "correct the JSON", "%s", clip.Text(text, 200))
}

// tooDeep returns the offset at which nesting passes maxDepth, or -1. It knows
// just enough of the grammar to skip strings and comments; what it misjudges is
// not valid anyway.
func tooDeep(src []byte) int {
	depth := 0
	for i := 0; i < len(src); i++ {
		switch c := src[i]; {
		case c == '"':
			for i++; i < len(src) && src[i] != '"'; i++ {
				if src[i] == '\\' {
					i++
				}
			}
		case c == '/' && i+1 < len(src) && src[i+1] == '/':
			for i < len(src) && src[i] != '\n' {
				i++
			}
		case c == '/' && i+1 < len(src) && src[i+1] == '*':
			for i += 3; i < len(src) && (src[i-1] != '*' || src[i] != '/'); i++ {
			}
		case c == '{' || c == '[':
			if depth++; depth > maxDepth {
				return i
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return -1
}

// err returns everything that is wrong, in the order of the file.
func (d *decoder) err() error {
	if len(d.problems) == 0 {
		return nil
	}
	slices.SortStableFunc(d.problems, func(a, b problem) int { return cmp.Compare(a.offset, b.offset) })
	errs := make([]error, 0, maxErrors+1)
	for _, p := range d.problems[:min(len(d.problems), maxErrors)] {
		p.err.Msg = fmt.Sprintf("%s:%s: %s", d.name, position(d.src[:p.offset]), p.err.Msg)
		errs = append(errs, p.err)
	}
	if more := len(d.problems) - maxErrors; more > 0 {
		errs = append(errs, nstance.Errorf(nstance.Invalid, "%s: %d more errors", d.name, more))
	}
	return errors.Join(errs...)
}

// position returns line:column of what follows before.
func position(before []byte) string {
	line := 1 + bytes.Count(before, []byte("\n"))
	return fmt.Sprintf("%d:%d", line, len(before)-bytes.LastIndexByte(before, '\n'))
}
