package storage

import (
	"bytes"
	"encoding"
	"encoding/json"
	"reflect"
	"strings"
)

// identifying are the fields that say which thing an object within a record is
// about. Where one of them differs, the object was replaced, and what was
// unknown about the old one does not belong to the new one.
var identifying = map[string]bool{
	"id": true, "instance_id": true, "event_id": true, "generation": true,
	"serial": true, "fingerprint": true, "name": true, "kind": true,
}

// merge returns after, the JSON of a Go value of type t, with the fields of
// before that t does not know. It descends into known structs and maps, and
// into the elements of lists that can be told apart by an identifying field.
func merge(before, after json.RawMessage, t reflect.Type) json.RawMessage {
	for t.Kind() == reflect.Pointer && !opaque(t) {
		t = t.Elem()
	}
	if opaque(t) {
		return after
	}
	switch t.Kind() {
	case reflect.Struct:
		if sameThing(object(before), object(after), jsonFields(t)) {
			return mergeFields(before, after, t)
		}
	case reflect.Map:
		return mergeMap(before, after, t.Elem())
	case reflect.Slice:
		return mergeList(before, after, t.Elem())
	}
	return after
}

// keepUnknown is merge for a whole object, which is about the same thing
// however it was spelt.
func keepUnknown(before, after json.RawMessage, t reflect.Type) json.RawMessage {
	if t.Kind() == reflect.Struct {
		return mergeFields(before, after, t)
	}
	return merge(before, after, t)
}

func mergeFields(before, after json.RawMessage, t reflect.Type) json.RawMessage {
	old, now := object(before), object(after)
	known := jsonFields(t)
	if old == nil || now == nil {
		return after
	}
	for name, value := range old {
		present, ok := now[name]
		field, isKnown := known[name]
		switch {
		case isKnown && ok:
			now[name] = merge(value, present, field)
		case !isKnown && !ok && !otherCase(name, known):
			now[name] = value
		}
	}
	return remarshal(now, after)
}

func mergeMap(before, after json.RawMessage, elem reflect.Type) json.RawMessage {
	old, now := object(before), object(after)
	for name, value := range old {
		if present, ok := now[name]; ok {
			now[name] = merge(value, present, elem)
		}
	}
	return remarshal(now, after)
}

func mergeList(before, after json.RawMessage, elem reflect.Type) json.RawMessage {
	for elem.Kind() == reflect.Pointer {
		elem = elem.Elem()
	}
	if opaque(elem) || elem.Kind() != reflect.Struct || !identifiable(elem) {
		return after
	}
	var old, now []json.RawMessage
	if json.Unmarshal(before, &old) != nil || json.Unmarshal(after, &now) != nil || now == nil {
		return after
	}
	known := jsonFields(elem)
	for i, value := range now {
		for _, candidate := range old {
			if sameThing(object(candidate), object(value), known) {
				now[i] = mergeFields(candidate, value, elem)
				break
			}
		}
	}
	return remarshal(now, after)
}

// object returns the fields of a JSON object, or nil for anything else.
func object(data json.RawMessage) map[string]json.RawMessage {
	var fields map[string]json.RawMessage
	if json.Unmarshal(data, &fields) != nil {
		return nil
	}
	return fields
}

func remarshal(v any, otherwise json.RawMessage) json.RawMessage {
	if out, err := marshal(v); err == nil && !bytes.Equal(out, []byte("null")) {
		return out
	}
	return otherwise
}

func sameThing(old, now map[string]json.RawMessage, known map[string]reflect.Type) bool {
	for name := range known {
		if identifying[name] && !bytes.Equal(old[name], now[name]) {
			return false
		}
	}
	return true
}

func identifiable(t reflect.Type) bool {
	for name := range jsonFields(t) {
		if identifying[name] {
			return true
		}
	}
	return false
}

// otherCase reports whether the decoder takes name for a known field, since it
// does not mind upper and lower case.
func otherCase(name string, known map[string]reflect.Type) bool {
	for k := range known {
		if strings.EqualFold(k, name) {
			return true
		}
	}
	return false
}

// opaque reports whether values of t encode themselves.
func opaque(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return p.Implements(reflect.TypeFor[json.Marshaler]()) || p.Implements(reflect.TypeFor[encoding.TextMarshaler]())
}

// jsonFields returns the types of a struct's fields by their JSON names, those
// of embedded structs included.
func jsonFields(t reflect.Type) map[string]reflect.Type {
	fields := map[string]reflect.Type{}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "", !f.IsExported(), name == "-":
			continue
		case name == "":
			name = f.Name
		}
		fields[name] = f.Type
	}
	return fields
}
