package confighash

import (
	"bytes"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Explain names the fields in which two definitions differ as far as the infra
// hash can tell, sorted, as paths into Infra's JSON form: market.type,
// args.disk.size. Lists are named whole. It returns nothing exactly when the
// hashes are equal.
func Explain(before, after Infra) []string {
	changed := differ(nil, "", tree(before), tree(after))
	slices.Sort(changed)
	return changed
}

// tree returns i as generic JSON. Arguments that cannot be read are compared as
// text, so that a bad definition can be explained too.
func tree(i Infra) any {
	n, err := i.normal()
	if err != nil {
		n.Args, _ = json.Marshal(string(i.Args))
	}
	var v any
	b, err := encode(n)
	if err != nil {
		return err.Error() // unreachable: strings and valid JSON always encode
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return err.Error()
	}
	return v
}

// missing stands for a key that is not there, which null is not.
type missing struct{}

func differ(changed []string, path string, a, b any) []string {
	if reflect.DeepEqual(a, b) {
		return changed
	}
	ma, okA := fields(a)
	mb, okB := fields(b)
	if !okA || !okB || len(ma)+len(mb) == 0 {
		return append(changed, path)
	}
	keys := maps.Clone(ma)
	maps.Copy(keys, mb)
	for k := range keys {
		changed = differ(changed, join(path, k), value(ma, k), value(mb, k))
	}
	return changed
}

// fields lets what is missing pass for an object without any, so that an object
// that came or went is named by its leaves.
func fields(v any) (map[string]any, bool) {
	if v == (missing{}) {
		return map[string]any{}, true
	}
	m, ok := v.(map[string]any)
	return m, ok
}

func value(m map[string]any, key string) any {
	if v, ok := m[key]; ok {
		return v
	}
	return missing{}
}

// join quotes keys that would make a path ambiguous.
func join(path, key string) string {
	if key == "" || strings.ContainsAny(key, `."[] `) {
		return path + "[" + strconv.Quote(key) + "]"
	}
	return strings.TrimPrefix(path+"."+key, ".")
}
