package config_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/config"
)

// rendering is a configuration with templates in all places. Of a template: its
// user data, args and file; then vars and size of its group.
const rendering = `{
	"cluster": {"id": "c1"}, "shard": {"id": "s1", "provider": {"kind": "sim"}},
	"templates": {"vm": {"kind": "web", "arch": "amd64", "vars": {"colour": "red"},
		"userdata": {"content": %q},
		"args": {"name": %q},
		"files": {"a": {"kind": "string", "content": %q}}
	}},
	"groups": {"default": {"web": {"template": "vm", "vars": {"shape": "round"}, "size": %d}}}
}`

func TestTemplatesAreRendered(t *testing.T) {
	const everything = `{{.Instance.ID}}{{.Instance.Hostname}}{{.Instance.FQDN}}{{.Instance.IP4}}{{.Instance.IP6}}{{.Cluster.CACert}}` +
		`{{.Server.AgentAddr}}{{.Provider.Zone}}{{.Image}}{{.Vars.colour}}{{.Vars.shape}}{{json .Vars}}{{base64 .Vars.colour}}` +
		`{{with .Vars}}{{.colour}}{{end}}{{index .Vars "other"}}{{if eq .Provider.Kind "x"}}{{.Instance.ID.Kind}}{{end}}{{slice .Image 0 4}}{{json .}}`
	for name, c := range map[string]struct {
		boot, args, file string
		size             int
		want             string // "" is fine
	}{
		"what there is":                  {everything + "{{.Nonce}}", everything, everything, 1, ""},
		"a field":                        {"{{.Clutser.ID}}", "", "", 1, `templates.vm.userdata.content: c:4:27: template line 1:10: there is no .Clutser (did you mean "Cluster"?)`},
		"a field within":                 {"x\n{{$.Instance.Hostnam}}", "", "", 1, `template line 2:3: there is no .Instance.Hostnam (did you mean "Hostname"?)`},
		"a field that is rarely reached": {"", `{{if eq .Vars.colour "x"}}{{.Imgae}}{{end}}`, "", 1, `templates.vm.args.name: c:5:20: template line 1:28: there is no .Imgae (did you mean "Image"?)`},
		"beneath another":                {"{{.Image.ID}}", "", "", 1, "there is no .Image.ID"},
		"a nonce in a file":              {"-", "", "{{.Nonce}}", 1, "templates.vm.files.a.content: c:6:48: template line 1:2: there is no .Nonce"},
		"a function":                     {"{{nosuch 1}}", "", "", 1, `template line 1: function "nosuch" not defined (valid here:`},
		"a function misspelt":            {"{{bas64 .Image}}", "", "", 1, `(did you mean "base64"?)`},
		"a variable":                     {"{{.Vars.color}}", "", "", 1, `groups.default.web.vars: c:8:59: there is no variable "color", which templates.vm.userdata.content names (did you mean "colour"?)`},
		"a variable in a file":           {"-", "", "{{.Vars.size}}", 1, `which templates.vm.files.a.content names`},
		"a variable that requests bring": {"{{.Vars.color}}", "", "", 0, ""},
		"a template that is not there":   {`{{template "x"}}`, "", "", 1, `templates.vm.userdata.content: c:4:27: template line 1:11:`},
		"too few arguments":              {`{{base64}}`, "", "", 1, "wrong number of args for base64"},
		"what another value may mend":    {`{{slice .Vars.colour 10}}`, "", "", 1, ""},
		"a range without end":            {`{{range 150000000}}{{end}}`, "", "", 1, "templates.vm.userdata.content: c:4:27: takes more than 50000 steps"},
		"wide fields":                    {`{{range 400}}{{printf "%1000000d" 1}}{{end}}`, "", "", 1, "a width or precision is larger than 256"},
		"a range without end in args":    {"-", "{{range 150000000}}{{end}}", "", 1, "templates.vm.args.name: c:5:"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := config.Parse("c", fmt.Appendf(nil, rendering, c.boot, c.args, c.file, c.size))
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.want)
		})
	}
	_, err := config.ParseArgs([]byte(`{"name": ["a", "{{.Instance.ID}}"]}`))
	require.ErrorContains(t, err, "args.name[1]: looks like a template")
	require.ErrorContains(t, config.CheckUserData("userdata.content", "{{.Instence.ID}}"), "userdata.content")
	require.NoError(t, config.CheckUserData("userdata.content", everything))
}
