package doctest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance/provider"
)

// ArgTable returns the fields of the struct that args points to as a table in
// Markdown, nested ones by their paths, in the order of the struct. It fails for a field
// without doc.
func ArgTable(args any) (string, error) {
	out := &strings.Builder{}
	fmt.Fprintln(out, "| name | type | default | meaning |\n|---|---|---|---|")
	err := argRows(out, reflect.TypeOf(args), "")
	return out.String(), err
}

func argRows(out *strings.Builder, t reflect.Type, path string) error {
	return eachArg(t, path, func(path string, f reflect.StructField) error {
		def := cmp.Or(f.Tag.Get("default"), "—")
		if f.Tag.Get("required") == "true" {
			def = "required"
		}
		doc := f.Tag.Get("doc")
		if words := f.Tag.Get("enum"); words != "" {
			doc += ": `" + strings.ReplaceAll(words, "|", "`, `") + "`"
		}
		fmt.Fprintf(out, "| `%s` | %s | %s | %s |\n", path, argType(f.Type), def, doc)
		inner, suffix := f.Type, ""
		for inner.Kind() == reflect.Pointer || inner.Kind() == reflect.Slice || inner.Kind() == reflect.Map {
			switch inner.Kind() {
			case reflect.Slice:
				suffix += "[]"
			case reflect.Map:
				suffix += ".<name>"
			}
			inner = inner.Elem()
		}
		if inner.Kind() == reflect.Struct {
			return argRows(out, inner, path+suffix)
		}
		return nil
	})
}

// eachArg calls f with each field of a struct that arguments can name.
func eachArg(t reflect.Type, path string, f func(string, reflect.StructField) error) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	for _, field := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "-" || !field.IsExported() || field.Anonymous {
			continue
		}
		at := cmp.Or(name, field.Name)
		if path != "" {
			at = path + "." + at
		}
		if field.Tag.Get("doc") == "" {
			return fmt.Errorf("argument %s of %s has no doc", at, t)
		}
		if err := f(at, field); err != nil {
			return err
		}
	}
	return nil
}

func argType(t reflect.Type) string {
	if t == reflect.TypeFor[provider.Duration]() || t == reflect.TypeFor[time.Duration]() {
		return "duration"
	}
	switch t.Kind() {
	case reflect.Pointer:
		return argType(t.Elem())
	case reflect.Bool:
		return "boolean"
	case reflect.String:
		return "text"
	case reflect.Slice:
		return "list of " + argType(t.Elem())
	case reflect.Map:
		return "map of " + argType(t.Elem())
	case reflect.Struct:
		return "object"
	case reflect.Float32, reflect.Float64:
		return "number"
	}
	return "whole number"
}

// argSchemaOf returns the JSON Schema (2020-12) of the struct that args points to,
// for editors.
func argSchemaOf(title string, args any) ([]byte, error) {
	schema, err := argSchema(reflect.TypeOf(args))
	if err != nil {
		return nil, err
	}
	schema["$schema"], schema["title"] = "https://json-schema.org/draft/2020-12/schema", title
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	err = enc.Encode(schema)
	return out.Bytes(), err
}

func argSchema(t reflect.Type) (map[string]any, error) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch word := argType(t); {
	case word == "duration" || word == "text":
		return map[string]any{"type": "string"}, nil
	case word == "boolean":
		return map[string]any{"type": "boolean"}, nil
	case word == "number":
		return map[string]any{"type": "number"}, nil
	case t.Kind() == reflect.Slice:
		items, err := argSchema(t.Elem())
		return map[string]any{"type": "array", "items": items}, err
	case t.Kind() == reflect.Map:
		values, err := argSchema(t.Elem())
		return map[string]any{"type": "object", "additionalProperties": values}, err
	case t.Kind() == reflect.Struct:
		return structSchema(t)
	}
	return map[string]any{"type": "integer"}, nil
}

func structSchema(t reflect.Type) (map[string]any, error) {
	properties, required := map[string]any{}, []string{}
	err := eachArg(t, "", func(name string, f reflect.StructField) error {
		s, err := argSchema(f.Type)
		if err != nil {
			return err
		}
		s["description"] = f.Tag.Get("doc")
		if words := f.Tag.Get("enum"); words != "" {
			s["enum"] = strings.Split(words, "|")
		}
		for tag, key := range map[string]string{"min": "minimum", "max": "maximum"} {
			if bound := f.Tag.Get(tag); bound != "" {
				s[key] = json.Number(bound)
			}
		}
		if f.Tag.Get("required") == "true" {
			required = append(required, name)
		}
		properties[name] = s
		return nil
	})
	out := map[string]any{"type": "object", "additionalProperties": false, "properties": properties}
	if slices.Sort(required); len(required) > 0 {
		out["required"] = required
	}
	return out, err
}
