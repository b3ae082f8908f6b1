// Package render executes the templates of user data, files and arguments
// within a budget: of steps, of bytes and of time.
//
// text/template has none, so Parse puts a counting call into the body of every
// range and of every template, and the functions that build texts are replaced
// by ones whose results are bounded. A rendering ends with its context, too.
package render

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"text/template"
	"time"

	"github.com/nstance-go/nstance"
)

// The budget of one rendering.
const (
	MaxSteps  = 50_000  // parts of templates executed, each as often as it is
	MaxOutput = 1 << 20 // bytes written: 1 MiB
	MaxTime   = 5 * time.Second

	maxDepth  = 64        // templates within templates
	maxResult = 256 << 10 // bytes that one function returns
	maxBuilt  = 4 << 20   // bytes that all functions return together
)

// ErrLimit is what errors about an exhausted budget wrap.
var ErrLimit = errors.New("the budget of a rendering is exhausted")

func limited(format string, args ...any) error {
	return &nstance.Error{Code: nstance.Invalid, Msg: fmt.Sprintf(format, args...), Remedy: "make the template do less", Err: ErrLimit}
}

// A Template is safe for concurrent use.
type Template struct{ parsed *template.Template }

// Parse returns the template in text. A key that a map lacks is an error when it
// is rendered. The errors are those of text/template, and name it "text".
func Parse(text string) (*Template, error) { return parseText(text, refuseMethodCalls) }

// ParseWithMethods is Parse for data that has methods with arguments, as times have. Their
// results count like those of functions.
func ParseWithMethods(text string) (*Template, error) { return parseText(text, boundMethodCalls) }

func parseText(text string, prepare func(*template.Template) error) (*Template, error) {
	t, err := template.New("text").Funcs(functions(&run{})).Option("missingkey=error").Parse(text)
	if err != nil {
		return nil, err
	}
	if err := prepare(t); err != nil {
		return nil, err
	}
	for _, each := range t.Templates() {
		if each.Tree != nil {
			count(each.Root, each.Name() != t.Name())
		}
	}
	return &Template{t}, nil
}

// Functions returns the names of all functions that templates may call, sorted.
func Functions() []string {
	names := slices.Collect(maps.Keys(functions(&run{})))
	names = append(names, "and", "or", "not", "len", "index", "slice", "eq", "ne", "lt", "le", "gt", "ge", "call")
	slices.Sort(names)
	return names
}

// Render executes the template. It fails with Invalid and wraps ErrLimit when a
// budget is exhausted, and with Unavailable when ctx or MaxTime ends first.
// Other errors are those of text/template.
func (t *Template) Render(ctx context.Context, data any) (_ []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, MaxTime)
	defer cancel()
	r := &run{ctx: ctx}
	clone, err := t.parsed.Clone()
	if err != nil {
		return nil, err
	}
	err = clone.Funcs(functions(r)).Funcs(r.counters()).Execute(r, data)
	switch {
	case r.exhausted != nil:
		return nil, r.exhausted
	case err != nil:
		return nil, err
	}
	return r.out.Bytes(), nil
}

// A run is one rendering, and what it has used.
type run struct {
	ctx       context.Context
	out       bytes.Buffer
	steps     int
	depth     int
	built     int
	exhausted error // why it ends
}

// counters are the functions that count puts into templates.
func (r *run) counters() template.FuncMap {
	return template.FuncMap{
		stepFunction:  r.step,
		enterFunction: r.enter,
		leaveFunction: func() string { r.depth--; return "" },

		methodFunction: r.methodResult,
	}
}

func (r *run) enter(parts int) (string, error) {
	if r.depth++; r.depth > maxDepth {
		return "", r.end(limited("more than %d templates call each other", maxDepth))
	}
	return r.step(parts)
}

func (r *run) step(parts int) (string, error) {
	if r.steps += parts; r.steps > MaxSteps {
		return "", r.end(limited("takes more than %d steps", MaxSteps))
	}
	return "", r.alive()
}

func (r *run) alive() error {
	if err := r.ctx.Err(); err != nil {
		return r.end(nstance.Errorf(nstance.Unavailable, "rendering ended: %w", err))
	}
	return nil
}

func (r *run) end(err error) error {
	r.exhausted = err
	return err
}

// Write implements io.Writer.
func (r *run) Write(p []byte) (int, error) {
	if r.out.Len()+len(p) > MaxOutput {
		return 0, r.end(limited("has more than 1 MiB"))
	}
	return r.out.Write(p)
}

// result accounts for what a function returns.
func (r *run) result(s string) (string, error) {
	if err := r.spend(len(s)); err != nil {
		return "", err
	}
	return s, nil
}

// methodResult accounts for what a method returns.
func (r *run) methodResult(v any) (any, error) {
	switch of := reflect.ValueOf(v); of.Kind() {
	case reflect.String, reflect.Slice:
		return v, r.spend(of.Len())
	}
	return v, nil
}

// spend accounts for bytes that a function returns.
func (r *run) spend(size int) error {
	if r.built += size; size > maxResult {
		return r.end(limited("a function returns more than %d bytes", maxResult))
	}
	if r.built > maxBuilt {
		return r.end(limited("functions return more than %d bytes", maxBuilt))
	}
	return nil
}
