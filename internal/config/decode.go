package config

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/confighash"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/nearest"
	"github.com/nstance-go/nstance/internal/validate"
	"github.com/nstance-go/nstance/provider"
	"github.com/tailscale/hujson"
)

// A decoder turns the tree of a file into typed values, and remembers where
// each came from so that later checks can point at it.
type decoder struct {
	ctx      context.Context // ends the rendering of templates
	name     string
	src      []byte
	at       map[string]int // offset of the value at each path
	kinds    provider.Kinds // none: the provider is not known
	problems []problem
	said     map[string]bool // problems that wrong has reported
}

type problem struct {
	offset int
	err    *nstance.Error // without its position
}

// fail takes note of one problem.
func (d *decoder) fail(path string, offset int, remedy, format string, args ...any) {
	e := &nstance.Error{Code: nstance.Invalid, Field: path, Remedy: remedy, Msg: fmt.Sprintf(format, args...)}
	d.problems = append(d.problems, problem{offset, e})
}

// adopt takes note of what another function found wrong with a value.
func (d *decoder) adopt(path string, offset int, err error) {
	if e, ok := errors.AsType[*nstance.Error](err); ok {
		d.fail(path, offset, e.Remedy, "%s", e.Msg)
	} else if err != nil {
		d.fail(path, offset, "", "%s", err)
	}
}

// join extends a path such as groups.default.web, quoting awkward keys.
func join(path, key string) string {
	plain := key != "" && len(key) <= maxKey && strings.Trim(key, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == ""
	switch {
	case !plain:
		return path + "[" + strconv.Quote(clip.Quote(key)) + "]"
	case path == "":
		return key
	}
	return path + "." + key
}

func index(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

// unique reports every key that an object gives twice, anywhere below v.
func (d *decoder) unique(path string, v *hujson.Value) {
	switch t := v.Value.(type) {
	case *hujson.Object:
		seen := make(map[string]bool, len(t.Members))
		for key, m := range members(v) {
			if seen[key] {
				d.fail(join(path, key), m.Name.StartOffset, "keep one of them", "is given twice")
			}
			seen[key] = true
			d.unique(join(path, key), &m.Value)
		}
	case *hujson.Array:
		for i := range t.Elements {
			d.unique(index(path, i), &t.Elements[i])
		}
	}
}

// value decodes v into dst under the rules of its tag.
func (d *decoder) value(path string, v *hujson.Value, dst reflect.Value, tag reflect.StructTag) {
	d.at[path] = v.StartOffset
	before := len(d.problems)
	switch p := dst.Addr().Interface().(type) {
	case *time.Duration:
		*p = d.duration(path, v, tag)
	case *nstance.Count:
		*p = d.count(path, v)
	case *json.RawMessage:
		*p = d.object(path, v, tag)
	default:
		d.kind(path, v, dst, tag)
	}
	if rule := ruleOf(dst.Interface()); rule != nil && len(d.problems) == before {
		d.adopt(path, v.StartOffset, rule(path))
	}
}

// ruleOf returns the function that checks v and names the field, or nil if there is no rule.
func ruleOf(v any) func(field string) error {
	switch v := v.(type) {
	case interface{ Validate(field string) error }:
		return v.Validate
	case nstance.ClusterID:
		return func(field string) error { return validate.Name(field, v) }
	case nstance.ShardID:
		return func(field string) error { return validate.Shard(field, v) }
	case nstance.TenantID:
		return func(field string) error { return validate.Name(field, v) }
	case nstance.GroupID:
		return func(field string) error { return validate.Name(field, v) }
	case nstance.InstanceKind:
		return func(field string) error { return validate.InstanceKind(field, v) }
	}
	return nil
}

func (d *decoder) kind(path string, v *hujson.Value, dst reflect.Value, tag reflect.StructTag) {
	switch dst.Kind() {
	case reflect.Pointer:
		dst.Set(reflect.New(dst.Type().Elem()))
		setDefaults(dst.Elem())
		d.value(path, v, dst.Elem(), tag)
	case reflect.Struct:
		d.fields(path, v, dst)
	case reflect.Map:
		d.entries(path, v, dst)
	case reflect.Slice:
		d.list(path, v, dst, tag)
	case reflect.String:
		dst.SetString(d.text(path, v, tag))
	case reflect.Bool:
		if d.expect(path, v, "true or false", 't', 'f') {
			dst.SetBool(v.Value.Kind() == 't')
		}
	case reflect.Int, reflect.Float64:
		d.number(path, v, dst, tag)
	default:
		panic("config: no decoder for " + dst.Type().String()) // a mistake in config.go
	}
}

// expect reports whether v has one of the given kinds, and the mismatch if not.
func (d *decoder) expect(path string, v *hujson.Value, what string, kinds ...hujson.Kind) bool {
	got := v.Value.Kind()
	if slices.Contains(kinds, got) {
		return true
	}
	name := map[hujson.Kind]string{
		'n': "null", 't': "true", 'f': "false", '"': "a string", '0': "a number", '{': "an object", '[': "a list",
	}[got]
	remedy := "write " + what
	if got == 'n' {
		remedy = "leave the setting out instead"
	}
	d.fail(path, v.StartOffset, remedy, "must be %s, not %s", what, name)
	return false
}

// fields decodes an object into a struct whose defaults are set already.
func (d *decoder) fields(path string, v *hujson.Value, dst reflect.Value) {
	if !d.expect(path, v, "an object", '{') {
		return
	}
	known := settings(dst.Type())
	given := map[string]bool{}
	for name, m := range members(v) {
		given[name] = true
		here := join(path, name)
		i := slices.IndexFunc(known, func(s setting) bool { return s.name == name })
		switch {
		case i < 0:
			d.fail(here, m.Name.StartOffset, nearest.Remedy(name, names(known)), "unknown setting %q", clip.Quote(name))
		case known[i].later():
			d.fail(here, m.Name.StartOffset, "remove it", "is not supported by this version")
		default:
			d.value(here, &m.Value, dst.FieldByIndex(known[i].index), known[i].tag)
		}
	}
	for _, s := range known {
		if s.required() && !given[s.name] {
			d.fail(join(path, s.name), v.StartOffset, "add it", "is missing")
		}
	}
}

// members yields the members of an object.
func members(v *hujson.Value) iter.Seq2[string, *hujson.ObjectMember] {
	return func(yield func(string, *hujson.ObjectMember) bool) {
		object := v.Value.(*hujson.Object)
		for i := range object.Members {
			m := &object.Members[i]
			if !yield(m.Name.Value.(hujson.Literal).String(), m) {
				return
			}
		}
	}
}

// entries decodes an object into a map.
func (d *decoder) entries(path string, v *hujson.Value, dst reflect.Value) {
	if !d.expect(path, v, "an object", '{') {
		return
	}
	dst.Set(reflect.MakeMap(dst.Type()))
	for name, m := range members(v) {
		key := reflect.ValueOf(name).Convert(dst.Type().Key())
		here := join(path, name)
		if rule := ruleOf(key.Interface()); rule != nil {
			d.adopt(here, m.Name.StartOffset, rule(here))
		} else if name == "" {
			d.fail(here, m.Name.StartOffset, "give it a name", "a name is empty")
		}
		elem := reflect.New(dst.Type().Elem()).Elem()
		setDefaults(elem)
		d.value(here, &m.Value, elem, `empty:"true"`)
		dst.SetMapIndex(key, elem)
	}
}

// list decodes a list of words, none empty, none twice.
func (d *decoder) list(path string, v *hujson.Value, dst reflect.Value, tag reflect.StructTag) {
	if !d.expect(path, v, "a list of strings", '[') {
		return
	}
	elements := v.Value.(*hujson.Array).Elements
	if len(elements) == 0 && tag.Get("none") == "" {
		d.fail(path, v.StartOffset, "name at least one, or leave the setting out", "is empty")
	}
	_, command := dst.Interface().(Command) // may repeat itself, and say nothing
	seen := map[string]bool{}
	dst.Set(reflect.MakeSlice(dst.Type(), len(elements), len(elements)))
	for i := range elements {
		if command && i > 0 {
			d.value(index(path, i), &elements[i], dst.Index(i), `empty:"true"`)
			continue
		}
		d.value(index(path, i), &elements[i], dst.Index(i), wordsOnly(tag))
		if s := dst.Index(i).String(); s != "" && seen[s] {
			d.fail(index(path, i), elements[i].StartOffset, "keep one of them", "%q is listed twice", clip.Quote(s))
		} else {
			seen[s] = true
		}
	}
}

func (d *decoder) text(path string, v *hujson.Value, tag reflect.StructTag) string {
	if !d.expect(path, v, "a string", '"') {
		return ""
	}
	s := v.Value.(hujson.Literal).String()
	words := validate.RuleOf(tag).Words
	switch {
	case slices.Contains(alternatives(tag.Get("later")), s):
		d.fail(path, v.StartOffset, nearest.Remedy("", words), "%q is not supported by this version", s)
	case len(words) > 0 && !slices.Contains(words, s):
		d.fail(path, v.StartOffset, nearest.Remedy(s, words), "unknown word %q", clip.Quote(s))
	case s == "" && tag.Get("empty") == "":
		d.fail(path, v.StartOffset, "leave the setting out instead", "is empty")
	}
	return s
}

func (d *decoder) number(path string, v *hujson.Value, dst reflect.Value, tag reflect.StructTag) {
	if !d.expect(path, v, "a number", '0') {
		return
	}
	text := v.Value.(hujson.Literal).String()
	n, err := strconv.ParseFloat(text, 64)
	if err == nil && dst.Kind() == reflect.Int && n != math.Trunc(n) {
		d.fail(path, v.StartOffset, "write a whole number", "%s is not whole", clip.Quote(text))
		return
	}
	rule := validate.RuleOf(tag)
	if err != nil || !rule.Permits(n) {
		d.fail(path, v.StartOffset, rule.RangeRemedy(), "%s is out of range", clip.Quote(text))
		return
	}
	if dst.Kind() == reflect.Int {
		dst.SetInt(int64(n))
	} else {
		dst.SetFloat(n)
	}
}

func (d *decoder) duration(path string, v *hujson.Value, tag reflect.StructTag) time.Duration {
	if !d.expect(path, v, `a duration such as "90s", "5m" or "7d"`, '"') {
		return 0
	}
	s := v.Value.(hujson.Literal).String()
	t, wrong := parseDuration(s)
	least, _ := parseDuration(tag.Get("min"))
	most, none := parseDuration(tag.Get("max"))
	switch {
	case wrong != "":
		d.fail(path, v.StartOffset, `write a duration such as "90s", "5m" or "7d"`, "%q %s", clip.Quote(s), wrong)
	case t < least:
		d.fail(path, v.StartOffset, "use at least "+tag.Get("min"), "%q is too short", clip.Quote(s))
	case none == "" && t > most:
		d.fail(path, v.StartOffset, "use at most "+tag.Get("max"), "%q is too long", clip.Quote(s))
	}
	return t
}

func (d *decoder) count(path string, v *hujson.Value) nstance.Count {
	const what = `a count such as 1 or a percentage such as "20%"`
	if !d.expect(path, v, what, '0', '"') {
		return nstance.Count{}
	}
	lit := v.Value.(hujson.Literal)
	var c nstance.Count
	if c.UnmarshalText([]byte(lit.String())) != nil || c.Percent == (lit.Kind() == '0') {
		d.fail(path, v.StartOffset, "write "+what, "%s is neither", clip.Quote(string(lit)))
	}
	return c
}

// object keeps an object for the provider, in its canonical spelling.
func (d *decoder) object(path string, v *hujson.Value, tag reflect.StructTag) json.RawMessage {
	if !d.expect(path, v, "an object", '{') {
		return nil
	}
	if tag.Get("rendered") != "" {
		d.templates(path, v, seenBy(tag))
	}
	d.places(path, v)
	plain := v.Clone()
	plain.Minimize()
	raw, err := confighash.Canonical(plain.Pack())
	d.adopt(path, v.StartOffset, err)
	return raw
}

// places remembers where everything within an object is.
func (d *decoder) places(path string, v *hujson.Value) {
	d.at[path] = v.StartOffset
	switch t := v.Value.(type) {
	case *hujson.Object:
		for key, m := range members(v) {
			d.places(join(path, key), &m.Value)
		}
	case *hujson.Array:
		for i := range t.Elements {
			d.places(index(path, i), &t.Elements[i])
		}
	}
}

// seenBy returns what templates under a tag see.
func seenBy(tag reflect.StructTag) reflect.Type {
	if tag.Get("rendered") == "files" {
		return seenByFiles
	}
	return seenByBoot
}

// templates checks every string below v.
func (d *decoder) templates(path string, v *hujson.Value, data reflect.Type) {
	switch t := v.Value.(type) {
	case *hujson.Object:
		for key, m := range members(v) {
			d.templates(join(path, key), &m.Value, data)
		}
	case *hujson.Array:
		for i := range t.Elements {
			d.templates(index(path, i), &t.Elements[i], data)
		}
	case hujson.Literal:
		if t.Kind() == '"' {
			d.adopt(path, v.StartOffset, renderable(t.String(), data))
		}
	}
}
