package config_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/internal/filelimit"
)

// files returns a configuration with these files and, on line 3, certificates.
func files(certificates, files, more string) string {
	return fmt.Sprintf(`{
"cluster": {"id": "demo"}, "shard": {"id": "a", "provider": {"kind": "sim"}},
"certificates": {%s},
"templates": {"web": {"kind": "web", "arch": "amd64", "size": 1, "vars": {"a": "1"}, "files": {
%s
}%s}},
"groups": {"default": {"web": {"template": "web"}}},
}`, certificates, files, more)
}

func TestFilesAreDelivered(t *testing.T) {
	c, err := config.Parse("c", []byte(files(`"web": {"dns_names": ["{{.Vars.a}}"], "usages": ["client"], "addresses": false, "validity": "1h", "key": "tls"}`, `
		"app/app.env": {"kind": "env", "env": {"A": "{{.Vars.a}}", "EMPTY": ""}, "mode": "0600"},
		"app/app.json": {"kind": "json", "json": {"b": 1.0, "a": ["{{.Instance.ID}}"]}},
		"none.json": {"kind": "json", "json": {}},
		"empty": {"kind": "string", "content": ""},
		"password": {"kind": "secret", "secret": "db", "field": "password"},
		"nginx.conf": {"kind": "storage", "object": "files/nginx/web.conf"},
		"tls.crt": {"kind": "certificate", "certificate": "web"}, "ca.crt": {"kind": "certificate", "certificate": "web", "part": "ca"}`,
		`, "post_apply": ["run", "-v", "-v", ""]`)), kinds...)
	require.NoError(t, err)
	d := c.Groups()[0].Definition
	require.Equal(t, map[string]nstance.File{
		"app/app.env":  {Kind: nstance.FileEnv, Env: map[string]string{"A": "{{.Vars.a}}", "EMPTY": ""}, Mode: 0o600},
		"app/app.json": {Kind: nstance.FileJSON, JSON: json.RawMessage(`{"a":["{{.Instance.ID}}"],"b":1}`)},
		"none.json":    {Kind: nstance.FileJSON},
		"empty":        {Kind: nstance.FileString},
		"password":     {Kind: nstance.FileSecret, Secret: "db", Field: "password"},
		"nginx.conf":   {Kind: nstance.FileStorage, Object: "files/nginx/web.conf"},
		"tls.crt":      {Kind: nstance.FileCertificate, Certificate: "web", Part: nstance.PartChain},
		"ca.crt":       {Kind: nstance.FileCertificate, Certificate: "web", Part: nstance.PartCA},
	}, d.Files)
	require.Equal(t, map[string]nstance.Certificate{"web": {
		CommonName: "{{.Instance.ID}}", DNSNames: []string{"{{.Vars.a}}"}, Client: true, Validity: time.Hour, Key: "tls",
	}}, d.Certificates)
	require.Equal(t, []string{"run", "-v", "-v", ""}, d.PostApply)

	d.Files["app/app.env"].Env["A"] = "changed"
	d.Certificates["web"].DNSNames[0] = "changed"
	d.PostApply[0] = "changed"
	again := c.Groups()[0].Definition
	require.Equal(t, "{{.Vars.a}}", again.Files["app/app.env"].Env["A"], "a group belongs to its caller")
	require.Equal(t, "{{.Vars.a}}", again.Certificates["web"].DNSNames[0])
	require.Equal(t, "run", again.PostApply[0])
}

func TestDefaultsOfCertificates(t *testing.T) {
	c, err := config.Parse("c", []byte(files(`"web": {}`, `"a": {"kind": "certificate", "certificate": "web"}`, "")), kinds...)
	require.NoError(t, err)
	require.Equal(t, nstance.Certificate{
		CommonName: "{{.Instance.ID}}", Addresses: true, Server: true, Client: true, Validity: 24 * time.Hour, Key: "web",
	}, c.Groups()[0].Definition.Certificates["web"])
}

func TestBadFiles(t *testing.T) {
	const at = `templates.web.files.a`
	many := strings.Builder{}
	for i := range filelimit.Files + 1 {
		fmt.Fprintf(&many, `"f%d": {"kind": "string", "content": ""},`, i)
	}
	for name, c := range map[string]struct{ certificates, files, more, want string }{
		"no kind":                  {files: `"a": {"content": "x"}`, want: at + `.kind: c:5:6: is missing (add it)`},
		"an unknown kind":          {files: `"a": {"kind": "jsn"}`, want: `unknown word "jsn" (did you mean "json"?)`},
		"no content":               {files: `"a": {"kind": "string"}`, want: at + `.content: c:5:6: is missing (add it)`},
		"no variables":             {files: `"a": {"kind": "env"}`, want: at + `.env: c:5:6: is missing`},
		"no object":                {files: `"a": {"kind": "json"}`, want: at + `.json: c:5:6: is missing`},
		"no secret":                {files: `"a": {"kind": "secret"}`, want: at + `.secret: c:5:6: is missing`},
		"no key":                   {files: `"a": {"kind": "storage"}`, want: at + `.object: c:5:6: is missing`},
		"no certificate":           {files: `"a": {"kind": "certificate"}`, want: at + `.certificate: c:5:6: is missing`},
		"another kind's setting":   {files: `"a": {"kind": "string", "content": "x", "secret": "db"}`, want: at + `.secret: c:5:51: means nothing for kind string (remove it, or use kind secret)`},
		"another kind's part":      {files: `"a": {"kind": "string", "content": "x", "part": "ca"}`, want: at + `.part: c:5:49: means nothing for kind string`},
		"a path that leads out":    {files: `"../a": {"kind": "string", "content": "x"}`, want: `path "../a" has the segment ".."`},
		"an absolute path":         {files: `"/a": {"kind": "string", "content": "x"}`, want: `path "/a" has the segment ""`},
		"the agent's own":          {files: `".nstance/a": {"kind": "string", "content": "x"}`, want: `is reserved for the agent (use another name)`},
		"a file below a file":      {files: `"a": {"kind": "string", "content": "x"}, "a/b": {"kind": "string", "content": "x"}`, want: `templates.web.files["a/b"]: c:5:49: lies below the file "a" (rename one of them)`},
		"a mode for strangers":     {files: `"a": {"kind": "string", "content": "x", "mode": "0644"}`, want: at + `.mode: c:5:49: mode 0644 is not permitted`},
		"a mode in words":          {files: `"a": {"kind": "string", "content": "x", "mode": "rw"}`, want: `"rw" is not a file mode`},
		"a broken template":        {files: `"a": {"kind": "string", "content": "{{"}`, want: at + `.content: c:5:36: template line 1:`},
		"a broken value":           {files: `"a": {"kind": "env", "env": {"A": "{{end}}"}}`, want: at + `.env.A: c:5:35: template line 1:`},
		"a broken string in JSON":  {files: `"a": {"kind": "json", "json": {"x": ["{{"]}}`, want: at + `.json.x[0]: c:5:38: template line 1:`},
		"a variable with a hyphen": {files: `"a": {"kind": "env", "env": {"A-B": "x"}}`, want: at + `.env.A-B: c:5:37: "A-B" is not the name of a variable`},
		"a variable like a number": {files: `"a": {"kind": "env", "env": {"1A": "x"}}`, want: `"1A" is not the name of a variable`},
		"the cluster's own key":    {files: `"a": {"kind": "secret", "secret": "identity-ca.key"}`, want: at + `.secret: c:5:35: "identity-ca.key" is a name of the cluster's own keys (use another name)`},
		"the servers' own objects": {files: `"a": {"kind": "storage", "object": "secret/db"}`, want: at + `.object: c:5:36: "secret/db" is not below files/ (put the object below files/ and write files/...)`},
		"an object that leads out": {files: `"a": {"kind": "storage", "object": "files/../secret/db"}`, want: `is not the key of an object`},
		"a hidden object":          {files: `"a": {"kind": "storage", "object": "files/x/.y"}`, want: `is not the key of an object`},
		"an unknown certificate":   {certificates: `"web": {}`, files: `"a": {"kind": "certificate", "certificate": "wbe"}`, want: at + `.certificate: c:5:45: certificate "wbe" is not defined (did you mean "web"?)`},
		"an unknown part":          {certificates: `"web": {}`, files: `"a": {"kind": "certificate", "certificate": "web", "part": "key"}`, want: `unknown word "key"`},
		"two certificates, one key": {certificates: `"web": {"key": "k"}, "k": {}`, files: `"a": {"kind": "certificate", "certificate": "web"}, "b": {"kind": "certificate", "certificate": "k"}`,
			want: `certificates "k" and "web" have the same key (give each certificate a key of its own)`},
		"a short life":            {certificates: `"web": {"validity": "1m"}`, want: `certificates.web.validity: c:3:38: "1m" is too short (use at least 10m)`},
		"an unknown usage":        {certificates: `"web": {"usages": ["servr"]}`, want: `certificates.web.usages[0]: c:3:37: unknown word "servr" (did you mean "server"?)`},
		"a claimed name":          {certificates: `"web": {"dns_names": ["a", "{{.Instance.FQDN}}"]}`, want: `certificates.web.dns_names[1]: c:3:45: uses .Instance.FQDN, which the machine claims: it could have a certificate for any name (use .Instance.ID, or set dns_suffix`},
		"a claimed holder":        {certificates: `"web": {"common_name": "{{with .Instance}}{{.Hostname}}{{end}}"}`, want: `certificates.web.common_name: c:3:41: uses .Instance.Hostname`},
		"no domain":               {certificates: `"web": {"dns_suffix": ".example.com"}`, want: `certificates.web.dns_suffix: c:3:40: ".example.com" is not a domain`},
		"a broken name":           {certificates: `"web": {"common_name": "{{"}`, want: `certificates.web.common_name: c:3:41: template line 1:`},
		"a broken DNS name":       {certificates: `"web": {"dns_names": ["a", "{{"]}`, want: `certificates.web.dns_names[1]: c:3:45: template line 1:`},
		"a command without files": {more: `, "post_apply": ["x"]`, want: `templates.web.post_apply: c:6:18: means nothing without files (remove it, or add files)`},
		"an empty command":        {files: `"a": {"kind": "string", "content": ""}`, more: `, "post_apply": [""]`, want: `post_apply[0]: c:6:19: is empty`},
		"too many":                {files: many.String(), want: `has 257 files, more than 256`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := config.Parse("c", []byte(files(c.certificates, c.files, c.more)), kinds...)
			require.ErrorIs(t, err, nstance.Invalid)
			require.ErrorContains(t, err, c.want)
		})
	}
}
