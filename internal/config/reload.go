package config

import (
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"

	"github.com/nstance-go/nstance"
)

// Reloadable refuses c as a successor of what a process was started with, if it
// differs in a setting that a running process cannot change. Fails with Invalid.
func (c *Config) Reloadable(own *Config) error {
	return reloadable("", reflect.ValueOf(own).Elem(), reflect.ValueOf(c).Elem())
}

// reloadable looks at every setting below path whose tag speaks of a restart.
func reloadable(path string, was, will reflect.Value) error {
	for _, s := range settings(was.Type()) {
		was, will, path := was.FieldByIndex(s.index), will.FieldByIndex(s.index), path+s.name
		if composite(s.typ) {
			if err := reloadable(path+".", was, will); err != nil {
				return err
			}
		} else if s.tag.Get("restart") != "" && !reflect.DeepEqual(was.Interface(), will.Interface()) {
			return s.refuse(path, was, will)
		}
	}
	return nil
}

// keepOwn copies every setting whose tag speaks of a restart.
func keepOwn(out, own reflect.Value) {
	for _, s := range settings(out.Type()) {
		switch to, from := out.FieldByIndex(s.index), own.FieldByIndex(s.index); {
		case composite(s.typ):
			keepOwn(to, from)
		case s.tag.Get("restart") != "":
			to.Set(from)
		}
	}
}

func (s setting) refuse(path string, was, will reflect.Value) error {
	remedy := "restart the server, or put the old value back"
	if s.tag.Get("restart") == "never" {
		remedy = "put the old value back"
	}
	if s.typ == reflect.TypeFor[json.RawMessage]() { // there may be a password in it
		return nstance.FieldError(path, remedy, "cannot change while the server runs")
	}
	return nstance.FieldError(path, remedy, "cannot change from %s to %s while the server runs", shown(was), shown(will))
}

func shown(v reflect.Value) string { return cmp.Or(fmt.Sprint(v.Interface()), "nothing") }
