package render

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/templates"
)

// ErrParse is what errors about a text that is no template wrap.
var ErrParse = errors.New("the template cannot be parsed")

// A Renderer renders the texts of one definition and parses each of them once.
// The zero Renderer is ready for use. It is safe for concurrent use.
type Renderer struct {
	mu     sync.Mutex
	parsed map[string]*Template // by text
}

// Text renders a text within the budget of one rendering. It fails like Render,
// and wraps ErrParse when text is no template.
func (r *Renderer) Text(ctx context.Context, text string, data any) (string, error) {
	if !strings.Contains(text, "{{") {
		return text, nil
	}
	t, err := r.template(text)
	if err != nil {
		return "", err
	}
	out, err := t.Render(ctx, data)
	return string(out), err
}

// JSON renders every string within raw by text, which is told where in raw the
// string is, behind path. It fails with Invalid when raw is no JSON.
func JSON(path string, raw json.RawMessage, text func(path, text string) (string, error)) (any, error) {
	var v any
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return nil, nstance.FieldError(path, "correct the template", "is no JSON: %v", err)
	}
	return templates.MapStrings(path, v, text)
}

func (r *Renderer) template(text string) (*Template, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t, ok := r.parsed[text]; ok {
		return t, nil
	}
	t, err := Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrParse, err)
	}
	if r.parsed == nil {
		r.parsed = map[string]*Template{}
	}
	r.parsed[text] = t
	return t, nil
}
