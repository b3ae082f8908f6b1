package templates

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// MapStrings replaces each string within a decoded JSON value by what replace
// returns, maps in the order of their keys, and returns the value. It ends with
// the first error. The path of a string begins with path.
func MapStrings(path string, v any, replace func(path, text string) (string, error)) (any, error) {
	var err error
	switch v := v.(type) {
	case string:
		return replace(path, v)
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if v[key], err = MapStrings(pathOfKey(path, key), v[key], replace); err != nil {
				return nil, err
			}
		}
	case []any:
		for i := range v {
			if v[i], err = MapStrings(fmt.Sprintf("%s[%d]", path, i), v[i], replace); err != nil {
				return nil, err
			}
		}
	}
	return v, nil
}

func pathOfKey(path, key string) string {
	if key == "" || strings.Trim(key, plainKey) != "" {
		return fmt.Sprintf("%s[%q]", path, key)
	}
	return path + "." + key
}

const plainKey = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"
