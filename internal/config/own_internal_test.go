package config

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
)

// changed returns another value of a setting's type.
func changed(t *testing.T, v reflect.Value) reflect.Value {
	t.Helper()
	out := reflect.New(v.Type()).Elem()
	switch v.Interface().(type) {
	case time.Duration:
		out.SetInt(v.Int() + int64(time.Second))
		return out
	case json.RawMessage:
		out.SetBytes([]byte(`{"of":"another server"}`))
		return out
	}
	switch v.Kind() {
	case reflect.String:
		out.SetString(v.String() + "x")
	case reflect.Int:
		out.SetInt(v.Int() + 1)
	default:
		require.Fail(t, "give another value of this type", "%s", v.Type())
	}
	return out
}

// TestOwnSettings: whatever the accepted configuration says, each setting that only a restart
// changes stays as this process was started with it, and no other does.
func TestOwnSettings(t *testing.T) {
	own := &Config{}
	visited := 0
	var visit func(path string, of func(*Config) reflect.Value)
	visit = func(path string, of func(*Config) reflect.Value) {
		for _, s := range settings(of(own).Type()) {
			at := func(c *Config) reflect.Value { return of(c).FieldByIndex(s.index) }
			if composite(s.typ) {
				visit(path+s.name+".", at)
				continue
			}
			if s.tag.Get("restart") == "" {
				continue
			}
			visited++
			other := *own
			at(&other).Set(changed(t, at(own)))
			accepted := other
			err := other.Reloadable(own)
			require.ErrorIs(t, err, nstance.Invalid, path+s.name)
			require.ErrorContains(t, err, path+s.name)
			if options, ok := at(&accepted).Interface().(json.RawMessage); ok { // there may be a password in it
				require.NotContains(t, err.Error(), string(options))
				require.NotContains(t, err.Error(), fmt.Sprintf("%d", options))
			}
			require.Equal(t, s.tag.Get("restart") == "never", !strings.Contains(err.Error(), "restart the server"), path+s.name)
			require.Equal(t, at(own).Interface(), at(other.At(own)).Interface(), path+s.name)
			require.Equal(t, accepted, other, "the accepted configuration itself stays")
		}
	}
	visit("", func(c *Config) reflect.Value { return reflect.ValueOf(c).Elem() })
	require.Greater(t, visited, 15)
	other := &Config{Shard: Shard{RequestTimeout: time.Hour}}
	require.Equal(t, time.Hour, other.At(own).Shard.RequestTimeout)
}
