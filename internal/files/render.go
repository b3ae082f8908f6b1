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
	"github.com/nstance-go/nstance/internal/filelimit"
	"github.com/nstance-go/nstance/internal/render"
)

// render renders one template of the definition.
func (k *Kit) render(ctx context.Context, text string, v *view) (string, error) {
	out, err := k.texts.Text(ctx, text, v)
	if err == nil || errors.Is(err, render.ErrLimit) || errors.Is(err, nstance.Unavailable) {
		return out, err
	}
	return "", nstance.Errorf(nstance.Invalid, "%w: correct the template, or define the variable", err)
}

// errTooLarge refuses a content that no machine would take.
var errTooLarge error = &nstance.Error{Code: nstance.Invalid, Msg: "has more than 1 MiB: split it"}

// limited is a buffer of at most one file's size.
type limited struct{ bytes.Buffer }

// Write implements io.Writer.
func (l *limited) Write(p []byte) (int, error) {
	if l.Len()+len(p) > filelimit.Size {
		return 0, errTooLarge
	}
	return l.Buffer.Write(p)
}

// env renders variables, a line each, sorted.
func (k *Kit) env(ctx context.Context, vars map[string]string, v *view) ([]byte, error) {
	var out limited
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		value, err := k.render(ctx, vars[name], v)
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
func (k *Kit) json(ctx context.Context, raw json.RawMessage, v *view) ([]byte, error) {
	if len(raw) == 0 {
		return []byte("{}\n"), nil
	}
	tree, err := render.JSON("", raw, func(_, text string) (string, error) { return k.render(ctx, text, v) })
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
