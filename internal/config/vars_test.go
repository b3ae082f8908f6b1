package config_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/config"
)

func TestCheckVars(t *testing.T) {
	userData := func(text string) nstance.Definition {
		return nstance.Definition{UserData: nstance.UserData{Source: nstance.SourceInline, Content: text}}
	}
	check := func(def nstance.Definition, value string) error {
		return config.CheckVars(def, map[string]string{"motd": value, "other": "fine"})
	}
	for _, value := range []string{"", "web-1.example.com:80", "a/b_c@d%20+e,f=g", "10.0.0.0/8"} {
		require.NoError(t, check(userData("echo {{.Vars.motd}}"), value), value)
	}
	risky := []string{"a b", "a\nb", "$(reboot)", "`reboot`", `a"b`, "a'b", "a;b", "a|b", "a\\b", "--force", "a&b", "<a>", "#a", "~", "*", "{a}", "é", "a\x00b"}
	for name, text := range map[string]string{
		"a field":              "echo {{.Vars.motd}}",
		"the root's":           "{{with .Image}}{{$.Vars.motd}}{{end}}",
		"through printf":       `{{printf "%s" .Vars.motd}}`,
		"quoted by hand":       `echo "{{.Vars.motd}}"`,
		"by index":             `{{index .Vars "motd"}}`,
		"in a variable":        `{{$x := .Vars.motd}}{{$x}}`,
		"in a pipe":            `{{.Vars.motd | printf "%q"}}`,
		"quoted, then more":    `{{.Vars.motd | quote | printf "%s%s" .Vars.motd}}`,
		"all of them":          `{{range .Vars}}{{.}}{{end}}`,
		"everything":           `{{.}}`,
		"with":                 `{{with .Vars.motd}}{{.}}{{end}}`,
		"another template":     `{{define "t"}}{{.}}{{end}}{{template "t" .Vars.motd}}`,
		"a block":              `{{block "b" .}}{{.Vars.motd}}{{end}}`,
		"in parentheses":       `{{printf "%s" (print .Vars.motd)}}`,
		"by a condition":       `{{if $x := .Vars.motd}}{{$x}}{{end}}`,
		"else":                 `{{if .Image}}{{else}}{{.Vars.motd}}{{end}}`,
		"html is for no shell": `{{html .Vars.motd}}`,
	} {
		for _, value := range risky {
			err := check(userData(text), value)
			require.ErrorIs(t, err, nstance.Invalid, "%s: %q", name, value)
			require.ErrorContains(t, err, "vars.motd: userdata.content prints it as it is")
		}
	}
	for name, text := range map[string]string{
		"quoted":           "echo {{quote .Vars.motd}}",
		"as JSON":          `{"motd": {{.Vars.motd | json}}}`,
		"encoded":          `{{base64 .Vars.motd}}`,
		"put together":     `{{quote (printf "%s %s" .Vars.motd .Image)}}`,
		"piped":            `{{printf "%s" .Vars.motd | quote}}`,
		"all as JSON":      `{{json .Vars}}`,
		"a condition":      `{{if eq .Vars.motd "x"}}yes{{end}}`,
		"another one":      `{{.Vars.other}}`,
		"a part":           `{{with .Instance}}{{.ID}}{{end}}`,
		"another's dot":    `{{with .Image}}{{.}}{{end}}`,
		"quoted within":    `{{if .Image}}{{range 2}}{{quote $.Vars.motd}}{{end}}{{end}}`,
		"quoted by index":  `{{quote (index .Vars "motd")}}`,
		"another by index": `{{with .Image}}{{index $.Vars "other"}}{{end}}`,
		"no template":      `plain`,
	} {
		for _, value := range risky {
			require.NoError(t, check(userData(text), value), "%s: %q", name, value)
		}
	}

	t.Run("files and arguments", func(t *testing.T) {
		def := nstance.Definition{Files: map[string]nstance.File{
			"env":  {Kind: nstance.FileEnv, Env: map[string]string{"A": "x {{.Vars.motd}}"}},
			"json": {Kind: nstance.FileJSON, JSON: json.RawMessage(`{"a": ["{{.Vars.motd}}"]}`)},
		}, Args: json.RawMessage(`{"name": "{{.Vars.motd}}", "tags": ["{{.Image}}"]}`)}
		require.NoError(t, check(def, "a b"), "values are encoded")
		def.Args = json.RawMessage(`{"run": ["sh", "echo {{.Vars.motd}}"]}`)
		require.ErrorContains(t, check(def, "a b"), "args.run[1] prints it")
		def.Args = nil
		def.Files["json"] = nstance.File{Kind: nstance.FileJSON, JSON: json.RawMessage(`{"run": "echo {{.Vars.motd}}"}`)}
		require.ErrorContains(t, check(def, "a b"), "files.json.run prints it")
		delete(def.Files, "json")
		def.Files["run.sh"] = nstance.File{Kind: nstance.FileString, Content: "echo {{.Vars.motd}}"}
		require.ErrorContains(t, check(def, "a b"), "files.run.sh prints it")
	})
}

// TestCheckCertifiedVars: a variable that was set through the API is part of a name in a
// certificate only where a domain bounds such names, and only if it is part of a name.
func TestCheckCertifiedVars(t *testing.T) {
	parse := func(more string) *config.Config {
		c, err := config.Parse("c", []byte(`{"cluster": {"id": "a"}, "shard": {"id": "a", "provider": {"kind": "sim"}}`+more+`}`), kinds...)
		require.NoError(t, err)
		return c
	}
	free, bounded := parse(""), parse(`, "tenants": {"blue": {"certificate_domains": ["web.example"]}}`)
	for name, c := range map[string]struct {
		conf   *config.Config
		suffix string
		value  string
		given  []string
		ok     bool
	}{
		"the configured value":       {free, "", "a b", nil, true},
		"no domain":                  {free, "", "web", []string{"name"}, false},
		"the certificate's domain":   {free, "web.example", "web", []string{"name"}, true},
		"the tenant's domain":        {bounded, "", "web.a-1", []string{"name"}, true},
		"no part of a name":          {bounded, "", "web/a", []string{"name"}, false},
		"a wildcard":                 {free, "web.example", "*", []string{"name"}, false},
		"another variable was given": {free, "", "web", []string{"other"}, true},
	} {
		def := nstance.Definition{
			Vars: map[string]string{"name": c.value, "other": "x y"}, GivenVars: c.given,
			Certificates: map[string]nstance.Certificate{"tls": {CommonName: "fixed", DNSNames: []string{"{{.Vars.name}}"}, DNSSuffix: c.suffix}},
		}
		err := c.conf.CheckCertifiedVars("blue", def)
		require.Equal(t, c.ok, err == nil, "%s: %v", name, err)
		if !c.ok {
			require.ErrorIs(t, err, nstance.Invalid)
			require.Equal(t, "vars.name", fieldOf(t, err))
		}
	}
}

// TestCheckBootstrapData: what user data name is there where machines are to be made, and what is
// there is named.
func TestCheckBootstrapData(t *testing.T) {
	for name, c := range map[string]struct {
		text, data string
		machines   bool
		ok         bool
	}{
		"named and there":            {"{{.BootstrapData}}", "1f", true, true},
		"neither":                    {"plain", "", true, true},
		"named and missing":          {"{{.BootstrapData}}", "", true, false},
		"missing, without a machine": {"{{.BootstrapData}}", "", false, true},
		"there, and not named":       {"{{.Image}}", "1f", false, false},
	} {
		g := nstance.Group{BootstrapData: c.data, Definition: nstance.Definition{UserData: nstance.UserData{Source: nstance.SourceInline, Content: c.text}}}
		require.Equal(t, c.ok, config.CheckBootstrapData(g, c.machines) == nil, name)
	}
	later := nstance.Group{BootstrapData: "1f", Definition: nstance.Definition{UserData: nstance.UserData{Source: nstance.SourceURL, Content: "https://x"}}}
	require.NoError(t, config.CheckBootstrapData(later, true), "it is checked when it was fetched")
}
