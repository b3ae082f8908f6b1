package confighash

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/nstance-go/nstance"
)

// A Change is one field in which two definitions differ.
type Change struct {
	Path   string `json:"path"`             // market.type, args.disk.size
	Before string `json:"before,omitempty"` // text as it is, anything else as JSON; empty where there is none
	After  string `json:"after,omitempty"`
}

// InfraChanges returns the fields in which two definitions differ as far as the
// infra hash can tell, sorted by path. Lists are named whole. It returns nothing
// exactly when the hashes are equal.
func InfraChanges(before, after nstance.Definition) []Change {
	return compare(tree(infraOf(before)), tree(infraOf(after)))
}

// RuntimeChanges is InfraChanges for what can be pushed to a machine that runs. Its
// paths and values are those of the configuration: files.motd.content.
func RuntimeChanges(before, after nstance.Definition) []Change {
	return compare(generic(configured(runtimeOf(before))), generic(configured(runtimeOf(after))))
}

// configured returns r as people write it: what the hash calls a file's source
// has a name of its own in each kind. As in the hash, empty is the same as absent.
func configured(r runtime) map[string]any {
	files, certificates := map[string]any{}, map[string]any{}
	for path, f := range r.Files {
		files[path] = configuredFile(f)
	}
	for name, c := range r.Certificates {
		certificates[name] = configuredCertificate(c)
	}
	out := map[string]any{"files": files, "certificates": certificates}
	if len(r.Vars) > 0 {
		out["vars"] = r.Vars
	}
	if len(r.PostApply) > 0 {
		out["post_apply"] = r.PostApply
	}
	return out
}

func configuredFile(f file) map[string]any {
	out := map[string]any{"kind": f.Kind}
	if f.Mode != 0 {
		out["mode"] = fmt.Sprintf("%04o", f.Mode)
	}
	if len(f.Env) > 0 {
		out["env"] = f.Env
	}
	if len(f.JSON) > 0 {
		out["json"] = f.JSON
	}
	source, part := "content", "part"
	switch nstance.FileKind(f.Kind) {
	case nstance.FileSecret:
		source, part = "secret", "field"
	case nstance.FileStorage:
		source = "object"
	case nstance.FileCertificate:
		source = "certificate"
	}
	for name, value := range map[string]string{source: f.Source, part: f.Part} {
		if value != "" {
			out[name] = value
		}
	}
	return out
}

func configuredCertificate(c certificate) map[string]any {
	var usages []string
	if c.Server {
		usages = append(usages, "server")
	}
	if c.Client {
		usages = append(usages, "client")
	}
	out := map[string]any{"common_name": c.CommonName, "addresses": c.Addresses, "usages": usages, "validity": c.Validity, "key": c.Key}
	if len(c.DNSNames) > 0 {
		out["dns_names"] = c.DNSNames
	}
	return out
}

func compare(before, after any) []Change {
	changed := differ(nil, "", before, after)
	slices.SortFunc(changed, func(a, b Change) int { return strings.Compare(a.Path, b.Path) })
	return changed
}

// tree returns i as generic JSON. Arguments that cannot be read are compared as
// text, so that a bad definition can be explained too.
func tree(i infra) any {
	n, err := i.normal()
	if err != nil {
		n.Args, _ = json.Marshal(string(i.Args))
	}
	return generic(n)
}

func generic(from any) any {
	var v any
	b, err := encode(from)
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

func differ(changed []Change, path string, a, b any) []Change {
	if reflect.DeepEqual(a, b) {
		return changed
	}
	ma, okA := fields(a)
	mb, okB := fields(b)
	if !okA || !okB || len(ma)+len(mb) == 0 {
		return append(changed, Change{path, spelt(a), spelt(b)})
	}
	keys := maps.Clone(ma)
	maps.Copy(keys, mb)
	for k := range keys {
		changed = differ(changed, join(path, k), value(ma, k), value(mb, k))
	}
	return changed
}

// spelt returns a value as people read it.
func spelt(v any) string {
	switch v := v.(type) {
	case missing:
		return ""
	case string:
		return v
	}
	b, err := encode(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
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
