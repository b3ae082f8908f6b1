// Package durations finds every duration that an embedder can set, so that a test of
// what is refused does not have to list them.
package durations

import (
	"reflect"
	"slices"
	"strings"
	"time"
)

// module is what the types that are looked into have in their import paths.
const module = "github.com/nstance-go/nstance"

// A Field is one field of type time.Duration, or of a type made from it, somewhere in a
// T: in it, in its structs, behind its pointers, or in an element of its maps and slices.
type Field[T any] struct {
	Name  string // in Go, as in Expiry.ForcedAge
	steps []int
}

// Of returns the exported ones of T, in order. Interfaces and functions are not looked into.
func Of[T any]() (out []Field[T]) {
	walk(reflect.TypeFor[T](), []reflect.Type{reflect.TypeFor[T]()}, func(name []string, steps []int) {
		out = append(out, Field[T]{strings.Join(name, "."), steps})
	})
	return out
}

// Set sets the field in v, and makes the pointers and elements on the way.
func (f Field[T]) Set(v *T, d time.Duration) { set(reflect.ValueOf(v).Elem(), f.steps, d) }

func walk(t reflect.Type, above []reflect.Type, found func(name []string, steps []int)) {
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.IsExported() {
			continue
		}
		if isDuration(f.Type) {
			found([]string{f.Name}, []int{i})
			continue
		}
		in := inner(f.Type)
		if in.Kind() != reflect.Struct || !strings.HasPrefix(in.PkgPath(), module) || slices.Contains(above, in) {
			continue
		}
		walk(in, append(slices.Clone(above), in), func(name []string, steps []int) {
			found(append([]string{f.Name}, name...), append([]int{i}, steps...))
		})
	}
}

func isDuration(t reflect.Type) bool {
	return t.Kind() == reflect.Int64 && strings.Contains(t.Name(), "Duration")
}

// inner returns what t holds, however it holds it.
func inner(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Map || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	return t
}

func set(v reflect.Value, steps []int, d time.Duration) {
	switch v.Kind() {
	case reflect.Struct:
		set(v.Field(steps[0]), steps[1:], d)
	case reflect.Pointer:
		to := reflect.New(v.Type().Elem())
		if !v.IsNil() {
			to.Elem().Set(v.Elem())
		}
		set(to.Elem(), steps, d)
		v.Set(to)
	case reflect.Slice:
		to := reflect.MakeSlice(v.Type(), max(1, v.Len()), max(1, v.Len()))
		reflect.Copy(to, v)
		set(to.Index(0), steps, d)
		v.Set(to)
	case reflect.Map:
		to, key := reflect.MakeMap(v.Type()), reflect.New(v.Type().Key()).Elem()
		for _, k := range v.MapKeys() {
			to.SetMapIndex(k, v.MapIndex(k))
			key = k
		}
		element := reflect.New(v.Type().Elem()).Elem()
		if v.Len() > 0 {
			element.Set(v.MapIndex(key))
		}
		set(element, steps, d)
		to.SetMapIndex(key, element)
		v.Set(to)
	default:
		v.SetInt(int64(d))
	}
}
