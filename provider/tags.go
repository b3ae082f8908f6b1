package provider

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/nearest"
	"github.com/nstance-go/nstance/internal/validate"
)

// checkTags refuses what the tags of its fields do not permit in v, which raw was
// decoded into. Limits hold for what raw gives: absent numbers are 0.
func checkTags(raw json.RawMessage, v reflect.Value, path string) error {
	switch {
	case readsItself(v.Type()):
		return nil
	case v.Kind() == reflect.Pointer && !v.IsNil():
		return checkTags(raw, v.Elem(), path)
	case v.Kind() == reflect.Struct:
		return checkFields(raw, v, path)
	}
	return eachPart(raw, v, path, checkTags)
}

// readsItself reports whether a type has its own spelling in JSON.
func readsItself(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return p.Implements(reflect.TypeFor[json.Unmarshaler]()) || p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

func checkFields(raw json.RawMessage, v reflect.Value, path string) error {
	var parts map[string]json.RawMessage
	_ = json.Unmarshal(raw, &parts) // it was decoded before
	for _, f := range argFields(v.Type()) {
		part, given := partOf(parts, f.name)
		value, err := v.FieldByIndexErr(f.Index)
		if err != nil { // of an embedded struct that is nil
			continue
		}
		rule, at := validate.RuleOf(f.Tag), path+"."+f.name
		if rule.Required && value.IsZero() && (!given || value.Kind() == reflect.String) {
			return nstance.FieldError(at, "add it", "is missing")
		}
		if !given {
			continue
		}
		if err := checkValue(part, value, at, rule); err != nil {
			return err
		}
		if err := checkTags(part, value, at); err != nil {
			return err
		}
	}
	return nil
}

// partOf returns the member that encoding/json decodes into a field: it ignores
// case, and null is none.
func partOf(parts map[string]json.RawMessage, name string) (part json.RawMessage, given bool) {
	part, given = parts[name]
	for other := range parts {
		if !given && strings.EqualFold(other, name) {
			part, given = parts[other], true
		}
	}
	return part, given && string(part) != "null"
}

// checkValue refuses a number out of range or an unknown word, also in a list or a
// map of them. An empty word is as good as an absent one.
func checkValue(raw json.RawMessage, v reflect.Value, path string, rule validate.TagRule) error {
	switch {
	case v.Kind() == reflect.Pointer && !v.IsNil():
		return checkValue(raw, v.Elem(), path, rule)
	case v.Kind() == reflect.String && v.Len() > 0 && len(rule.Words) > 0 && !slices.Contains(rule.Words, v.String()):
		return nstance.FieldError(path, nearest.Remedy(v.String(), rule.Words), "unknown word %q", clip.Quote(v.String()))
	case (v.CanInt() || v.CanUint() || v.CanFloat()) && !readsItself(v.Type()) && !rule.Permits(number(v)):
		return nstance.FieldError(path, rule.RangeRemedy(), "%v is out of range", v.Interface())
	}
	return eachPart(raw, v, path, func(raw json.RawMessage, part reflect.Value, path string) error {
		return checkValue(raw, part, path, rule)
	})
}

func number(v reflect.Value) float64 { return v.Convert(reflect.TypeFor[float64]()).Float() }

// eachPart calls check with the elements of a list or a map until one is refused.
func eachPart(raw json.RawMessage, v reflect.Value, path string, check func(json.RawMessage, reflect.Value, string) error) error {
	switch v.Kind() {
	case reflect.Slice:
		var parts []json.RawMessage
		_ = json.Unmarshal(raw, &parts) // it was decoded before
		for i := range min(len(parts), v.Len()) {
			if err := check(parts[i], v.Index(i), fmt.Sprintf("%s[%d]", path, i)); err != nil {
				return err
			}
		}
	case reflect.Map:
		if v.Type().Key().Kind() != reflect.String {
			return nil
		}
		var parts map[string]json.RawMessage
		_ = json.Unmarshal(raw, &parts)
		keys := v.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
		for _, key := range keys {
			if err := check(parts[key.String()], v.MapIndex(key), path+"."+clip.Quote(key.String())); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkDocs refuses fields below t without a doc tag.
func checkDocs(t reflect.Type, path string, seen map[reflect.Type]bool) error {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || readsItself(t) || seen[t] {
		return nil
	}
	seen[t] = true
	for _, f := range argFields(t) {
		at := path + "." + f.name
		if f.Tag.Get("doc") == "" {
			return nstance.FieldError(at, "say in its tag doc what it means", "has no doc tag")
		}
		if err := checkDocs(f.Type, at, seen); err != nil {
			return err
		}
	}
	return nil
}
