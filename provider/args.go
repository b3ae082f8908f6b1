package provider

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/duration"
	"github.com/nstance-go/nstance/internal/nearest"
)

// Managed maps arguments that the system sets itself to the remedy in the error
// that refuses them.
type Managed map[string]string

// DecodeArgs decodes a spec's provider-specific arguments into the struct that
// into points to, strictly: an argument that the struct does not have, a wrong
// type, or anything but one JSON object is Invalid. The error names the path of the
// argument and suggests the nearest name. Unknown arguments are not ignored,
// because a misspelt spot option would buy at on-demand prices. Empty args do not
// change into.
func DecodeArgs[T any](args json.RawMessage, into *T, managed ...Managed) error {
	return decodeArgs(args, reflect.ValueOf(into), managed)
}

// DecodeOptions is DecodeArgs for the options of a provider. Errors name them
// options.
func DecodeOptions[T any](options json.RawMessage, into *T) error {
	return decodeOptions(options, reflect.ValueOf(into))
}

func decodeOptions(options json.RawMessage, into reflect.Value) error {
	err := decodeArgs(options, into, nil)
	if e, ok := errors.AsType[*nstance.Error](err); ok {
		e.Field = "options" + strings.TrimPrefix(e.Field, "args")
	}
	return err
}

func decodeArgs(args json.RawMessage, into reflect.Value, managed []Managed) error {
	if len(args) == 0 {
		args = json.RawMessage("{}")
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(args, &object); err != nil || object == nil {
		return nstance.FieldError("args", "write one JSON object", "%.64q is not a JSON object", args)
	}
	for _, m := range managed {
		for _, name := range slices.Sorted(maps.Keys(object)) {
			if remedy, ok := m[name]; ok {
				return nstance.FieldError("args."+name, remedy, "is set by the system")
			}
		}
	}
	if err := strict(args, into.Interface()); err == nil {
		return checkTags(args, into.Elem(), "args")
	}
	if err := findWrong(args, into.Type().Elem(), "args"); err != nil {
		return err
	}
	return nstance.FieldError("args", "write one JSON object", "%.64q cannot be decoded", args)
}

func strict(b []byte, into any) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is more after the object")
	}
	return nil
}

// findWrong returns an error that names the path of the argument which cannot be
// decoded into t: encoding/json does not always name it.
func findWrong(raw json.RawMessage, t reflect.Type, path string) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	value := reflect.New(t)
	err := strict(raw, value.Interface())
	if err == nil {
		return nil
	}
	if _, custom := value.Interface().(json.Unmarshaler); !custom {
		if err := findWrongPart(raw, t, path); err != nil {
			return err
		}
	}
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return nstance.FieldError(path, "", "a JSON %s does not fit", e.Value)
	}
	return nstance.FieldError(path, "", "%s", strings.TrimPrefix(err.Error(), "json: "))
}

// findWrongPart does the same for the parts of a struct, a list or a map.
func findWrongPart(raw json.RawMessage, t reflect.Type, path string) error {
	switch t.Kind() {
	case reflect.Struct:
		return findWrongField(raw, t, path)
	case reflect.Slice:
		var parts []json.RawMessage
		_ = json.Unmarshal(raw, &parts) // else the whole is wrong
		for i, part := range parts {
			if err := findWrong(part, t.Elem(), fmt.Sprintf("%s[%d]", path, i)); err != nil {
				return err
			}
		}
	case reflect.Map:
		var parts map[string]json.RawMessage
		_ = json.Unmarshal(raw, &parts)
		for _, name := range slices.Sorted(maps.Keys(parts)) {
			if err := findWrong(parts[name], t.Elem(), path+"."+clip.Quote(name)); err != nil {
				return err
			}
		}
	}
	return nil
}

func findWrongField(raw json.RawMessage, t reflect.Type, path string) error {
	var parts map[string]json.RawMessage
	_ = json.Unmarshal(raw, &parts) // else the whole is wrong
	fields := map[string]argField{}
	for _, f := range argFields(t) {
		fields[f.name] = f
	}
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		f, ok := fields[name]
		if !ok {
			return nstance.FieldError(path+"."+clip.Quote(name), nearest.Remedy(name, slices.Sorted(maps.Keys(fields))), "no such argument")
		}
		if err := findWrong(parts[name], f.Type, path+"."+clip.Quote(name)); err != nil {
			return err
		}
	}
	return nil
}

// An argField is a field of a struct under the name that arguments have.
type argField struct {
	name string
	reflect.StructField
}

// argFields returns the fields of a struct that arguments may name, in its order.
func argFields(t reflect.Type) (fields []argField) {
	for _, f := range reflect.VisibleFields(t) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "-" && f.IsExported() && !f.Anonymous {
			fields = append(fields, argField{cmp.Or(name, f.Name), f})
		}
	}
	return fields
}

// A Duration is a duration among arguments, written as in Go: "1m30s".
type Duration time.Duration

// UnmarshalText accepts what [time.ParseDuration] does, with whole days in front
// such as 7d, and nothing negative.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := duration.Parse(string(b))
	if err != nil {
		return nstance.Errorf(nstance.Invalid, "%.64q is not a duration such as 1m30s", b)
	}
	*d = Duration(v)
	return nil
}

// MarshalText writes what UnmarshalText reads.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }
