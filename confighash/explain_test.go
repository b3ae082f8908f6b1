package confighash_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/confighash"
	"github.com/stretchr/testify/require"
)

func TestInfraChanges(t *testing.T) {
	base := nstance.Definition{
		Kind: "web", InstanceTypes: []string{"a", "b"},
		Args: json.RawMessage(`{"disk":{"size":40,"type":"ssd"},"list":[1,2],"none":null}`),
	}
	args := func(s string) func(*nstance.Definition) {
		return func(d *nstance.Definition) { d.Args = json.RawMessage(s) }
	}
	for _, c := range []struct {
		name   string
		change func(*nstance.Definition)
		want   []string
	}{
		{"nothing", func(*nstance.Definition) {}, nil},
		{"another spelling", args(`{"none":null,"list":[1,2.0],"disk":{"type":"ssd","size":4e1}}`), nil},
		{"a field", func(d *nstance.Definition) { d.Kind = "dbs" }, []string{"kind"}},
		{"several, sorted", func(d *nstance.Definition) { d.SubnetPool = "x"; d.Arch = "arm64" }, []string{"arch", "subnet_pool"}},
		{"a list, whole", func(d *nstance.Definition) { d.InstanceTypes = []string{"b", "a"} }, []string{"instance_types"}},
		{"within an object", func(d *nstance.Definition) { d.Market.Type = "spot" }, []string{"market.type"}},
		{"a default written out", func(d *nstance.Definition) { d.Market.Type = "on-demand" }, nil},
		{"deep in args", args(`{"disk":{"size":50,"type":"ssd"},"list":[1,2],"none":null}`), []string{"args.disk.size"}},
		{"args removed", args(``), []string{"args.disk.size", "args.disk.type", "args.list", "args.none"}},
		{"an empty object added", args(`{"disk":{"size":40,"type":"ssd"},"list":[1,2],"none":null,"e":{}}`), []string{"args.e"}},
		{"null is not absence", args(`{"disk":{"size":40,"type":"ssd"},"list":[1,2]}`), []string{"args.none"}},
		{"an awkward key", args(`{"disk":{"size":40,"type":"ssd"},"list":[1,2],"none":null,"a.b":1}`), []string{`args["a.b"]`}},
		{"a key without a name", args(`{"disk":{"size":40,"type":"ssd"},"list":[1,2],"none":null,"":1}`), []string{`args[""]`}},
		{"unreadable args", args(`{`), []string{"args"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			changed := base
			c.change(&changed)
			require.Equal(t, c.want, paths(base, changed))
			require.Equal(t, c.want, paths(changed, base))
		})
	}
}

// paths returns the fields in which two definitions differ.
func paths(before, after nstance.Definition) (out []string) {
	for _, c := range confighash.InfraChanges(before, after) {
		out = append(out, c.Path)
	}
	return out
}

func Example() {
	d := nstance.Definition{
		Kind: "web", Arch: nstance.ARM64, InstanceTypes: []string{"t4g.small"},
		Args: json.RawMessage(`{"disk": {"size": 40}}`),
	}
	before, _ := confighash.Infra(d)

	respelled := d
	respelled.Args = json.RawMessage(`{"disk":{"size":4e1}}`)
	same, _ := confighash.Infra(respelled)
	fmt.Println("respelled:", confighash.Drifted(before, same))

	changed := d
	changed.Args = json.RawMessage(`{"disk":{"size":50}}`)
	after, _ := confighash.Infra(changed)
	fmt.Println("changed:", confighash.Drifted(before, after), confighash.InfraChanges(d, changed))

	fmt.Println("unknown:", confighash.Drifted("", after))
	// Output:
	// respelled: false
	// changed: true [{args.disk.size 40 50}]
	// unknown: false
}

func TestChanges(t *testing.T) {
	before := nstance.Definition{Kind: "web", InstanceTypes: []string{"a"}, Args: json.RawMessage(`{"disk":{"size":40}}`)}
	after := nstance.Definition{Kind: "dbs", InstanceTypes: []string{"a", "b"}, Args: json.RawMessage(`{"disk":{"size":50,"type":"ssd"}}`)}
	require.Equal(t, []confighash.Change{
		{Path: "args.disk.size", Before: "40", After: "50"},
		{Path: "args.disk.type", Before: "", After: "ssd"},
		{Path: "instance_types", Before: `["a"]`, After: `["a","b"]`},
		{Path: "kind", Before: "web", After: "dbs"},
	}, confighash.InfraChanges(before, after))
	require.Equal(t, []confighash.Change{
		{Path: "post_apply", Before: `["/bin/a"]`, After: ""},
		{Path: "vars.colour", Before: "red", After: "green"},
	}, confighash.RuntimeChanges(
		nstance.Definition{Vars: map[string]string{"colour": "red", "same": "x"}, PostApply: []string{"/bin/a"}},
		nstance.Definition{Vars: map[string]string{"colour": "green", "same": "x"}},
	))
}

// TestRuntimeChangesUseConfigurationNames: a plan names fields as the configuration file
// does.
func TestRuntimeChangesUseConfigurationNames(t *testing.T) {
	before := nstance.Definition{
		Files: map[string]nstance.File{
			"motd":   {Kind: nstance.FileString, Content: "hello"},
			"pw":     {Kind: nstance.FileSecret, Secret: "db", Field: "password"},
			"nginx":  {Kind: nstance.FileStorage, Object: "files/a"},
			"crt":    {Kind: nstance.FileCertificate, Certificate: "web", Part: nstance.PartChain},
			"a/env":  {Kind: nstance.FileEnv, Env: map[string]string{"LEVEL": "info"}},
			"a/json": {Kind: nstance.FileJSON, JSON: json.RawMessage(`{"port":1}`)},
		},
		Certificates: map[string]nstance.Certificate{"web": {CommonName: "x", Key: "web", Server: true, Validity: time.Hour}},
	}
	after := nstance.Definition{
		Files: map[string]nstance.File{
			"motd":   {Kind: nstance.FileString, Content: "hi", Mode: 0o600},
			"pw":     {Kind: nstance.FileSecret, Secret: "db2", Field: "pass"},
			"nginx":  {Kind: nstance.FileStorage, Object: "files/b"},
			"crt":    {Kind: nstance.FileCertificate, Certificate: "api", Part: nstance.PartCert},
			"a/env":  {Kind: nstance.FileEnv, Env: map[string]string{"LEVEL": "debug"}},
			"a/json": {Kind: nstance.FileJSON, JSON: json.RawMessage(`{"port":2}`)},
		},
		Certificates: map[string]nstance.Certificate{"web": {CommonName: "x", Key: "web", Server: true, Client: true, Validity: time.Hour}},
	}
	require.Equal(t, []confighash.Change{
		{Path: "certificates.web.usages", Before: `["server"]`, After: `["server","client"]`},
		{Path: "files.a/env.env.LEVEL", Before: "info", After: "debug"},
		{Path: "files.a/json.json.port", Before: "1", After: "2"},
		{Path: "files.crt.certificate", Before: "web", After: "api"},
		{Path: "files.crt.part", Before: "chain", After: "cert"},
		{Path: "files.motd.content", Before: "hello", After: "hi"},
		{Path: "files.motd.mode", Before: "", After: "0600"},
		{Path: "files.nginx.object", Before: "files/a", After: "files/b"},
		{Path: "files.pw.field", Before: "password", After: "pass"},
		{Path: "files.pw.secret", Before: "db", After: "db2"},
	}, confighash.RuntimeChanges(before, after))
}

// TestCertificateChanges: what a certificate states is named as the configuration does, and a
// file without a part has none.
func TestCertificateChanges(t *testing.T) {
	of := func(c nstance.Certificate) nstance.Definition {
		return nstance.Definition{Certificates: map[string]nstance.Certificate{"web": c}}
	}
	require.Equal(t, []confighash.Change{
		{Path: "certificates.web.dns_names", Before: "", After: `["a.example"]`},
		{Path: "certificates.web.usages", Before: `["client"]`, After: `["server"]`},
	}, confighash.RuntimeChanges(of(nstance.Certificate{CommonName: "x", Client: true}), of(nstance.Certificate{CommonName: "x", Server: true, DNSNames: []string{"a.example"}})))
	two := func(a, b string) nstance.Definition {
		return nstance.Definition{Certificates: map[string]nstance.Certificate{"a": {CommonName: a}, "b": {CommonName: b}}}
	}
	require.Equal(t, []confighash.Change{
		{Path: "certificates.a.common_name", Before: "x", After: "y"},
		{Path: "certificates.b.common_name", Before: "x", After: "y"},
	}, confighash.RuntimeChanges(two("x", "x"), two("y", "y")))
	require.Equal(t, []confighash.Change{
		{Path: "files.a.content", Before: "", After: "hello"},
		{Path: "files.a.kind", Before: "", After: "string"},
	}, confighash.RuntimeChanges(nstance.Definition{}, nstance.Definition{Files: map[string]nstance.File{"a": {Kind: nstance.FileString, Content: "hello"}}}))
}

// TestNumbersAreComparedExactly: numbers beyond what a float holds differ if their digits do.
func TestNumbersAreComparedExactly(t *testing.T) {
	of := func(n string) nstance.Definition { return nstance.Definition{Args: json.RawMessage(`{"n":` + n + `}`)} }
	require.Equal(t, []confighash.Change{{Path: "args.n", Before: "12345678901234567890", After: "12345678901234567891"}},
		confighash.InfraChanges(of("12345678901234567890"), of("12345678901234567891")))
}

// TestEmptyIsNoRuntimeChange: a stored definition is read back without empty fields.
func TestEmptyIsNoRuntimeChange(t *testing.T) {
	empty := nstance.Definition{
		Vars: map[string]string{}, PostApply: []string{},
		Files:        map[string]nstance.File{"a": {Kind: nstance.FileEnv, Env: map[string]string{}, JSON: json.RawMessage{}}},
		Certificates: map[string]nstance.Certificate{"web": {CommonName: "x", DNSNames: []string{}}},
	}
	absent := nstance.Definition{
		Files:        map[string]nstance.File{"a": {Kind: nstance.FileEnv}},
		Certificates: map[string]nstance.Certificate{"web": {CommonName: "x"}},
	}
	require.Empty(t, confighash.RuntimeChanges(empty, absent))
	require.Empty(t, confighash.RuntimeChanges(absent, empty))
	require.Equal(t, runtimeHash(t, empty), runtimeHash(t, absent))
}
