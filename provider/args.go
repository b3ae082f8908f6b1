package provider

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/duration"
)

// DecodeArgs decodes a spec's provider-specific arguments into the struct that
// into points to, strictly: an argument that the struct does not have, a wrong
// type, or anything but one JSON object is Invalid, and the error names the
// argument. An argument that is silently ignored is worse than one refused: a
// misspelt spot option buys at on-demand prices. Absent args leave into alone.
func DecodeArgs[T any](args json.RawMessage, into *T) error {
	if len(args) == 0 {
		return nil
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(args, &object); err != nil || object == nil {
		return nstance.FieldError("args", "write one JSON object", "%.64q is not a JSON object", args)
	}
	if err := strict(args, into); err == nil {
		return nil
	}
	// encoding/json does not always say which argument it was, so each is
	// tried alone.
	for _, name := range slices.Sorted(maps.Keys(object)) {
		alone, err := json.Marshal(map[string]json.RawMessage{name: object[name]})
		if err != nil {
			continue
		}
		if err := strict(alone, new(T)); err != nil {
			return argError[T](name, err)
		}
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
		return errors.New("something follows the object")
	}
	return nil
}

func argError[T any](name string, err error) error {
	field := "args." + name[:min(len(name), 64)]
	names := known[T]()
	if !slices.Contains(names, name) {
		return nstance.FieldError(field, "known are: "+cmp.Or(strings.Join(names, ", "), "none"), "no such argument")
	}
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return nstance.FieldError(field, "", "a JSON %s does not fit", e.Value)
	}
	return nstance.FieldError(field, "", "%s", strings.TrimPrefix(err.Error(), "json: "))
}

// known lists the top-level names that T accepts.
func known[T any]() []string {
	var names []string
	if t := reflect.TypeFor[T](); t.Kind() == reflect.Struct {
		for _, f := range reflect.VisibleFields(t) {
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "-" && f.IsExported() {
				names = append(names, cmp.Or(name, f.Name))
			}
		}
	}
	slices.Sort(names)
	return names
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
