// Package validate makes errors of what the rules of internal/rules find. Each function
// returns nil or an Invalid error that names field.
package validate

import (
	"reflect"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/rules"
)

// Name checks the name of a cluster, a tenant, a group or anything else that people name.
// Shards have a rule of their own.
func Name[S ~string](field string, name S) error { return wrong(field, rules.Name(string(name))) }

// Shard checks the name of a shard.
func Shard(field string, id nstance.ShardID) error { return wrong(field, rules.Shard(string(id))) }

// Owner checks the owner of a group; empty: none.
func Owner(field, owner string) error { return wrong(field, rules.Owner(owner)) }

// InstanceKind checks the prefix of instance IDs.
func InstanceKind(field string, kind nstance.InstanceKind) error {
	return wrong(field, rules.InstanceKind(string(kind)))
}

// FilePath checks the path of a file on machines.
func FilePath(field, path string) error { return wrong(field, rules.FilePath(path)) }

// FileMode checks the permission bits of a file on machines.
func FileMode(field string, mode uint32) error { return wrong(field, rules.FileMode(mode)) }

// SecretName checks the name of a secret.
func SecretName(field, name string) error { return wrong(field, rules.SecretName(name)) }

// Duration checks a duration that is 0 or from least to most.
func Duration(field string, d, least, most time.Duration) error {
	return wrong(field, rules.Duration(d, least, most))
}

// Setting checks a duration that is 0 or from a millisecond to most.
func Setting(field string, d, most time.Duration) error {
	return Duration(field, d, rules.LeastSetting, most)
}

// Given checks that there is a value: neither nil nor a nil pointer, map or function in an
// interface.
func Given(field, remedy string, v any) error {
	if v != nil {
		switch at := reflect.ValueOf(v); at.Kind() {
		case reflect.Pointer, reflect.Map, reflect.Func, reflect.Chan, reflect.Slice:
			if at.IsNil() {
				return nstance.FieldError(field, remedy, "is a nil %T", v)
			}
		}
		return nil
	}
	return nstance.FieldError(field, remedy, "is nil")
}

// Optional checks a value that may be nil, but not a nil pointer in an interface.
func Optional(field, remedy string, v any) error {
	if v == nil {
		return nil
	}
	return Given(field, remedy, v)
}

func wrong(field string, v *rules.Violation) error {
	if v == nil {
		return nil
	}
	return nstance.FieldError(field, v.Remedy, "%s", v.Msg)
}
