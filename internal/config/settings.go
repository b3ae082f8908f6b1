package config

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/validate"
	"github.com/tailscale/hujson"
)

// A setting is one field of a struct of this package, as the file sees it.
type setting struct {
	name  string
	index []int // for reflect.Value.FieldByIndex
	typ   reflect.Type
	tag   reflect.StructTag
}

func (s setting) later() bool    { return s.typ == reflect.TypeFor[later]() }
func (s setting) required() bool { return validate.RuleOf(s.tag).Required }

// settings returns the settings of a struct in declared order, those of
// embedded structs included.
func settings(t reflect.Type) []setting {
	var all []setting
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous {
			for _, s := range settings(f.Type) {
				s.index = append([]int{i}, s.index...)
				all = append(all, s)
			}
		} else if name := f.Tag.Get("name"); name != "" {
			all = append(all, setting{name, []int{i}, f.Type, f.Tag})
		}
	}
	return all
}

// names returns what may be written: a suggestion never leads to a setting that
// is refused.
func names(all []setting) []string {
	var out []string
	for _, s := range all {
		if !s.later() {
			out = append(out, s.name)
		}
	}
	return out
}

// wordsOnly returns what of a list's tag holds for each of its elements: which
// words there are.
func wordsOnly(tag reflect.StructTag) reflect.StructTag {
	if tag.Get("enum") == "" {
		return ""
	}
	return reflect.StructTag(fmt.Sprintf("enum:%q later:%q", tag.Get("enum"), tag.Get("later")))
}

func alternatives(tag string) []string {
	if tag == "" {
		return nil
	}
	return strings.Split(tag, "|")
}

// setDefaults fills a struct, and those within it, with what its tags say.
// Anything else is left alone.
func setDefaults(dst reflect.Value) {
	if !composite(dst.Type()) {
		return
	}
	for _, s := range settings(dst.Type()) {
		if s.later() {
			continue
		}
		f := dst.FieldByIndex(s.index)
		setDefaults(f)
		if def, ok := s.tag.Lookup("default"); ok {
			d := decoder{at: map[string]int{}}
			d.value("", &hujson.Value{Value: literal(s.typ, def)}, f, s.tag)
			if len(d.problems) > 0 {
				panic("config: bad default of " + s.name) // a mistake in config.go
			}
		}
	}
}

// composite reports whether t is a struct that holds settings.
func composite(t reflect.Type) bool {
	return t.Kind() == reflect.Struct && t != reflect.TypeFor[nstance.Count]() && t != reflect.TypeFor[later]()
}

// literal writes a default as the file would.
func literal(t reflect.Type, def string) hujson.Literal {
	if t.Kind() == reflect.String || t == reflect.TypeFor[time.Duration]() || strings.HasSuffix(def, "%") {
		return hujson.String(def)
	}
	return hujson.Literal(def)
}

// A Field documents one setting.
type Field struct {
	Path    string // templates.<template>.kind
	Type    string
	Default string // as the file would spell it; empty for none
	Meaning string
	Later   bool // refused by this version
}

// Fields returns every setting in the order of the types. The tables of
// docs/configuration.md are made from it.
func Fields() []Field {
	return document(nil, "", reflect.TypeFor[Config](), "")
}

func document(out []Field, path string, t reflect.Type, tag reflect.StructTag) []Field {
	if keys := tag.Get("key"); keys != "" {
		for k := range strings.SplitSeq(keys, ",") {
			path, t = path+".<"+k+">", t.Elem()
		}
	}
	optional := t.Kind() == reflect.Pointer // it matters whether the object is there at all
	if optional {
		t = t.Elem()
	}
	if !composite(t) || optional {
		out = append(out, Field{path, typeName(t, tag), origin(path, tag), meaning(tag), t == reflect.TypeFor[later]()})
	}
	if composite(t) {
		for _, s := range settings(t) {
			out = document(out, strings.TrimPrefix(path+"."+s.name, "."), s.typ, s.tag)
		}
	}
	return out
}

func meaning(tag reflect.StructTag) string {
	if words := alternatives(tag.Get("later")); len(words) > 0 {
		return tag.Get("doc") + "; this version refuses " + strings.Join(words, ", ")
	}
	if tag.Get("restart") == "true" {
		return tag.Get("doc") + "; a change needs a restart"
	}
	return tag.Get("doc")
}

func typeName(t reflect.Type, tag reflect.StructTag) string {
	switch t {
	case reflect.TypeFor[time.Duration]():
		return "duration"
	case reflect.TypeFor[nstance.Count]():
		return "count or percentage"
	case reflect.TypeFor[json.RawMessage]():
		return "object"
	case reflect.TypeFor[ListenAddr](), reflect.TypeFor[DialAddr]():
		return "host:port"
	}
	switch t.Kind() {
	case reflect.String:
		if words := validate.RuleOf(tag).Words; len(words) > 0 {
			return strings.Join(words, ", ")
		}
		return "string"
	case reflect.Int:
		return "whole number"
	case reflect.Float64:
		return "number"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		if words := validate.RuleOf(tag).Words; len(words) > 0 {
			return "list of " + strings.Join(words, ", ")
		}
		return "list of strings"
	case reflect.Map:
		return "object of strings"
	}
	return "object"
}

// origin says where the value of an absent setting comes from.
func origin(path string, tag reflect.StructTag) string {
	if from := tag.Get("inherits"); from != "" && strings.Contains(path, "<group>") {
		return from
	}
	if def, ok := tag.Lookup("default"); ok {
		return "`" + def + "`"
	}
	if validate.RuleOf(tag).Required {
		return "required"
	}
	return tag.Get("absent")
}
