package config

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/validate"
)

// Schema returns the JSON Schema (2020-12) of a configuration without its
// comments, for editors. What it permits may still be refused: it knows each
// setting by itself, not what settings mean together.
func Schema() []byte {
	root := schemaOf(reflect.TypeFor[Config](), "")
	root = append(object{{"$schema", "https://json-schema.org/draft/2020-12/schema"}, {"title", "Configuration of a Nstance shard"}}, root...)
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	if err := enc.Encode(root); err != nil {
		panic("config: schema: " + err.Error()) // of nothing but strings and numbers
	}
	return out.Bytes()
}

// An object is a JSON object whose members keep their order.
type object []member

type member struct {
	name  string
	value any
}

// MarshalJSON implements json.Marshaler.
func (o object) MarshalJSON() ([]byte, error) {
	out := []byte{'{'}
	for i, m := range o {
		if i > 0 {
			out = append(out, ',')
		}
		var value bytes.Buffer
		enc := json.NewEncoder(&value)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(m.value); err != nil {
			return nil, err
		}
		out = append(append(strconv.AppendQuote(out, m.name), ':'), bytes.TrimSpace(value.Bytes())...)
	}
	return append(out, '}'), nil
}

// schemaOf describes a value of type t under the rules of its tag.
func schemaOf(t reflect.Type, tag reflect.StructTag) object {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	out := schemaType(t, tag)
	if doc := tag.Get("doc"); doc != "" {
		out = append(out, member{"description", doc})
	}
	if def, ok := tag.Lookup("default"); ok {
		out = append(out, member{"default", json.RawMessage(literal(t, def))})
	}
	return out
}

func schemaType(t reflect.Type, tag reflect.StructTag) object {
	switch t {
	case reflect.TypeFor[time.Duration]():
		return object{{"type", "string"}, {"pattern", durationPattern}}
	case reflect.TypeFor[nstance.Count]():
		return object{{"anyOf", []object{{{"type", "integer"}, {"minimum", 0}}, {{"type", "string"}, {"pattern", "^[0-9]+%$"}}}}}
	case reflect.TypeFor[json.RawMessage]():
		return object{{"type", "object"}}
	}
	switch t.Kind() {
	case reflect.Struct:
		return schemaStruct(t)
	case reflect.Map:
		return object{{"type", "object"}, {"additionalProperties", schemaOf(t.Elem(), elementTag)}}
	case reflect.Slice:
		if t == reflect.TypeFor[Command]() { // may repeat itself, and say nothing
			return object{{"type", "array"}, {"items", schemaOf(t.Elem(), elementTag)}, {"minItems", 1}}
		}
		if tag.Get("none") != "" { // empty is as good as absent
			return object{{"type", "array"}, {"items", schemaOf(t.Elem(), wordsOnly(tag))}, {"uniqueItems", true}}
		}
		return object{{"type", "array"}, {"items", schemaOf(t.Elem(), wordsOnly(tag))}, {"minItems", 1}, {"uniqueItems", true}}
	case reflect.Bool:
		return object{{"type", "boolean"}}
	case reflect.Int:
		return schemaNumber("integer", tag)
	case reflect.Float64:
		return schemaNumber("number", tag)
	}
	return schemaText(tag)
}

// elementTag holds for what a map contains, as it does for the decoder.
const elementTag reflect.StructTag = `empty:"true"`

// durationPattern is what parseDuration accepts, but for the limits.
const durationPattern = `^([0-9]+d)?(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h))*$|^0$`

func schemaStruct(t reflect.Type) object {
	var properties object
	var required []string
	for _, s := range settings(t) {
		if s.later() {
			continue
		}
		properties = append(properties, member{s.name, schemaOf(s.typ, s.tag)})
		if s.required() {
			required = append(required, s.name)
		}
	}
	out := object{{"type", "object"}, {"properties", properties}}
	if len(required) > 0 {
		out = append(out, member{"required", required})
	}
	return append(out, member{"additionalProperties", false})
}

func schemaNumber(kind string, tag reflect.StructTag) object {
	out := object{{"type", kind}}
	rule := validate.RuleOf(tag)
	for name, limit := range map[string]string{"minimum": rule.Min, "maximum": rule.Max} {
		if limit != "" {
			out = append(out, member{name, json.RawMessage(limit)})
		}
	}
	slices.SortFunc(out, func(a, b member) int { return -strings.Compare(a.name, b.name) })
	return out
}

func schemaText(tag reflect.StructTag) object {
	out := object{{"type", "string"}}
	if words := validate.RuleOf(tag).Words; len(words) > 0 {
		out = append(out, member{"enum", words})
	} else if tag.Get("empty") == "" {
		out = append(out, member{"minLength", 1})
	}
	return out
}
