package ec2test

import (
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A parameter is one node of a request's parameters, whose names are paths such
// as Filter.1.Value.2.
type parameter struct {
	value   string
	present bool // has a value of its own, beside or without sub
	sub     map[string]*parameter
}

// parseQuery builds the tree of the parameters of a call.
func parseQuery(form url.Values) (*parameter, error) {
	root := &parameter{}
	for name, values := range form {
		if name == "Action" || name == "Version" {
			continue
		}
		if len(values) != 1 {
			return nil, invalid("The parameter %s is given more than once", name)
		}
		at := root
		for part := range strings.SplitSeq(name, ".") {
			if at.sub == nil {
				at.sub = map[string]*parameter{}
			}
			next := at.sub[part]
			if next == nil {
				next = &parameter{}
				at.sub[part] = next
			}
			at = next
		}
		at.value, at.present = values[0], true
	}
	return root, nil
}

// A decoder fills the input struct of an action. Fields are named as their
// parameter unless the tag q says otherwise; the tag enum lists the values that
// a field can have, and ",required" after the name that it cannot be left out.
type decoder struct {
	member string // the part between a list's name and its index, if any
}

// decode fills v from p and refuses parameters that v does not have.
func (d decoder) decode(p *parameter, path string, v reflect.Value) error {
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	switch v.Kind() {
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			return d.scalar(p, path, v)
		}
		return d.object(p, path, v)
	case reflect.Slice:
		return d.list(p, path, v)
	}
	return d.scalar(p, path, v)
}

func (d decoder) object(p *parameter, path string, v reflect.Value) error {
	if p.present {
		return refuse("UnknownParameter", "The parameter %s is not recognized", path)
	}
	known := map[string]bool{}
	for _, field := range reflect.VisibleFields(v.Type()) {
		if field.Anonymous {
			continue
		}
		at := v.FieldByIndex(field.Index)
		name, options, _ := strings.Cut(field.Tag.Get("q"), ",")
		if name == "" {
			name = field.Name
		}
		known[name] = true
		sub := p.sub[name]
		if sub == nil {
			if options == "required" {
				return missing(join(path, name))
			}
			continue
		}
		if err := d.decode(sub, join(path, name), at); err != nil {
			return err
		}
		if err := checkEnum(field.Tag.Get("enum"), join(path, name), at); err != nil {
			return err
		}
	}
	for name, sub := range p.sub {
		if !known[name] {
			return refuse("UnknownParameter", "The parameter %s is not recognized", sub.anyPath(join(path, name)))
		}
	}
	return nil
}

// anyPath returns the whole name of a parameter that was sent.
func (p *parameter) anyPath(path string) string {
	for name, sub := range p.sub {
		if !p.present {
			return sub.anyPath(join(path, name))
		}
	}
	return path
}

func (d decoder) list(p *parameter, path string, v reflect.Value) error {
	if d.member != "" && p.sub[d.member] != nil && len(p.sub) == 1 {
		p, path = p.sub[d.member], join(path, d.member)
	}
	var indices []int
	for name := range p.sub {
		n, err := strconv.Atoi(name)
		if err != nil || n < 1 {
			return refuse("UnknownParameter", "The parameter %s is not recognized", join(path, name))
		}
		indices = append(indices, n)
	}
	if p.present {
		return refuse("UnknownParameter", "The parameter %s is not recognized", path)
	}
	slices.Sort(indices)
	list := reflect.MakeSlice(v.Type(), len(indices), len(indices))
	for i, n := range indices {
		name := strconv.Itoa(n)
		if err := d.decode(p.sub[name], join(path, name), list.Index(i)); err != nil {
			return err
		}
	}
	v.Set(list)
	return nil
}

func (d decoder) scalar(p *parameter, path string, v reflect.Value) error {
	if len(p.sub) > 0 || !p.present {
		return refuse("UnknownParameter", "The parameter %s is not recognized", p.anyPath(path))
	}
	switch v.Interface().(type) {
	case string:
		v.SetString(p.value)
	case bool:
		if p.value != "true" && p.value != "false" {
			return invalid("Invalid value '%s' for %s. Must be a boolean", p.value, path)
		}
		v.SetBool(p.value == "true")
	case int:
		n, err := strconv.ParseInt(p.value, 10, 32)
		if err != nil {
			return invalid("Invalid value '%s' for %s. Must be an integer", p.value, path)
		}
		v.SetInt(n)
	case time.Time:
		at, err := time.Parse(time.RFC3339, p.value)
		if err != nil {
			return invalid("Invalid value '%s' for %s. Must be a timestamp", p.value, path)
		}
		v.Set(reflect.ValueOf(at))
	default:
		panic("ec2: no decoding of " + v.Type().String())
	}
	return nil
}

func checkEnum(values, path string, v reflect.Value) error {
	if values == "" || v.Kind() != reflect.String || slices.Contains(strings.Split(values, ","), v.String()) {
		return nil
	}
	return invalid("Value (%s) for parameter %s is invalid", v.String(), path)
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
