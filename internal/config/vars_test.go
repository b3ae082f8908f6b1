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
		"quoted":          "echo {{quote .Vars.motd}}",
		"as JSON":         `{"motd": {{.Vars.motd | json}}}`,
		"encoded":         `{{base64 .Vars.motd}}`,
		"put together":    `{{quote (printf "%s %s" .Vars.motd .Image)}}`,
		"piped":           `{{printf "%s" .Vars.motd | quote}}`,
		"all as JSON":     `{{json .Vars}}`,
		"a condition":     `{{if eq .Vars.motd "x"}}yes{{end}}`,
		"another one":     `{{.Vars.other}}`,
		"a part":          `{{with .Instance}}{{.ID}}{{end}}`,
		"another's dot":   `{{with .Image}}{{.}}{{end}}`,
		"quoted within":   `{{if .Image}}{{range 2}}{{quote $.Vars.motd}}{{end}}{{end}}`,
		"quoted by index": `{{quote (index .Vars "motd")}}`,
		"no template":     `plain`,
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
