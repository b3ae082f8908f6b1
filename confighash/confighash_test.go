package confighash_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/confighash"
	"github.com/stretchr/testify/require"
)

func full() nstance.Definition {
	return nstance.Definition{
		Kind:          "web",
		Arch:          nstance.ARM64,
		Role:          "worker",
		Image:         "ami-1",
		InstanceTypes: []string{"t4g.xlarge", "m7g.xlarge"},
		SubnetPool:    "workers",
		Subnets:       []string{"subnet-1"},
		Args: json.RawMessage(`{"tags":"a<b\u0026c", "ratio":5e-1, "CreditSpecification":{"CpuCredits":"standard"},
			"BlockDeviceMappings":[{"Ebs":{"VolumeSize":40.0},"DeviceName":"\/dev\/sda1"}]}`),
		UserData: nstance.UserData{Source: "inline", Encoding: "base64", Content: "e3suTm9uY2V9fQ=="},
		Vars:     map[string]string{"region": "eu", "color": "<green>"},
		Market: nstance.Market{
			Type: nstance.Spot, MaxPrice: "0.05", Fallback: nstance.OnDemand, FallbackAfter: time.Minute,
		},
		LoadBalancers:       []string{"public"},
		LaunchTimeout:       15 * time.Minute,
		RegistrationTimeout: 5 * time.Minute,
	}
}

// served is a definition with a file of each kind.
func served() nstance.Definition {
	return nstance.Definition{
		Files: map[string]nstance.File{
			"app/app.env":  {Kind: nstance.FileEnv, Env: map[string]string{"COLOR": "{{.Vars.color}}"}},
			"app/app.json": {Kind: nstance.FileJSON, JSON: json.RawMessage(`{"b":1,"a":"{{.Instance.ID}}"}`), Mode: 0o600},
			"motd":         {Kind: nstance.FileString, Content: "hello"},
			"password":     {Kind: nstance.FileSecret, Secret: "db", Field: "password"},
			"nginx.conf":   {Kind: nstance.FileStorage, Object: "files/nginx.conf"},
			"tls.crt":      {Kind: nstance.FileCertificate, Certificate: "web", Part: nstance.PartChain},
		},
		Certificates: map[string]nstance.Certificate{"web": {
			CommonName: "{{.Instance.ID}}", DNSNames: []string{"web.example"}, Addresses: true, Server: true, Validity: 24 * time.Hour, Key: "web",
		}},
		PostApply: []string{"systemctl", "reload", "nginx"},
	}
}

func infraHash(t testing.TB, d nstance.Definition) confighash.Hash {
	t.Helper()
	h, err := confighash.Infra(d)
	require.NoError(t, err)
	return h
}

func runtimeHash(t testing.TB, d nstance.Definition) confighash.Hash {
	t.Helper()
	h, err := confighash.Runtime(d)
	require.NoError(t, err)
	return h
}

// Each golden file is the exact input of the hash. None may ever change: a changed one
// replaces every machine at an upgrade.
func TestGolden(t *testing.T) {
	for _, c := range []struct {
		file string
		got  confighash.Hash
		want confighash.Hash
	}{
		{"infra-minimal.json", infraHash(t, nstance.Definition{Kind: "web", Arch: nstance.AMD64}),
			"v1:sha256:2ae1add55ce108ec1baabf943c7228017be35a396bddc328276c1569d525e71c"},
		{"infra-full.json", infraHash(t, full()),
			"v1:sha256:b74e1711be570a5d1e201b284e7183916dbf3e59b08a9621cb8442f2d495ca65"},
		{"infra-tracked.json", infraHash(t, tracking()),
			"v1:sha256:618752e4ac53e907118be0251220bcc0acaaf4a86720e17a38dcf413aa2998af"},
		{"runtime.json", runtimeHash(t, full()),
			"v1:sha256:1c231a46e89465242c5501a159a140951a52b9d34916bced20153131ae86e4fb"},
		{"runtime-files.json", runtimeHash(t, served()),
			"v1:sha256:cd0f8d7d687ce1eb24e505b78cdd9879bf5c28f3754f202a415bb89861a1c240"},
	} {
		t.Run(c.file, func(t *testing.T) {
			b, err := os.ReadFile(filepath.Join("testdata", c.file))
			require.NoError(t, err)
			digest := sha256.Sum256(bytes.TrimSuffix(b, []byte("\n")))
			require.Equal(t, "v1:sha256:"+hex.EncodeToString(digest[:]), string(c.got))
			require.Equal(t, c.want, c.got)
		})
	}
}

// covered gives the hash that each field of a definition is part of. A new field must be
// added here on purpose.
var covered = map[string]string{
	"Kind": "infra", "Arch": "infra", "InstanceTypes": "infra", "SubnetPool": "infra",
	"Args": "infra", "UserData": "infra", "Market": "infra", "Vars": "runtime",
	"Role": "", "Image": "", "Subnets": "", "LoadBalancers": "", "Track": "infra", "Secrets": "",
	"GivenVars": "", "LaunchTimeout": "", "RegistrationTimeout": "", "Files": "runtime", "Certificates": "runtime", "PostApply": "runtime",
}

func TestEachFieldIsClassified(t *testing.T) {
	other := nstance.Definition{
		Kind: "dbs", Arch: nstance.AMD64, Role: "control-plane", Image: "ami-2",
		InstanceTypes: []string{"m7g.xlarge", "t4g.xlarge"}, SubnetPool: "edge", Subnets: []string{"subnet-2"},
		Args: json.RawMessage(`{"ratio":1}`), UserData: nstance.UserData{Content: "x"},
		Vars: map[string]string{"color": "blue"}, GivenVars: []string{"color"}, Market: nstance.Market{Type: nstance.Spot}, Track: []nstance.Tracked{"image"},
		LoadBalancers: []string{"private"}, Secrets: map[string]string{"db": "x"}, LaunchTimeout: time.Second, RegistrationTimeout: time.Second,
		Files: served().Files, Certificates: served().Certificates, PostApply: served().PostApply,
	}
	for i := range reflect.TypeFor[nstance.Definition]().NumField() {
		name := reflect.TypeFor[nstance.Definition]().Field(i).Name
		t.Run(name, func(t *testing.T) {
			where, listed := covered[name]
			require.True(t, listed, "decide which hash covers %s", name)
			d := full()
			reflect.ValueOf(&d).Elem().Field(i).Set(reflect.ValueOf(other).Field(i))
			require.Equal(t, where == "infra", infraHash(t, d) != infraHash(t, full()))
			require.Equal(t, where == "runtime", runtimeHash(t, d) != runtimeHash(t, full()))
		})
	}
}

func TestMarket(t *testing.T) {
	change := func(f func(*nstance.Market)) nstance.Definition {
		d := full()
		f(&d.Market)
		return d
	}
	t.Run("type counts", func(t *testing.T) {
		require.NotEqual(t, infraHash(t, full()), infraHash(t, change(func(m *nstance.Market) { m.Type = nstance.OnDemand })))
	})
	t.Run("price counts", func(t *testing.T) {
		require.NotEqual(t, infraHash(t, full()), infraHash(t, change(func(m *nstance.Market) { m.MaxPrice = "0.06" })))
	})
	t.Run("waits and the on-demand base are not hashed", func(t *testing.T) {
		require.Equal(t, infraHash(t, full()), infraHash(t, change(func(m *nstance.Market) { m.FallbackAfter = time.Hour })))
		require.Equal(t, infraHash(t, full()), infraHash(t, change(func(m *nstance.Market) { m.ReturnAfter = time.Hour })))
		require.Equal(t, infraHash(t, full()), infraHash(t, change(func(m *nstance.Market) { m.OnDemandBase.N = 2 })))
		require.Equal(t, infraHash(t, full()), infraHash(t, change(func(m *nstance.Market) { m.FallbackWhen.Reclaims = 2 })))
	})
}

func TestDefaultsEqualAbsentFields(t *testing.T) {
	absent := nstance.Definition{Kind: "web", UserData: nstance.UserData{Content: "x"}}
	written := absent
	written.UserData = nstance.UserData{Source: "inline", Encoding: "plain", Content: "x"}
	written.Market = nstance.Market{Type: nstance.OnDemand, Fallback: "none"}
	written.Args = json.RawMessage(` { } `)
	written.Vars = map[string]string{}
	require.Equal(t, infraHash(t, absent), infraHash(t, written))
	require.Equal(t, runtimeHash(t, absent), runtimeHash(t, written))
}

func TestDrifted(t *testing.T) {
	digits := strings.Repeat("a", 64)
	a, b := confighash.Hash("v1:sha256:"+digits), confighash.Hash("v1:sha256:"+strings.Repeat("b", 64))
	for _, c := range []struct {
		name       string
		have, want confighash.Hash
		drifted    bool
	}{
		{"equal", a, a, false},
		{"different", a, b, true},
		{"nothing recorded", "", a, false},
		{"nothing wanted", a, "", false},
		{"older rules", confighash.Hash("v0:sha256:" + digits), a, false},
		{"newer rules", confighash.Hash("v2:sha256:" + digits), a, false},
		{"cut off", "v1:sha256:aa", a, false},
		{"no hash at all", "rubbish", a, false},
		{"no prefix", confighash.Hash("v1:sha512:" + digits), a, false},
		{"digits alone", confighash.Hash(digits), a, false},
		{"neither is a hash", "rubbish", "trash", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Equal(t, c.drifted, confighash.Drifted(c.have, c.want))
		})
	}
}

func TestHashRefusesBadArgs(t *testing.T) {
	for name, args := range map[string]string{
		"not JSON": `{"a":`, "a list": `[1]`, "two objects": `{"a":1}{"b":2}`, "a word": `x`,
		"an empty exponent": `{"a":1e+}`, "an endless number": `{"a":1e99999999999999999999}`, "a vast number": `{"a":[1e1000001]}`,
	} {
		t.Run(name, func(t *testing.T) {
			_, err := confighash.Infra(nstance.Definition{Args: json.RawMessage(args)})
			require.ErrorIs(t, err, nstance.Invalid)
		})
	}
}
