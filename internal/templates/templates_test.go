package templates_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/templates"
)

func TestReferences(t *testing.T) {
	for text, want := range map[string]string{
		"plain":                          "",
		`{{.Vars.a}} {{.Image | quote}}`: "Vars.a! Image",
		`{{if eq .A "x"}}{{.B}}{{else}}{{.C}}{{end}}`:           "A B! C!",
		`{{if $x := .A}}{{end}}`:                                "A!",
		`{{with .A}}{{.B}}{{$.C}}{{else}}{{.D}}{{end}}`:         "A! C! D!",
		`{{range $k, $v := .A}}{{$v}}{{.}}{{index $.Vars "b"}}`: "error",
		`{{range .A}}{{index $.Vars "b"}}{{end}}`:               "A! Vars.b!",
		`{{quote (printf "%s" .A)}}{{printf "%s" (json .B)}}`:   "A B",
		`{{.A | quote | printf "%s%s" .B}}`:                     "A! B!",
		`{{json .}}{{(index .List 0).Name}}`:                    " List!",
		`{{define "t"}}{{.A}}{{end}}{{template "t" .B}}`:        "B!",
		`{{unknown .A}}`: "A!",
	} {
		refs, err := templates.References(text)
		if want == "error" {
			require.Error(t, err, text)
			continue
		}
		require.NoError(t, err, text)
		var got []string
		for _, r := range refs {
			path := strings.Join(r.Path, ".")
			if r.Printed {
				path += "!"
			}
			got = append(got, path)
		}
		require.Equal(t, want, strings.Join(got, " "), text)
	}
	refs, err := templates.References("line\n{{.A}}")
	require.NoError(t, err)
	require.Equal(t, "2:2", refs[0].Place())
}

func TestIsOneAction(t *testing.T) {
	for text, want := range map[string]bool{"{{.A}}": true, "{{.A | json}}": true, " {{.A}}": false, "{{.A}}{{.B}}": false, "{{$x := .A}}": false, "x": false, "{{": false} {
		require.Equal(t, want, templates.IsOneAction(text), text)
	}
}

func TestMapStrings(t *testing.T) {
	var v any
	require.NoError(t, json.Unmarshal([]byte(`{"b":[1,"x",{"c d":"y"}],"a":"z"}`), &v))
	var paths []string
	out, err := templates.MapStrings("args", v, func(path, text string) (string, error) {
		paths = append(paths, path)
		return text + "!", nil
	})
	require.NoError(t, err)
	require.Equal(t, []string{"args.a", "args.b[1]", `args.b[2]["c d"]`}, paths)
	data, err := json.Marshal(out)
	require.NoError(t, err)
	require.JSONEq(t, `{"b":[1,"x!",{"c d":"y!"}],"a":"z!"}`, string(data))
}
