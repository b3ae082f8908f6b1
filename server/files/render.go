package files

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/render"
)

// A renderer renders the templates of one definition, each parsed once. After
// it is made it is safe for concurrent use.
type renderer struct {
	parsed map[string]*render.Template // by text
}

func newRenderer() *renderer { return &renderer{parsed: map[string]*render.Template{}} }

// parse prepares a text. What is wrong with it is said when it is rendered.
func (r *renderer) parse(text string) {
	if !strings.Contains(text, "{{") {
		return
	}
	if t, err := render.Parse(text); err == nil {
		r.parsed[text] = t
	}
}

func (r *renderer) render(ctx context.Context, text string, v *view) (string, error) {
	if !strings.Contains(text, "{{") {
		return text, nil
	}
	t, ok := r.parsed[text]
	if !ok {
		return "", nstance.Errorf(nstance.Invalid, "the template cannot be parsed: correct it")
	}
	out, err := t.Render(ctx, v)
	switch {
	case errors.Is(err, render.ErrLimit), errors.Is(err, nstance.Unavailable):
		return "", err
	case err != nil:
		return "", nstance.Errorf(nstance.Invalid, "%w: correct the template, or define the variable", err)
	}
	return string(out), nil
}

// errTooLarge refuses a content that no machine would take.
var errTooLarge error = &nstance.Error{Code: nstance.Invalid, Msg: "has more than 1 MiB: split it"}

// limited is a buffer of at most one file's size.
type limited struct{ bytes.Buffer }

// Write implements io.Writer.
func (l *limited) Write(p []byte) (int, error) {
	if l.Len()+len(p) > nstance.MaxFileSize {
		return 0, errTooLarge
	}
	return l.Buffer.Write(p)
}

// env renders variables, a line each, sorted.
func (r *renderer) env(ctx context.Context, vars map[string]string, v *view) ([]byte, error) {
	var out limited
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		value, err := r.render(ctx, vars[name], v)
		if err != nil {
			return nil, err
		}
		if strings.ContainsRune(value, 0) {
			return nil, nstance.Errorf(nstance.Invalid, "variable %s holds a zero byte, which no environment can", name)
		}
		if _, err := out.Write([]byte(name + "=" + quote(value) + "\n")); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), nil
}

// plain are the characters that need no quotes wherever a file of variables is
// read.
const plain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./:@%+,-"

// quote spells a value so that a POSIX shell (2.2, "Quoting"), systemd's
// EnvironmentFile= (systemd.exec(5)) and the usual readers of .env files find
// the same in it. Single quotes keep everything as it is; where there is one in
// the value, double quotes with backslashes do.
func quote(value string) string {
	switch {
	case strings.Trim(value, plain) == "":
		return value
	case !strings.Contains(value, "'"):
		return "'" + value + "'"
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "$", `\$`, "`", "\\`").Replace(value) + `"`
}

// json renders every string within raw, and writes it for people.
func (r *renderer) json(ctx context.Context, raw json.RawMessage, v *view) ([]byte, error) {
	if len(raw) == 0 {
		return []byte("{}\n"), nil
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var tree any
	if err := d.Decode(&tree); err != nil {
		return nil, nstance.Errorf(nstance.Invalid, "is no JSON: %w", err)
	}
	tree, err := r.within(ctx, tree, v)
	if err != nil {
		return nil, err
	}
	var out limited
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(tree); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func (r *renderer) within(ctx context.Context, tree any, v *view) (any, error) {
	var err error
	switch t := tree.(type) {
	case string:
		return r.render(ctx, t, v)
	case map[string]any:
		for k := range t {
			if t[k], err = r.within(ctx, t[k], v); err != nil {
				return nil, err
			}
		}
	case []any:
		for i := range t {
			if t[i], err = r.within(ctx, t[i], v); err != nil {
				return nil, err
			}
		}
	}
	return tree, nil
}

// texts yields every template of a definition.
func texts(d nstance.Definition, yield func(string)) {
	for _, f := range d.Files {
		yield(f.Content)
		for _, value := range f.Env {
			yield(value)
		}
		var tree any
		if json.Unmarshal(f.JSON, &tree) == nil {
			walk(tree, yield)
		}
	}
	for _, c := range d.Certificates {
		yield(c.CommonName)
		for _, name := range c.DNSNames {
			yield(name)
		}
	}
}

func walk(tree any, yield func(string)) {
	switch t := tree.(type) {
	case string:
		yield(t)
	case map[string]any:
		for _, v := range t {
			walk(v, yield)
		}
	case []any:
		for _, v := range t {
			walk(v, yield)
		}
	}
}
