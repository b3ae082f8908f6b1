package records

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"

	"github.com/tailscale/hujson"

	"github.com/nstance-go/nstance"
)

// Unknown holds the top-level fields of a document that its type lacks, because
// a newer program added them. Encode writes them again.
type Unknown map[string]json.RawMessage

// Decode reads the document that stands under key. It fails with Invalid when
// the document is damaged or of a newer major format, and never panics,
// whatever the data. Keys that end in .jsonc are written by people too:
// comments and a missing format are permitted.
func Decode[T Document](key string, data []byte) (v T, unknown Unknown, err error) {
	if strings.HasSuffix(key, ".jsonc") {
		if data, err = hujson.Standardize(bytes.Clone(data)); err != nil {
			return v, nil, unreadable(key, "%w", err)
		}
	}
	if v, ok := decodeKnown[T](key, data); ok {
		return v, nil, nil
	}
	if err := checkFormatOf(key, data); err != nil {
		return v, nil, err
	}
	if err := json.Unmarshal(data, &v); err != nil {
		var none T
		return none, nil, unreadable(key, "%w", err)
	}
	_ = json.Unmarshal(data, &unknown) // it is an object, as v was decoded from it
	for name := range unknown {
		if isField(name, reflect.TypeFor[T]()) {
			delete(unknown, name)
		}
	}
	return v, unknown, nil
}

// decodeKnown decodes an object without unknown fields in one pass, which is the
// ordinary case.
func decodeKnown[T Document](key string, data []byte) (v T, ok bool) {
	if strictly(data, &v) && checkFormat(key, v.header().Format) == nil {
		return v, true
	}
	var none T
	return none, false
}

// strictly decodes data and reports whether it is one value without unknown fields.
func strictly(data []byte, v any) bool {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	return dec.Decode(v) == nil && len(bytes.TrimSpace(data[dec.InputOffset():])) == 0
}

// checkFormatOf decodes the format only, since a newer major one may mean
// anything by the other fields.
func checkFormatOf(key string, data []byte) error {
	var h struct {
		Format string `json:"format"`
	}
	if err := json.Unmarshal(data, &h); err != nil {
		return unreadable(key, "%w", err)
	}
	if h.Format == "" && strings.HasSuffix(key, ".jsonc") {
		return nil
	}
	return checkFormat(key, h.Format)
}

// isField reports whether the decoder stores name in a field of t. It ignores
// case, as the decoder does.
func isField(name string, t reflect.Type) bool {
	for _, f := range reflect.VisibleFields(t) {
		field, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && field == "", !f.IsExported(), field == "-":
			continue
		case field == "":
			field = f.Name
		}
		if strings.EqualFold(field, name) {
			return true
		}
	}
	return false
}

// Encode is the inverse of Decode.
func Encode[T Document](v T, unknown Unknown) ([]byte, error) {
	var data []byte
	var err error
	if p, ok := any(v).(Parted[T]); ok {
		data, err = p.AppendJSON(nil)
	} else {
		data, err = marshal(v)
	}
	if err == nil && len(unknown) > 0 {
		var rest []byte
		rest, err = marshal(unknown)
		data = append(append(bytes.TrimSuffix(data, []byte("}")), ','), bytes.TrimPrefix(rest, []byte("{"))...)
	}
	if err != nil {
		return nil, nstance.Errorf(nstance.Invalid, "encode %T: %w", v, err)
	}
	return append(data, '\n'), nil
}

// marshal returns compact JSON, with the characters that HTML escapes as they are.
func marshal(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), err
}
