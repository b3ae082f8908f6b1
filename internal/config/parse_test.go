package config_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/internal/webhook"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/local"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/stretchr/testify/require"
	"github.com/tailscale/hujson"
)

// full names every setting at least once.
func full(t testing.TB) *config.Config {
	t.Helper()
	c, err := config.Load(filepath.Join("testdata", "full.jsonc"))
	require.NoError(t, err)
	return c
}

// minimal has no group and nothing that could be left out.
const minimal = `{
  "cluster": {"id": "demo"},
  "shard": {"id": "a", "provider": {"kind": "local"}}
}`

// kinds are what the configurations of these tests may name.
var kinds = provider.Kinds{local.Kind("true"), simcloud.Kind()}

// with returns a configuration whose lines 4 to 6 are the shard's further
// settings, the templates and the groups.
func with(shard, templates, groups string) string {
	return fmt.Sprintf(`{
"cluster": {"id": "demo"},
"shard": {"id": "a", "provider": {"kind": "local"}, "subnet_pools": {"workers": ["subnet-1"]},
%s},
"templates": {%s},
"groups": {"default": {%s}},
}`, shard, templates, groups)
}

const web = `"web": {"kind": "web", "arch": "amd64"}`

func TestDefaults(t *testing.T) {
	c, err := config.Parse("c", []byte(minimal), kinds...)
	require.NoError(t, err)
	require.Equal(t, config.Shard{
		ID:         "a",
		Provider:   config.Provider{Kind: "local"},
		Bind:       config.Bind{HTTP: "127.0.0.1:8990", Registration: ":8992", Operator: ":8993", Agent: ":8994", Peer: ":8991"},
		StatusPage: config.StatusPage{Detail: config.StatusSummary},
		Connections: config.Connections{
			Max: 20000, Anonymous: 1024, PerSource: 256, PerClient: 64, Handshake: 10 * time.Second, AnonymousAge: time.Minute,
		},
		RequestTimeout:      30 * time.Second,
		CreateRate:          config.CreateRate{PerSecond: 100, Burst: 1000},
		HealthInterval:      time.Minute,
		DefaultDrainTimeout: 5 * time.Minute,
		ShutdownTimeout:     10 * time.Second,
		Breaker:             config.Breaker{MaxUnhealthy: nstance.Count{N: 20, Percent: true}},
		Secrets:             config.Secrets{Source: "store:"},
		FileRefresh:         5 * time.Minute,
		Election:            config.Election{TTL: 6 * time.Second},
		ImageRefresh:        6 * time.Hour,
		GC:                  config.GC{Interval: 2 * time.Minute, RegistrationTimeout: 5 * time.Minute, Retention: 30 * time.Minute},
		Ledger:              config.Ledger{Keep: 400 * 24 * time.Hour, MaxMiB: 1024},
	}, c.Shard)
	require.Empty(t, c.Groups())

	c, err = config.Parse("c", []byte(with("", web, `"web": {"template": "web", "size": 0}`)), kinds...)
	require.NoError(t, err)
	require.Equal(t, []nstance.Group{{
		Key:          nstance.GroupKey{Tenant: "default", Group: "web"},
		Template:     "web",
		DrainTimeout: 5 * time.Minute,
		Rollout:      nstance.Rollout{MaxSurge: nstance.Count{N: 1}, HaltAfter: 2},
		Static:       true, Order: nstance.OrderListed, OnRebalance: nstance.NoticeIgnore, OnMaintenance: nstance.NoticeReplace, OnDrainTimeout: nstance.DrainTimeoutDelete,
		Definition: nstance.Definition{
			Kind: "web", Arch: nstance.AMD64, Role: "worker", Market: nstance.Market{Type: nstance.OnDemand},
			LaunchTimeout: 15 * time.Minute, RegistrationTimeout: 5 * time.Minute,
		},
	}}, c.Groups())
}

func TestEverySettingIsUsed(t *testing.T) {
	c := full(t)
	require.Equal(t, nstance.ClusterID("prod"), c.Cluster.ID)
	require.Equal(t, config.Shard{
		ID: "eu1a",
		Provider: config.Provider{
			Kind: "aws", Region: "eu-west-1", Zone: "eu-west-1a", Options: json.RawMessage(`{"profile":"prod"}`),
		},
		Bind:       config.Bind{HTTP: "0.0.0.0:80", Registration: ":1", Operator: ":2", Agent: ":3", Peer: ":4"},
		Advertise:  config.Advertise{Registration: "n.example:1", Operator: "n.example:2", Agent: "[::1]:3", Peer: "n.example:4"},
		StatusPage: config.StatusPage{Detail: config.StatusFull, Hosts: []config.HostName{"status.example.org"}},
		Connections: config.Connections{
			Max: 5000, Anonymous: 500, PerSource: 50, PerClient: 5, Handshake: 20 * time.Second, AnonymousAge: 2 * time.Minute,
		},
		SubnetPools:         map[config.PoolName][]string{"workers": {"subnet-1", "subnet-2"}, "edge": {"subnet-3"}},
		DynamicSubnetPools:  []config.PoolName{"edge"},
		UserDataNetworks:    []string{"127.0.0.0/8"},
		RequestTimeout:      20 * time.Second,
		CreateRate:          config.CreateRate{PerSecond: 0.5, Burst: 7},
		HealthInterval:      30 * time.Second,
		DefaultDrainTimeout: 2 * time.Minute,
		ShutdownTimeout:     5 * time.Second,
		FileRefresh:         10 * time.Minute,
		Expiry:              config.Expiry{EligibleAge: 7 * 24 * time.Hour, ForcedAge: 252 * time.Hour, OnDemandAge: 24 * time.Hour},
		Election:            config.Election{TTL: 10 * time.Second},
		LeaderAddress:       "10.0.0.100",
		Secrets:             config.Secrets{Source: "env://APP_SECRET_"},
		ImageRefresh:        3 * time.Hour,
		GC:                  config.GC{Interval: 3 * time.Minute, RegistrationTimeout: 6 * time.Minute, Retention: 12 * time.Hour},
		Ledger:              config.Ledger{Keep: 30 * 24 * time.Hour, MaxMiB: 64},
		MaxChange:           &nstance.Count{N: 30, Percent: true},
		Breaker:             config.Breaker{MaxUnhealthy: nstance.Count{N: 7}},
	}, c.Shard)
	require.Equal(t, map[config.WebhookName]config.Webhook{"pager": {
		URL: "https://hooks.example.org/nstance", Secret: "pager", Events: []webhook.Kind{webhook.Notice, webhook.MissedDeadline},
		Template: "{{json .Kind}}", ContentType: "text/plain", Timeout: 3 * time.Second, Gather: 10 * time.Second,
		Headers: map[string]string{"X-Team": "platform"}, SecretHeaders: map[string]config.SecretName{"Authorization": "pager-token"},
	}}, c.Webhooks)
	require.Equal(t, map[nstance.GroupKey]config.Drill{
		{Tenant: "default", Group: "web"}: {Every: 7 * 24 * time.Hour, Count: nstance.Count{N: 10, Percent: true}, Kind: nstance.Maintenance, Notice: 5 * time.Minute},
	}, c.Drills())
	expiry := nstance.Expiry{EligibleAge: 7 * 24 * time.Hour, ForcedAge: 252 * time.Hour, OnDemandAge: 24 * time.Hour}
	require.Equal(t, []nstance.Group{
		{
			Key: nstance.GroupKey{Tenant: "blue", Group: "db"}, Template: "db", Size: 2, Expiry: expiry,
			DrainTimeout: 2 * time.Minute, Static: true, Order: nstance.OrderListed, OnRebalance: nstance.NoticeIgnore, OnMaintenance: nstance.NoticeReplace, OnDrainTimeout: nstance.DrainTimeoutDelete,
			Rollout: nstance.Rollout{MaxSurge: nstance.Count{N: 1}, HaltAfter: 2},
			Definition: nstance.Definition{
				Kind: "dbs", Arch: nstance.AMD64, Role: "control-plane", InstanceTypes: []string{"m7i.xlarge"},
				Args:     json.RawMessage(`{"disk":{"size":20},"tags":["all"]}`),
				UserData: nstance.UserData{Source: "inline", Encoding: "base64", Content: "e3suTm9uY2V9fQ=="},
				Vars:     map[string]string{"region": "eu", "level": "defaults"}, Market: nstance.Market{Type: nstance.OnDemand},
				LaunchTimeout: 15 * time.Minute, RegistrationTimeout: 5 * time.Minute,
			},
		},
		{
			Key: nstance.GroupKey{Tenant: "default", Group: "web"}, Template: "web", Size: 3, Expiry: expiry,
			DrainTimeout: time.Minute, Protect: true, Static: true,
			Rollout:   nstance.Rollout{MaxSurge: nstance.Count{N: 20, Percent: true}, MinReady: 10 * time.Second, HaltAfter: 3},
			OnReclaim: nstance.ReclaimCordon,
			Order:     nstance.OrderSteadiest, OnRebalance: nstance.NoticeCordon, OnMaintenance: nstance.NoticeIgnore, OnDrainTimeout: nstance.DrainTimeoutWait,
			WarmPool: nstance.WarmPool{Size: 2, Mode: nstance.ParkHibernated, MaxAge: 7 * 24 * time.Hour, NoReturn: true},
			Spread:   nstance.Spread{By: nstance.SpreadZone, MaxShare: nstance.Count{N: 50, Percent: true}},
			Definition: nstance.Definition{
				Kind: "web", Arch: nstance.ARM64, Role: "worker", InstanceTypes: []string{"t4g.small", "t4g.medium"},
				SubnetPool: "edge", Subnets: []string{"subnet-3"},
				LoadBalancers: []string{"front", "back"}, Track: []nstance.Tracked{"vars", "image"},
				Args:     json.RawMessage(`{"disk":{"size":50,"type":"gp3"},"name":"{{.Instance.ID}}","tags":["web"]}`),
				UserData: nstance.UserData{Source: "inline", Encoding: "plain", Content: "#!/bin/sh\necho {{.Vars.color}}\n"},
				Vars:     map[string]string{"region": "eu", "color": "green", "level": "group"},
				Market: nstance.Market{
					Type: nstance.Spot, MaxPrice: "0.05", Fallback: nstance.OnDemand, FallbackAfter: 10 * time.Minute,
					ReturnAfter: time.Hour, OnDemandBase: nstance.Count{N: 25, Percent: true},
					FallbackWhen: nstance.ReclaimLimit{Reclaims: 5, Window: 30 * time.Minute},
				},
				LaunchTimeout: 10 * time.Minute, RegistrationTimeout: 3 * time.Minute,
			},
		},
	}, c.Groups())
}

// The configuration that dev mode composes looks like this.
func TestLocalSpotGroup(t *testing.T) {
	text := with("", `"web": {"kind": "web", "arch": "amd64", "userdata": {"content":
		"{\"env\":{\"NSTANCE_INSTANCE_ID\":\"{{.Instance.ID}}\"},\"files\":{\"identity/nonce.jwt\":\"{{.Nonce}}\"}}"}}`,
		`"web": {"template": "web", "size": 3, "market": {"type": "spot"}, "drain_timeout": "60s"}`)
	c, err := config.Parse("dev", []byte(text))
	require.NoError(t, err)
	require.Len(t, c.Groups(), 1)
	g := c.Groups()[0]
	require.Equal(t, 3, g.Size)
	require.Equal(t, nstance.Spot, g.Definition.Market.Type)
	require.Equal(t, time.Minute, g.DrainTimeout)
	require.True(t, json.Valid([]byte(g.Definition.UserData.Content)))
}

func TestDrainTimeoutZeroIsNotAbsent(t *testing.T) {
	c, err := config.Parse("c", []byte(with("", web,
		`"a": {"template": "web", "size": 1, "drain_timeout": "0"}, "b": {"template": "web", "size": 1}`)), kinds...)
	require.NoError(t, err)
	require.Zero(t, c.Groups()[0].DrainTimeout)
	require.Equal(t, 5*time.Minute, c.Groups()[1].DrainTimeout)
}

func TestDigest(t *testing.T) {
	a, err := config.Parse("a", []byte(minimal))
	require.NoError(t, err)
	b, err := config.Parse("b", []byte(minimal+"\n"))
	require.NoError(t, err)
	require.Len(t, a.Digest(), 64)
	require.NotEqual(t, a.Digest(), b.Digest())
}

func TestLoad(t *testing.T) {
	_, err := config.Load(filepath.Join(t.TempDir(), "absent.jsonc"))
	require.ErrorIs(t, err, nstance.NotFound)

	path := filepath.Join(t.TempDir(), "bad.jsonc")
	require.NoError(t, os.WriteFile(path, []byte("{]"), 0o600))
	_, err = config.Load(path)
	require.ErrorIs(t, err, nstance.Invalid)
	require.ErrorContains(t, err, path+":1:2: ")

	_, err = config.Load(t.TempDir())
	require.ErrorIs(t, err, nstance.Invalid)
}

// FuzzParse checks that nothing panics, that every refusal is classified and
// located, and that an accepted file means the same in every spelling.
func FuzzParse(f *testing.F) {
	text, err := os.ReadFile(filepath.Join("testdata", "full.jsonc"))
	require.NoError(f, err)
	f.Add(text)
	f.Add([]byte(minimal))
	f.Add([]byte(with("", web, `"web": {"template": "web", "size": 1}`)))
	f.Add([]byte("{ // \n \"cluster\": [[{\"\": 1e9}], null"))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := config.Parse("fuzz", text)
		if err != nil {
			for _, e := range err.(interface{ Unwrap() []error }).Unwrap() {
				classified, ok := errors.AsType[*nstance.Error](e)
				require.True(t, ok)
				require.Equal(t, nstance.Invalid, classified.Code)
				require.True(t, strings.HasPrefix(classified.Msg, "fuzz:"), classified.Msg)
			}
			return
		}
		respelled, err := hujson.Standardize(append(text, '\n'))
		require.NoError(t, err)
		respelled, err = hujson.Format(respelled)
		require.NoError(t, err)
		again, err := config.Parse("fuzz", respelled)
		require.NoError(t, err)
		require.Equal(t, c.Groups(), again.Groups())
		require.Equal(t, c.Shard, again.Shard)
		require.Equal(t, c.Templates, again.Templates)
	})
}

func Example() {
	_, err := config.Parse("demo.jsonc", []byte(`{
  "cluster": {"id": "demo"},
  "shard": {"id": "a", "provider": {"kind": "local"}},
  "templates": {"web": {"kind": "web", "arch": "arm64"}},
  "groups": {"default": {"web": {
    "template": "web",
    "siez": 3, // three members
  }}},
}`))
	fmt.Println(err)
	// Output:
	// groups.default.web.siez: demo.jsonc:7:5: unknown setting "siez" (did you mean "size"?)
}
