package files_test

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/files"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/pki"
)

// A fakeSources is a source in memory.
type fakeSources struct {
	things map[string]string
	err    error
	asked  atomic.Int32
}

func (s *fakeSources) Get(_ context.Context, name string) ([]byte, error) {
	s.asked.Add(1)
	if s.err != nil {
		return nil, s.err
	}
	data, ok := s.things[name]
	if !ok {
		return nil, nstance.Errorf(nstance.NotFound, "no %s", name)
	}
	return []byte(data), nil
}

var common = files.Common{
	Cluster: files.Cluster{ID: "prod", CACert: "PEM"}, Server: files.Server{Shard: "a", AgentAddr: "a:1"},
	Provider: files.Provider{Kind: "aws", Region: "eu"},
}

func prepare(d nstance.Definition, src files.Sources, before *files.Kit) *files.Kit {
	return files.Prepare(context.Background(), "h1", d, common, src, before)
}

// ca is an authority that counts.
type ca struct {
	*keyring.Authority
	issued int
}

func newCA(t *testing.T) *ca {
	a, err := keyring.NewAuthority(keyring.Workload, time.Now().Add(-time.Hour))
	require.NoError(t, err)
	return &ca{Authority: a}
}

func (c *ca) Issue(_ context.Context, t keyring.Template) (keyring.KeyRecord, error) {
	c.issued++
	return c.Authority.Issue(t)
}

func machine(id string) files.Machine {
	return files.Machine{
		Instance: files.Instance{ID: nstance.InstanceID(id), Type: "small", IP4: "10.0.0.1"}, Image: "ami-1", Tenant: "default",
		Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")},
	}
}

// one makes the set of a definition with one file.
func one(t *testing.T, f nstance.File, src files.Sources) (content string, problem string, kit *files.Kit) {
	t.Helper()
	d := nstance.Definition{Files: map[string]nstance.File{"f": f}, Vars: map[string]string{"a": "1", "q": `it's "$5"`}}
	kit = prepare(d, src, nil)
	set := kit.Set(t.Context(), machine("web1"), nil, newCA(t), time.Now())
	require.Len(t, set.Files, 1)
	data, _ := set.Content(set.Files[0].Digest)
	return string(data), set.Files[0].Error, kit
}

func TestRendering(t *testing.T) {
	secrets := files.Sources{Secrets: &fakeSources{things: map[string]string{
		"db": `{"password": "p", "port": 5432, "list": [1]}`, "raw": "\x00raw", "big": strings.Repeat("x", 1<<20+1),
	}}, Objects: &fakeSources{things: map[string]string{"files/x": "{{not rendered}}"}}}
	for name, c := range map[string]struct {
		file  nstance.File
		want  string
		error string
		own   bool
	}{
		"a string":                 {file: nstance.File{Kind: "string", Content: "{{.Vars.a}} {{.Cluster.ID}} {{.Server.Shard}} {{.Server.AgentAddr}} {{.Provider.Kind}} {{.Provider.Region}}"}, want: "1 prod a a:1 aws eu"},
		"of one machine":           {file: nstance.File{Kind: "string", Content: "{{.Instance.ID}} {{.Instance.Type}} {{.Instance.IP4}} {{.Image}}"}, want: "web1 small 10.0.0.1 ami-1", own: true},
		"of one machine, in part":  {file: nstance.File{Kind: "string", Content: `{{if eq .Vars.a "2"}}{{.Instance.ID}}{{else}}none{{end}}`}, want: "none"},
		"a bare view":              {file: nstance.File{Kind: "string", Content: "{{with .}}{{json .}}{{end}}"}, want: "web1", own: true},
		"without anything":         {file: nstance.File{Kind: "string"}, want: ""},
		"a missing variable":       {file: nstance.File{Kind: "string", Content: "{{.Vars.b}}"}, error: `no entry for key "b"`},
		"a nonce":                  {file: nstance.File{Kind: "string", Content: "{{.Nonce}}"}, error: "Nonce"},
		"an unknown function":      {file: nstance.File{Kind: "string", Content: "{{nope}}"}, error: "cannot be parsed"},
		"a string without end":     {file: nstance.File{Kind: "string", Content: `{{range 2000}}{{printf "%200d%200d%200d" 1 2 3}}{{end}}`}, error: "more than 1 MiB"},
		"json":                     {file: nstance.File{Kind: "json", JSON: json.RawMessage(`{"b":1.50,"a":["{{.Vars.q}}",{"c":null}],"html":"<&>"}`)}, want: "{\n  \"a\": [\n    \"it's \\\"$5\\\"\",\n    {\n      \"c\": null\n    }\n  ],\n  \"b\": 1.50,\n  \"html\": \"<&>\"\n}\n"},
		"no json":                  {file: nstance.File{Kind: "json"}, want: "{}\n"},
		"json of one machine":      {file: nstance.File{Kind: "json", JSON: json.RawMessage(`{"id":"{{.Instance.ID}}"}`)}, want: "{\n  \"id\": \"web1\"\n}\n", own: true},
		"variables":                {file: nstance.File{Kind: "env", Env: map[string]string{"B": "two words", "A": "{{.Vars.a}}", "C": "{{.Vars.q}}", "D": "", "E": "x=y"}}, want: "A=1\nB='two words'\nC=\"it's \\\"\\$5\\\"\"\nD=\nE='x=y'\n"},
		"a variable with zero":     {file: nstance.File{Kind: "env", Env: map[string]string{"A": "\x00"}}, error: "zero byte"},
		"a secret":                 {file: nstance.File{Kind: "secret", Secret: "raw"}, want: "\x00raw"},
		"a field of a secret":      {file: nstance.File{Kind: "secret", Secret: "db", Field: "password"}, want: "p"},
		"a number of a secret":     {file: nstance.File{Kind: "secret", Secret: "db", Field: "port"}, want: "5432"},
		"a list of a secret":       {file: nstance.File{Kind: "secret", Secret: "db", Field: "list"}, want: "[1]"},
		"no such field":            {file: nstance.File{Kind: "secret", Secret: "db", Field: "x"}, error: `no field "x"`},
		"no such secret":           {file: nstance.File{Kind: "secret", Secret: "x"}, error: "no x"},
		"a field of no object":     {file: nstance.File{Kind: "secret", Secret: "raw", Field: "x"}, error: "no JSON object"},
		"a secret that is too big": {file: nstance.File{Kind: "secret", Secret: "big"}, error: "more than 1 MiB"},
		"an object":                {file: nstance.File{Kind: "storage", Object: "files/x"}, want: "{{not rendered}}"},
		"no such object":           {file: nstance.File{Kind: "storage", Object: "files/y"}, error: "no files/y"},
		"of a later version":       {file: nstance.File{Kind: "later"}, error: `kind "later" cannot be made`},
	} {
		t.Run(name, func(t *testing.T) {
			got, problem, kit := one(t, c.file, secrets)
			require.Equal(t, c.own, kit.Varies())
			if c.error != "" {
				require.Contains(t, problem, c.error)
				require.Contains(t, strings.Join(kit.Problems(), ""), c.error)
				require.True(t, kit.Troubled())
				return
			}
			require.Empty(t, problem)
			if name == "a bare view" {
				require.Contains(t, got, c.want)
				return
			}
			require.Equal(t, c.want, got)
		})
	}
	t.Run("an error never quotes the secret", func(t *testing.T) {
		_, problem, _ := one(t, nstance.File{Kind: "secret", Secret: "raw", Field: "x"}, secrets)
		require.NotContains(t, problem, "raw")
	})
}

// TestVariablesReadAlike reads a file of variables with a real shell.
func TestVariablesReadAlike(t *testing.T) {
	values := []string{"", "plain", "two words", `it's`, `"$HOME"`, "`id`", `back\slash`, `'"'`, "line\nline", "tab\t", "#x", "~", "a;b&&c|d", "*", "$(id)", `it's $x \ "q"`, "umläut", "!bang", "it's\ntwo"}
	env := map[string]string{}
	for i, v := range values {
		env[fmt.Sprintf("V%d", i)] = v
	}
	content, problem, _ := one(t, nstance.File{Kind: "env", Env: env}, files.Sources{})
	require.Empty(t, problem)
	script := content
	for i := range values {
		script += fmt.Sprintf("printf '%%s\\0' \"$V%d\"\n", i)
	}
	out, err := exec.CommandContext(t.Context(), "/bin/sh", "-c", script).Output()
	require.NoError(t, err)
	require.Equal(t, strings.Join(values, "\x00")+"\x00", string(out))
}

func TestKitIsSharedByMachines(t *testing.T) {
	secrets := &fakeSources{things: map[string]string{"db": "s"}}
	d := nstance.Definition{Vars: map[string]string{"a": "1"}, Files: map[string]nstance.File{
		"a":  {Kind: "string", Content: "{{.Vars.a}}"},
		"id": {Kind: "string", Content: "{{.Instance.ID}}"},
		"s1": {Kind: "secret", Secret: "db"}, "s2": {Kind: "secret", Secret: "db"},
	}}
	kit := prepare(d, files.Sources{Secrets: secrets}, nil)
	one := kit.Set(t.Context(), machine("web1"), nil, newCA(t), time.Now())
	two := kit.Set(t.Context(), machine("web2"), nil, newCA(t), time.Now())
	require.EqualValues(t, 1, secrets.asked.Load(), "once for all machines and files")
	require.Equal(t, one.Files[0], two.Files[0])
	require.NotEqual(t, one.Files[1].Digest, two.Files[1].Digest)
	a, _ := one.Content(one.Files[0].Digest)
	b, _ := two.Content(two.Files[0].Digest)
	require.Same(t, &a[0], &b[0], "one copy in memory")
	require.EqualValues(t, 4, one.Own, "the bytes of web1")
	require.True(t, one.Complete())
	one.Drop()
	_, ok := one.Content(one.Files[0].Digest)
	require.False(t, ok)
	require.Len(t, one.Files, 4)
}

func TestInPlace(t *testing.T) {
	d := nstance.Definition{Files: map[string]nstance.File{"a": {Kind: "string", Content: "1"}, "b": {Kind: "string", Content: "2"}}}
	set := prepare(d, files.Sources{}, nil).Set(t.Context(), machine("web1"), nil, newCA(t), time.Now())
	have := []nstance.FileStatus{{Path: "a", Digest: set.Files[0].Digest}, {Path: "b", Digest: set.Files[1].Digest}}
	require.True(t, set.InPlace("h1", have))
	require.False(t, set.InPlace("h0", have), "the hash counts")
	require.False(t, set.InPlace("h1", have[:1]))
	require.False(t, set.InPlace("h1", []nstance.FileStatus{have[0], {Path: "b", Digest: "x"}}))
	require.False(t, set.InPlace("h1", []nstance.FileStatus{have[0], {Path: "c", Digest: have[1].Digest}}))
	require.False(t, set.InPlace("h1", []nstance.FileStatus{have[0], {Path: "b", Digest: have[1].Digest, Error: "x"}}), "an error that is over must be taken back")

	d.Files["b"] = nstance.File{Kind: "string", Content: "{{.Vars.x}}"}
	set = prepare(d, files.Sources{}, nil).Set(t.Context(), machine("web1"), nil, newCA(t), time.Now())
	require.False(t, set.Complete())
	require.Contains(t, set.Errors(), "b: ")
	require.False(t, set.InPlace("h0", have), "the machine must be told")
	told := []nstance.FileStatus{have[0], {Path: "b", Digest: "x", Error: "no"}}
	require.True(t, set.InPlace("h0", told), "once: its own hash stays")
}

func TestUnavailableSource(t *testing.T) {
	secrets := &fakeSources{things: map[string]string{"db": "s"}}
	d := nstance.Definition{Files: map[string]nstance.File{"s": {Kind: "secret", Secret: "db"}}}
	first := prepare(d, files.Sources{Secrets: secrets}, nil)
	require.True(t, first.External())
	secrets.err = nstance.Unavailable
	second := prepare(d, files.Sources{Secrets: secrets}, first)
	require.True(t, second.Same(first), "an error is not an answer")
	require.True(t, second.Troubled())
	require.Contains(t, strings.Join(second.Problems(), ""), "secret db")
	secrets.err = nstance.Errorf(nstance.NotFound, "gone")
	third := prepare(d, files.Sources{Secrets: secrets}, second)
	require.False(t, third.Same(second), "a definite no is one")
	secrets.err = nil
	require.True(t, prepare(d, files.Sources{Secrets: secrets}, third).Same(first))
	secrets.things["db"] = "newer"
	require.False(t, prepare(d, files.Sources{Secrets: secrets}, first).Same(first))
	require.False(t, first.Same(nil))
}

func certified() nstance.Definition {
	return nstance.Definition{
		Vars: map[string]string{"dns": "web.example"},
		Files: map[string]nstance.File{
			"ca": {Kind: "certificate", Certificate: "web", Part: "ca"}, "cert": {Kind: "certificate", Certificate: "web", Part: "cert"},
			"chain": {Kind: "certificate", Certificate: "web", Part: "chain"},
		},
		Certificates: map[string]nstance.Certificate{"web": {
			CommonName: "{{.Instance.ID}}", DNSNames: []string{"{{.Vars.dns}}", "{{.Instance.FQDN}}"}, DNSSuffix: "web.example", Addresses: true, Client: true, Validity: 3 * time.Hour, Key: "k",
		}},
	}
}

func TestCertificates(t *testing.T) {
	kit, by, key := prepare(certified(), files.Sources{}, nil), newCA(t), pki.NewKey()
	require.Equal(t, []string{"k"}, kit.Keys())
	public := key.Public().(ed25519.PublicKey)
	now := time.Now()
	set := kit.Set(t.Context(), machine("web1"), map[string]files.Key{"k": {Public: public}}, by, now)
	require.True(t, set.Complete(), set.Errors())
	require.Equal(t, 1, by.issued)
	data, _ := set.Content(set.Files[1].Digest)
	certs, err := pki.ParseCertificates(data)
	require.NoError(t, err)
	require.Equal(t, []string{"web.example"}, certs[0].DNSNames)
	require.Len(t, certs[0].IPAddresses, 2)
	require.WithinDuration(t, now.Add(2*time.Hour), set.Renew, 2*time.Minute)
	held := map[string]files.Key{"k": {Public: public, Certificate: set.Held()["k"]}}

	again := func(d nstance.Definition, m files.Machine, held map[string]files.Key, at time.Time) bool {
		before := by.issued
		set := prepare(d, files.Sources{}, nil).Set(t.Context(), m, held, by, at)
		require.True(t, set.Complete(), set.Errors())
		return by.issued > before
	}
	t.Run("a good one is kept", func(t *testing.T) {
		require.False(t, again(certified(), machine("web1"), held, now.Add(time.Hour)))
	})
	for name, change := range map[string]func(d *nstance.Definition, m *files.Machine, held map[string]files.Key, at *time.Time){
		"two thirds of its life are over": func(_ *nstance.Definition, _ *files.Machine, _ map[string]files.Key, at *time.Time) {
			*at = at.Add(2*time.Hour + time.Minute)
		},
		"its names change": func(d *nstance.Definition, _ *files.Machine, _ map[string]files.Key, _ *time.Time) {
			d.Vars["dns"] = "other"
		},
		"its holder changes": func(_ *nstance.Definition, m *files.Machine, _ map[string]files.Key, _ *time.Time) {
			m.Instance.ID = "web2"
		},
		"its addresses change": func(_ *nstance.Definition, m *files.Machine, _ map[string]files.Key, _ *time.Time) {
			m.Addresses = m.Addresses[:1]
		},
		"its use changes": func(d *nstance.Definition, _ *files.Machine, _ map[string]files.Key, _ *time.Time) {
			c := d.Certificates["web"]
			c.Server = true
			d.Certificates["web"] = c
		},
		"its validity changes": func(d *nstance.Definition, _ *files.Machine, _ map[string]files.Key, _ *time.Time) {
			c := d.Certificates["web"]
			c.Validity = 4 * time.Hour
			d.Certificates["web"] = c
		},
		"its key changes": func(_ *nstance.Definition, _ *files.Machine, held map[string]files.Key, _ *time.Time) {
			held["k"] = files.Key{Public: pki.NewKey().Public().(ed25519.PublicKey), Certificate: held["k"].Certificate}
		},
		"it is no certificate": func(_ *nstance.Definition, _ *files.Machine, held map[string]files.Key, _ *time.Time) {
			held["k"] = files.Key{Public: public, Certificate: []byte("x")}
		},
		"another authority signed it": func(_ *nstance.Definition, _ *files.Machine, held map[string]files.Key, _ *time.Time) {
			set := kit.Set(t.Context(), machine("web1"), map[string]files.Key{"k": {Public: public}}, newCA(t), now)
			held["k"] = files.Key{Public: public, Certificate: set.Held()["k"]}
		},
	} {
		t.Run("a new one is issued when "+name, func(t *testing.T) {
			d, m, at, keys := certified(), machine("web1"), now, map[string]files.Key{"k": held["k"]}
			change(&d, &m, keys, &at)
			require.True(t, again(d, m, keys, at))
		})
	}
	t.Run("without a key there is none", func(t *testing.T) {
		set := kit.Set(t.Context(), machine("web1"), nil, by, now)
		require.Contains(t, set.Errors(), "made no key yet")
		require.Empty(t, set.Files[0].Error, "what to trust needs none")
	})
}

// TestEarliestRenewal: the certificate that is due first decides when a set is made again.
func TestEarliestRenewal(t *testing.T) {
	d := certified()
	d.Certificates["a"], d.Certificates["z"] = d.Certificates["web"], d.Certificates["web"]
	for name, validity := range map[string]time.Duration{"a": 30 * time.Hour, "z": 300 * time.Hour} {
		c := d.Certificates[name]
		c.Validity = validity
		d.Certificates[name] = c
		d.Files[name] = nstance.File{Kind: "certificate", Certificate: name, Part: "cert"}
	}
	now := time.Now()
	set := prepare(d, files.Sources{}, nil).Set(t.Context(), machine("web1"), map[string]files.Key{"k": {Public: pki.NewKey().Public().(ed25519.PublicKey)}}, newCA(t), now)
	require.True(t, set.Complete(), set.Errors())
	require.WithinDuration(t, now.Add(2*time.Hour), set.Renew, 2*time.Minute)
}

// TestRenews: a machine needs other certificates, and nothing else.
func TestRenews(t *testing.T) {
	d := certified()
	d.Files["app"] = nstance.File{Kind: "string", Content: "1"}
	set := prepare(d, files.Sources{}, nil).Set(t.Context(), machine("web1"), map[string]files.Key{"k": {Public: pki.NewKey().Public().(ed25519.PublicKey)}}, newCA(t), time.Now())
	require.True(t, set.Complete(), set.Errors())
	have := func(change func(path string) bool) (out []nstance.FileStatus) {
		for _, f := range set.Files {
			s := nstance.FileStatus{Path: f.Path, Digest: f.Digest}
			if change(f.Path) {
				s.Digest = "sha256:other"
			}
			out = append(out, s)
		}
		return out
	}
	certificates := have(func(path string) bool { return path != "app" })
	require.True(t, set.Renews("h1", certificates))
	require.False(t, set.InPlace("h1", certificates))
	require.False(t, set.Renews("h0", certificates), "the hash counts")
	require.False(t, set.Renews("h1", have(func(path string) bool { return path == "app" })))
}

// TestWhatMakesAnotherSet: what all machines of a group see counts, even where no file shows it yet.
func TestWhatMakesAnotherSet(t *testing.T) {
	d := nstance.Definition{Files: map[string]nstance.File{"id": {Kind: "string", Content: "{{.Instance.ID}} {{.Cluster.CACert}}"}}}
	other := common
	other.Cluster.CACert = "another PEM"
	first := prepare(d, files.Sources{}, nil)
	require.True(t, first.Same(prepare(d, files.Sources{}, nil)))
	require.False(t, first.Same(files.Prepare(t.Context(), "h1", d, other, files.Sources{}, nil)))
}

// TestTooMuchForAMachine: a set has at most 8 MiB; the files beyond have an error, the others are
// made.
func TestTooMuchForAMachine(t *testing.T) {
	d := nstance.Definition{Files: map[string]nstance.File{"z": {Kind: "string", Content: "small"}}}
	objects := &fakeSources{things: map[string]string{"big": strings.Repeat("x", 1<<20)}}
	for n := range 9 {
		d.Files[fmt.Sprint("f", n)] = nstance.File{Kind: "storage", Object: "big"}
	}
	set := prepare(d, files.Sources{Objects: objects}, nil).Set(t.Context(), machine("web1"), nil, newCA(t), time.Now())
	require.Equal(t, "f8: the files of a machine have more than 8 MiB together; z: the files of a machine have more than 8 MiB together", set.Errors())
}

// TestNamesOfMachines: what a machine says of itself is a name in its certificate only within a
// domain, by whole labels.
func TestNamesOfMachines(t *testing.T) {
	for fqdn, ok := range map[string]bool{
		"a.web.example": true, "A-1.b.web.example": true, "": true, strings.Repeat("x", 63) + ".web.example": true,
		"web.example": false, "aweb.example": false, "a.web.example.org": false, ".web.example": false, "a..web.example": false, "*.web.example": false,
		strings.Repeat("x", 64) + ".web.example": false,
	} {
		d, m := certified(), machine("web1")
		d.Vars["dns"] = "fixed"
		m.Instance.FQDN = fqdn
		set := prepare(d, files.Sources{}, nil).Set(t.Context(), m, map[string]files.Key{"k": {Public: pki.NewKey().Public().(ed25519.PublicKey)}}, newCA(t), time.Now())
		require.Equal(t, ok, set.Complete(), "%q: %s", fqdn, set.Errors())
	}
}
