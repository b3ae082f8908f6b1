package storage

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"

	"github.com/tailscale/hujson"

	"github.com/nstance-go/nstance"
)

// decode reads a JSON object with a header. The header's fields stand beside
// those of T, in one object; T may embed Header to see them. If the object has
// fields that T lacks, rest is the object itself, so that encode can keep them.
// Keys that end in .jsonc are written by people too: comments and a missing
// format are permitted.
func decode[T any](key string, data []byte) (h Header, v T, rest []byte, err error) {
	if strings.HasSuffix(key, ".jsonc") {
		if data, err = hujson.Standardize(bytes.Clone(data)); err != nil {
			return h, v, nil, unreadable(key, "%w", err)
		}
	}
	if h, v, ok := decodeKnown[T](key, data); ok {
		return h, v, nil, nil
	}
	if err := checkObject(key, data); err != nil {
		return h, v, nil, err
	}
	if err := json.Unmarshal(data, &h); err != nil {
		return h, v, nil, unreadable(key, "%w", err)
	}
	v, known, err := decodeBody[T](data)
	if err != nil {
		return h, v, nil, unreadable(key, "%w", err)
	}
	if !known {
		rest = data
	}
	return h, v, rest, nil
}

// decodeKnown is the ordinary case in one go: an object whose every field T
// knows, the header's among them, in a format of today. Anything else is looked
// at step by step. Takeover is this function, ten thousand times.
func decodeKnown[T any](key string, data []byte) (h Header, v T, ok bool) {
	own, embeds := any(&v).(headed)
	if !embeds {
		return h, v, false
	}
	strict := json.NewDecoder(bytes.NewReader(data))
	strict.DisallowUnknownFields()
	if strict.Decode(&v) != nil || len(bytes.TrimSpace(data[strict.InputOffset():])) > 0 {
		return h, v, false
	}
	h = *own.header()
	return h, v, checkFormat(key, h.Format) == nil
}

// checkObject looks at the format alone, since a newer major one may mean
// anything by the other fields.
func checkObject(key string, data []byte) error {
	var format struct {
		Format string `json:"format"`
	}
	if err := json.Unmarshal(data, &format); err != nil {
		return unreadable(key, "%w", err)
	}
	if format.Format == "" && strings.HasSuffix(key, ".jsonc") {
		return nil
	}
	return checkFormat(key, format.Format)
}

// decodeBody also reports whether T knows every field.
func decodeBody[T any](data []byte) (v T, known bool, err error) {
	if _, ok := any(&v).(headed); !ok {
		if data, err = withoutHeader(data); err != nil {
			return v, false, err
		}
	}
	strict := json.NewDecoder(bytes.NewReader(data))
	strict.DisallowUnknownFields()
	if strict.Decode(&v) == nil {
		return v, true, nil
	}
	var lenient T
	err = json.Unmarshal(data, &lenient)
	return lenient, false, err
}

func withoutHeader(data []byte) ([]byte, error) {
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(data, &fields); err != nil {
		return nil, err
	}
	for name := range headerFields {
		delete(fields, name)
	}
	return marshal(fields)
}

var headerFields = jsonFields(reflect.TypeFor[Header]())

// encode is the inverse of decode.
func encode[T any](h Header, v T, rest []byte) ([]byte, error) {
	own, embeds := any(&v).(headed)
	if embeds {
		*own.header() = h
	}
	data, err := marshal(v)
	if err == nil && !embeds {
		data, err = withHeader(h, data)
	}
	if err != nil {
		return nil, nstance.Errorf(nstance.Invalid, "encode %T: %w", v, err)
	}
	if rest != nil {
		data = keepUnknown(rest, data, reflect.TypeFor[T]())
	}
	return append(data, '\n'), nil
}

func withHeader(h Header, body []byte) ([]byte, error) {
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(body, &fields); err != nil {
		return nil, err
	}
	data, err := marshal(h)
	if err != nil || len(fields) == 0 {
		return data, err
	}
	return append(append(data[:len(data)-1], ','), body[1:]...), nil
}

// marshal returns compact JSON, with the characters that HTML escapes as they are.
func marshal(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), err
}
