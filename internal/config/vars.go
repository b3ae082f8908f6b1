package config

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/templates"
)

// CheckVars fails with Invalid, naming the variable, if a template of def prints
// a variable as it is whose value in vars is more than a plain word. vars are
// those that were set through the API: what a template prints as it is may be
// part of a script, so nothing in them may mean anything there.
func CheckVars(def nstance.Definition, vars map[string]string) error {
	risky := map[string]bool{}
	for name, value := range vars {
		if !plainWord(value) {
			risky[name] = true
		}
	}
	if len(risky) == 0 {
		return nil
	}
	for _, t := range scripts(def) {
		if name := printedVar(t.text, risky); name != "" {
			return nstance.FieldError("vars."+name, "use letters, digits and _./:@%+,=- only, or have the template print it through quote, json or base64",
				"%s prints it as it is, and it is more than a plain word", t.path)
		}
	}
	return nil
}

// CheckCertifiedVars fails with Invalid, naming the variable, if a name in a certificate
// of def is made of a variable that was set through the API, and no domain bounds such
// names, or the value is no part of a name. A name that is not within its domain is
// refused when the certificate is to be issued.
func (c *Config) CheckCertifiedVars(tenant nstance.TenantID, def nstance.Definition) error {
	given := map[string]bool{}
	for _, name := range def.GivenVars {
		given[name] = true
	}
	if len(given) == 0 {
		return nil
	}
	bounded := len(c.CertificateDomains(tenant)) > 0
	for _, name := range slices.Sorted(maps.Keys(def.Certificates)) {
		cert := def.Certificates[name]
		for _, text := range append([]string{cert.CommonName}, cert.DNSNames...) {
			used := printedVar(text, given)
			switch value := def.Vars[used]; {
			case used == "":
			case !bounded && cert.DNSSuffix == "":
				return nstance.FieldError("vars."+used, "leave it as configured, or set certificate_domains of the tenant or dns_suffix of the certificate in the configuration",
					"names in certificate %s are made of it, and no domain bounds them", name)
			case strings.Trim(value, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.") != "":
				return nstance.FieldError("vars."+used, "use letters, digits, dots and hyphens only", "names in certificate %s are made of it, and %q is no part of a name", name, clip.Quote(value))
			}
		}
	}
	return nil
}

// plainWord reports whether a value means itself, and one word, to shells, in
// JSON, YAML and files of variables, and is no option of a command.
func plainWord(value string) bool {
	const plain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./:@%+,=-"
	return strings.Trim(value, plain) == "" && !strings.HasPrefix(value, "-")
}

// A script is a template whose text may mean anything to what reads it.
type script struct{ path, text string }

// scripts returns the templates of a definition that are more than one value:
// values are encoded where they are put.
func scripts(def nstance.Definition) (out []script) {
	if text, err := def.UserData.Template(); err == nil {
		out = append(out, script{"userdata.content", text})
	}
	out = append(out, embedded("args", def.Args)...)
	for _, path := range slices.Sorted(maps.Keys(def.Files)) {
		f := def.Files[path]
		if f.Kind == nstance.FileString {
			out = append(out, script{"files." + path, f.Content})
		}
		out = append(out, embedded("files."+path, f.JSON)...)
	}
	return out
}

// embedded returns the strings within raw that hold more than one action.
func embedded(path string, raw json.RawMessage) (out []script) {
	var v any
	if len(raw) == 0 || json.Unmarshal(raw, &v) != nil {
		return nil
	}
	_, _ = templates.MapStrings(path, v, func(path, text string) (string, error) {
		if !templates.IsOneAction(text) {
			out = append(out, script{path, text})
		}
		return text, nil
	})
	return out
}

// printedVar returns the first of some variables that a template prints as it
// is, or may, "" for none. A template that cannot be parsed prints nothing.
func printedVar(text string, names map[string]bool) string {
	refs, err := templates.References(text)
	if err != nil {
		return ""
	}
	for _, r := range refs {
		name, all := r.Var()
		switch {
		case !r.Printed:
		case all:
			return slices.Min(slices.Collect(maps.Keys(names)))
		case names[name]:
			return name
		}
	}
	return ""
}

// UsesBootstrapData reports whether the text of a user data template names the bootstrap
// data.
func UsesBootstrapData(text string) bool {
	refs, err := templates.References(text)
	return err == nil && slices.ContainsFunc(refs, func(r templates.Reference) bool { return len(r.Path) > 0 && r.Path[0] == "BootstrapData" })
}

// userDataText returns the template of the user data, if it was fetched, where that
// is needed.
func userDataText(d nstance.Definition) (text string, known bool) {
	text, err := d.UserData.Template()
	return text, err == nil
}

// CheckBootstrapData fails with Invalid if g has bootstrap data that its user data does
// not name, or names some and has none though machines are to be made. User data that
// was not fetched yet is checked then.
func CheckBootstrapData(g nstance.Group, makesMachines bool) error {
	text, known := userDataText(g.Definition)
	uses := UsesBootstrapData(text)
	switch {
	case !known:
	case g.BootstrapData != "" && !uses:
		return nstance.FieldError("bootstrap_data", "leave it out, or have the user data print it with {{.BootstrapData}}",
			"the user data of template %q does not name it", clip.Quote(g.Template))
	case g.BootstrapData == "" && uses && makesMachines:
		return nstance.FieldError("bootstrap_data", "give it in a request for the group, or for each instance of a group of size 0",
			"the user data of template %q names it, and there is none", clip.Quote(g.Template))
	}
	return nil
}
