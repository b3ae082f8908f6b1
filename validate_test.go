package nstance_test

import (
	"cmp"
	"encoding/json"
	"math"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/test/durations"
)

// sound is a group in which every field is set to something that makes sense.
func sound() nstance.Group {
	return nstance.Group{
		Key: nstance.GroupKey{Tenant: "default", Group: "web"}, Size: 3, DrainTimeout: time.Minute,
		Rollout: nstance.Rollout{MaxSurge: nstance.Count{N: 20, Percent: true}, MinReady: time.Second, HaltAfter: 3},
		Expiry:  nstance.Expiry{EligibleAge: time.Hour, ForcedAge: 2 * time.Hour, OnDemandAge: time.Hour},
		Definition: nstance.Definition{
			Kind: "web", Arch: nstance.AMD64, Role: "worker", InstanceTypes: []string{"small", "large"}, Subnets: []string{"a", "b"},
			Args: json.RawMessage(`{"disk": 1}`), UserData: nstance.UserData{Encoding: "plain", Content: "x"}, Vars: map[string]string{"a": ""},
			Market: nstance.Market{Type: nstance.Spot, MaxPrice: "0.1", Fallback: nstance.OnDemand, FallbackAfter: time.Minute, OnDemandBase: nstance.Count{N: 1}, FallbackWhen: nstance.ReclaimLimit{Reclaims: 1, Window: time.Hour}},
			Files: map[string]nstance.File{
				"app/key":  {Kind: nstance.FileSecret, Secret: "db", Mode: 0o600},
				"app/cert": {Kind: nstance.FileCertificate, Certificate: "web", Part: "cert"},
			},
			Certificates: map[string]nstance.Certificate{"web": {CommonName: "web"}}, LoadBalancers: []string{"front"},
			Track: []nstance.Tracked{nstance.TrackImage}, LaunchTimeout: time.Minute, RegistrationTimeout: time.Minute,
		},
	}
}

func TestValidateGroup(t *testing.T) {
	require.NoError(t, sound().Validate(""))
	require.NoError(t, nstance.Group{Key: sound().Key, Size: 3}.Validate(""), "a definition may be missing")
	minimal := nstance.Group{Key: sound().Key, Definition: nstance.Definition{Kind: "web", Arch: nstance.ARM64}}
	require.NoError(t, minimal.Validate(""))

	for field, change := range map[string]func(g *nstance.Group){
		"tenant":                        func(g *nstance.Group) { g.Key.Tenant = "" },
		"group":                         func(g *nstance.Group) { g.Key.Group = "We B" },
		"size":                          func(g *nstance.Group) { g.Size = -1 },
		"drain_timeout":                 func(g *nstance.Group) { g.DrainTimeout = -1 },
		"rollout.max_surge":             func(g *nstance.Group) { g.Rollout.MaxSurge.N = -1 },
		"rollout.min_ready":             func(g *nstance.Group) { g.Rollout.MinReady = -1 },
		"rollout.halt_after":            func(g *nstance.Group) { g.Rollout.HaltAfter = -1 },
		"expiry.eligible_age":           func(g *nstance.Group) { g.Expiry.EligibleAge = 3 * time.Hour },
		"expiry.forced_age":             func(g *nstance.Group) { g.Expiry.ForcedAge = -1 },
		"expiry.on_demand_age":          func(g *nstance.Group) { g.Expiry.OnDemandAge = -1 },
		"kind":                          func(g *nstance.Group) { g.Definition.Kind = "W" },
		"arch":                          func(g *nstance.Group) { g.Definition.Arch = "x86" },
		"role":                          func(g *nstance.Group) { g.Definition.Role = "boss" },
		"instance_types":                func(g *nstance.Group) { g.Definition.InstanceTypes = []string{"a", "a"} },
		"subnets":                       func(g *nstance.Group) { g.Definition.Subnets = []string{""} },
		"load_balancers":                func(g *nstance.Group) { g.Definition.LoadBalancers = []string{"a", "a"} },
		"args":                          func(g *nstance.Group) { g.Definition.Args = json.RawMessage(`[]`) },
		"userdata.source":               func(g *nstance.Group) { g.Definition.UserData.Source = "ftp" },
		"userdata.encoding":             func(g *nstance.Group) { g.Definition.UserData.Encoding = "rot13" },
		"userdata.fetched":              func(g *nstance.Group) { g.Definition.UserData.Source = nstance.SourceURL },
		"market.fallback_when.reclaims": func(g *nstance.Group) { g.Definition.Market.FallbackWhen.Reclaims = 101 },
		"market.fallback_when.window":   func(g *nstance.Group) { g.Definition.Market.FallbackWhen.Window = 0 },
		"spread.by":                     func(g *nstance.Group) { g.Spread = nstance.Spread{By: "rack", MaxShare: nstance.Count{N: 1}} },
		"on_reclaim":                    func(g *nstance.Group) { g.OnReclaim = "stop" },
		"on_drain_timeout":              func(g *nstance.Group) { g.OnDrainTimeout = "kill" },
		"warm_pool.size":                func(g *nstance.Group) { g.WarmPool = nstance.WarmPool{Size: -1, Mode: nstance.ParkStopped} },
		"warm_pool.mode":                func(g *nstance.Group) { g.WarmPool = nstance.WarmPool{Size: 1} },
		"warm_pool.max_age":             func(g *nstance.Group) { g.WarmPool = nstance.WarmPool{Size: 1, Mode: nstance.ParkStopped, MaxAge: -1} },
		"on_rebalance":                  func(g *nstance.Group) { g.OnRebalance = "drain" },
		"on_maintenance":                func(g *nstance.Group) { g.OnMaintenance = nstance.NoticeCordon },
		"spread.max_share":              func(g *nstance.Group) { g.Spread.By = nstance.SpreadZone },
		"vars":                          func(g *nstance.Group) { g.Definition.Vars = map[string]string{"": "x"} },
		"market.type":                   func(g *nstance.Group) { g.Definition.Market.Type = "cheap" },
		"market.fallback":               func(g *nstance.Group) { g.Definition.Market.Fallback = nstance.Spot },
		"market.max_price":              func(g *nstance.Group) { g.Definition.Market.MaxPrice = "0.0" },
		"market.fallback_after":         func(g *nstance.Group) { g.Definition.Market.FallbackAfter = -1 },
		"market.return_after":           func(g *nstance.Group) { g.Definition.Market.ReturnAfter = -1 },
		"market.on_demand_base":         func(g *nstance.Group) { g.Definition.Market.OnDemandBase.N = -1 },
		"files.app/key.kind":            func(g *nstance.Group) { g.Definition.Files["app/key"] = nstance.File{Kind: "odd"} },
		"files.app/key.mode": func(g *nstance.Group) {
			g.Definition.Files["app/key"] = nstance.File{Kind: nstance.FileString, Mode: 0o777}
		},
		"files.app/key.secret":       func(g *nstance.Group) { g.Definition.Files["app/key"] = nstance.File{Kind: nstance.FileSecret} },
		"files.app/cert.certificate": func(g *nstance.Group) { g.Definition.Certificates = nil },
		"files.../up": func(g *nstance.Group) {
			g.Definition.Files = map[string]nstance.File{"../up": {Kind: nstance.FileString}}
		},
		"track":                func(g *nstance.Group) { g.Definition.Track = []nstance.Tracked{"weather"} },
		"launch_timeout":       func(g *nstance.Group) { g.Definition.LaunchTimeout = -1 },
		"registration_timeout": func(g *nstance.Group) { g.Definition.RegistrationTimeout = -1 },
	} {
		t.Run(field, func(t *testing.T) {
			g := sound()
			change(&g)
			for _, prefix := range []string{"", "groups.default.web"} {
				err := g.Validate(prefix)
				require.ErrorIs(t, err, nstance.Invalid)
				require.Equal(t, nstance.Invalid, nstance.CodeOf(err))
				want := field + ": "
				if prefix != "" {
					want = prefix + "." + want
				}
				require.ErrorContains(t, err, want)
				require.Contains(t, err.Error(), "(", "a remedy")
			}
		})
	}
	for name, r := range map[string]struct {
		change func(g *nstance.Group)
		fields []string
	}{
		"spot for the control plane": {func(g *nstance.Group) { g.Definition.Role = "control-plane" }, []string{"market.type"}},
		"spot's settings on on-demand capacity": {func(g *nstance.Group) { g.Definition.Market.Type = "" },
			[]string{"market.max_price", "market.fallback", "market.on_demand_base"}},
		"waits without a fallback": {func(g *nstance.Group) { g.Definition.Market.Fallback, g.Definition.Market.ReturnAfter = "", 1 },
			[]string{"market.fallback_after", "market.return_after", "market.fallback_when"}},
		"a spread over markets on demand": {func(g *nstance.Group) {
			g.Definition.Market = nstance.Market{}
			g.Spread = nstance.Spread{By: nstance.SpreadMarket, MaxShare: nstance.Count{N: 1}}
		}, []string{"spread.by"}},
		"a spread over markets beside a base": {func(g *nstance.Group) {
			g.Spread = nstance.Spread{By: nstance.SpreadMarket, MaxShare: nstance.Count{N: 1}}
		}, []string{"spread.by"}},
		"a spread of nothing": {func(g *nstance.Group) { g.Spread.MaxShare.N = 101; g.Spread.MaxShare.Percent = true }, []string{"spread.by", "spread.max_share"}},
		"too many":            {func(g *nstance.Group) { g.Size, g.Rollout.HaltAfter = 100_001, 1001 }, []string{"size", "rollout.halt_after"}},
		"too long":            {func(g *nstance.Group) { g.DrainTimeout = 3651 * 24 * time.Hour }, []string{"drain_timeout"}},
		"more than all":       {func(g *nstance.Group) { g.Rollout.MaxSurge.N = 101 }, []string{"rollout.max_surge"}},
		"a price of words":    {func(g *nstance.Group) { g.Definition.Market.MaxPrice = "cheap" }, []string{"market.max_price"}},
	} {
		t.Run(name, func(t *testing.T) {
			g := sound()
			r.change(&g)
			for _, field := range r.fields {
				require.ErrorContains(t, g.Validate(""), field+": ")
			}
		})
	}
	t.Run("all of it", func(t *testing.T) {
		err := nstance.Group{Key: sound().Key, Size: -1, DrainTimeout: -1, Definition: nstance.Definition{Kind: "web"}}.Validate("")
		for _, field := range []string{"size: ", "drain_timeout: ", "arch: "} {
			require.ErrorContains(t, err, field)
		}
	})
}

// TestValidateDurations: whatever duration of a group lacks its unit, is negative or absurd
// is refused, by its name.
func TestValidateDurations(t *testing.T) {
	fields := durations.Of[nstance.Group]()
	require.GreaterOrEqual(t, len(fields), 12)
	for _, f := range fields {
		for _, d := range []time.Duration{1, 60, 300, 3600, 86400, 30 * 86400, -1, -time.Hour, 11 * 365 * 24 * time.Hour, math.MaxInt64} {
			g := sound()
			g.WarmPool = nstance.WarmPool{Size: 1, Mode: nstance.ParkStopped}
			f.Set(&g, d)
			err := g.Validate("")
			require.ErrorIs(t, err, nstance.Invalid, "%s = %s", f.Name, d)
			require.ErrorContains(t, err, d.String(), f.Name)
			_, last, _ := strings.Cut(f.Name, ".")
			last = last[strings.LastIndex(last, ".")+1:]
			words := strings.ToLower(regexp.MustCompile(`([a-z])([A-Z])`).ReplaceAllString(cmp.Or(last, f.Name), "${1}_$2"))
			require.ErrorContains(t, err, words)
			if d > 0 && d < time.Second {
				require.ErrorContains(t, err, "forgot the unit?", f.Name)
			}
		}
	}
}
