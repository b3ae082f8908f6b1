package repository_test

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/agent"
	"github.com/nstance-go/nstance/drain/hook"
	"github.com/nstance-go/nstance/health"
	"github.com/nstance-go/nstance/internal/test/durations"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/local"
	"github.com/nstance-go/nstance/provider/qemu"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/registration"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/spot"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/lease"
)

// withDurations are the options with durations, and a test of what uses them.
var withDurations = map[string]func(t *testing.T){
	"reconcile.Options": func(t *testing.T) {
		refuseDurations(t, reconcile.Options{
			Owner: nstance.Owner{Installation: "i", Cluster: "c", Shard: "s"},
			Groups: []nstance.Group{{
				Key: nstance.GroupKey{Tenant: "default", Group: "web"}, WarmPool: nstance.WarmPool{Size: 1, Mode: nstance.ParkRunning},
				Definition: nstance.Definition{Kind: "web", Arch: nstance.AMD64, Market: nstance.Market{
					Type: nstance.Spot, Fallback: nstance.OnDemand, FallbackWhen: nstance.ReclaimLimit{Reclaims: 1, Window: time.Hour},
				}},
			}},
		}, func(t *testing.T, o reconcile.Options) error {
			ended, end := context.WithCancel(t.Context())
			end()
			return reconcile.Lead(ended, newCloud(t), storage.NewMemory(), &o, nil)
		})
	},
	"reconcile.Tuning": func(t *testing.T) {
		refuseDurations(t, reconcile.Tuning{}, func(t *testing.T, tuning reconcile.Tuning) error {
			r, err := reconcile.New(newCloud(t), storage.NewMemory(), &reconcile.Options{Owner: nstance.Owner{Installation: "i", Cluster: "c", Shard: "s"}})
			require.NoError(t, err)
			return r.Admin().Tune(tuning)
		})
	},
	"provider.Options": func(t *testing.T) {
		refuseDurations(t, provider.Options{}, func(t *testing.T, o provider.Options) error {
			_, err := provider.New(newCloud(t), &o)
			return err
		})
	},
	"provider.Tuning": func(t *testing.T) {
		refuseDurations(t, provider.Tuning{}, func(t *testing.T, tuning provider.Tuning) error {
			c, err := provider.New(newCloud(t), nil)
			require.NoError(t, err)
			return c.Tune(tuning)
		})
	},
	"provider/local.Options": func(t *testing.T) {
		refuseDurations(t, local.Options{Command: []string{"true"}}, func(t *testing.T, o local.Options) error {
			o.Dir = t.TempDir()
			c, err := local.New(&o)
			if err == nil {
				err = c.Close()
			}
			return err
		})
	},
	"provider/qemu.Options": func(t *testing.T) {
		refuseDurations(t, qemu.Options{Kernel: "/no/kernel"}, func(t *testing.T, o qemu.Options) error {
			_, err := qemu.New(&o, nil)
			return err
		})
	},
	"registration.Options": func(t *testing.T) {
		refuseDurations(t, registration.Options{Cluster: "c", Shard: "s"}, func(t *testing.T, o registration.Options) error {
			keys, err := registration.NewKeys(time.Now())
			require.NoError(t, err)
			_, err = registration.New(keys, registration.NewMemory(), &o)
			return err
		})
	},
	"storage/lease.Options": func(t *testing.T) {
		refuseDurations(t, lease.Options{}, func(_ *testing.T, o lease.Options) error {
			_, err := lease.New(storage.NewMemory(), "s", &o)
			return err
		})
	},
	"server.Options": func(t *testing.T) {
		kinds := provider.Kinds{{Name: "sim", Open: func(context.Context, provider.Settings) (nstance.Provider, func() error, error) {
			return nil, nil, nstance.FieldError("sim", "", "is not opened")
		}}}
		refuseDurations(t, server.Options{Kinds: kinds}, func(t *testing.T, o server.Options) error {
			_, err := server.New(t.Context(), storage.NewMemory(), newCloud(t), server.FileSource(filepath.Join(t.TempDir(), "none")), &o)
			return err
		})
	},
	"agent.Options": func(t *testing.T) {
		refuseDurations(t, agent.Options{
			InstanceID: "web06h1hqt7bdsmdb7jn6pmk73v5r", RegistrationAddrs: []string{"127.0.0.1:8992"}, AgentAddrs: []string{"127.0.0.1:8994"},
			Probes: []health.Probe{{Name: "a", TCP: ":80"}},
		}, func(_ *testing.T, o agent.Options) error {
			_, err := agent.New(&o)
			return err
		})
	},
	"health.CollectorOptions": func(t *testing.T) {
		refuseDurations(t, health.CollectorOptions{Probes: []health.Probe{{Name: "a", TCP: ":80"}}}, func(_ *testing.T, o health.CollectorOptions) error {
			_, err := health.NewCollector(&o)
			return err
		})
	},
	"spot.Options": func(t *testing.T) {
		refuseDurations(t, spot.Options{}, func(_ *testing.T, o spot.Options) error {
			_, err := spot.NewAWS(&o)
			return err
		})
	},
	"spot.DetectOptions": func(t *testing.T) {
		refuseDurations(t, spot.DetectOptions{Options: spot.Options{BaseURL: "http://127.0.0.1:1"}}, func(t *testing.T, o spot.DetectOptions) error {
			_, err := spot.Detect(t.Context(), &o)
			return err
		})
	},
	"drain/hook.Options": func(t *testing.T) {
		refuseDurations(t, hook.Options{}, func(_ *testing.T, o hook.Options) error {
			_, err := hook.New([]string{"true"}, &o)
			return err
		})
	},
}

func newCloud(t *testing.T) *simcloud.Cloud {
	t.Helper()
	cloud := simcloud.New(nil)
	t.Cleanup(cloud.Close)
	return cloud
}

// refuseDurations requires that use refuses each duration of T that has no unit, or makes
// no sense.
func refuseDurations[T any](t *testing.T, with T, use func(t *testing.T, options T) error) {
	t.Helper()
	fields := durations.Of[T]()
	require.NotEmpty(t, fields)
	for _, f := range fields {
		for _, d := range []time.Duration{1, 5, 60, 300, 3600, 86400, -1, -time.Minute, math.MaxInt64} {
			options := with
			f.Set(&options, d)
			err := use(t, options)
			require.ErrorIs(t, err, nstance.Invalid, "%s: %s", f.Name, d)
			require.ErrorContains(t, err, d.String(), f.Name)
			if d > 0 && d < time.Millisecond {
				require.ErrorContains(t, err, "forgot the unit?", f.Name)
			}
		}
	}
}

// TestDurationsOfOptions: an embedder who forgets the unit of a duration is told so, for
// whatever has one. None of them is missing in the table.
func TestDurationsOfOptions(t *testing.T) {
	for name, test := range withDurations {
		t.Run(name, test)
	}
	for dir, paths := range folders(t) {
		if !slices.Contains(publicFolders(t), dir) || moduleOf(dir) != "" || forTests.MatchString(dir) {
			continue
		}
		for _, name := range optionsWithDurations(t, paths) {
			require.Contains(t, withDurations, dir+"."+name)
		}
	}
}

// forTests are folders of what only tests use.
var forTests = regexp.MustCompile(`test$|^provider/(simcloud|testcloud)`)

// moduleOf returns the module of a folder, empty for the first one.
func moduleOf(dir string) string {
	for _, m := range []string{"aws", "azure", "clouds", "cmd/nstance-admin", "cmd/nstance-operator", "cmd/nstance-server", "examples", "gcp", "integration", "kubernetes", "proxmox", "sqlite", "tools"} {
		if dir == m || strings.HasPrefix(dir, m+"/") {
			return m
		}
	}
	return ""
}

// optionsWithDurations returns the exported structs with options among whose fields are
// durations.
func optionsWithDurations(t *testing.T, paths []string) (out []string) {
	t.Helper()
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, read(t, path), 0)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			typ, ok := n.(*ast.TypeSpec)
			if !ok || !typ.Name.IsExported() || !strings.HasSuffix(typ.Name.Name, "Options") && typ.Name.Name != "Tuning" {
				return true
			}
			fields, ok := typ.Type.(*ast.StructType)
			if ok && slices.ContainsFunc(fields.Fields.List, func(f *ast.Field) bool {
				s, ok := f.Type.(*ast.SelectorExpr)
				return ok && s.Sel.Name == "Duration"
			}) {
				out = append(out, typ.Name.Name)
			}
			return false
		})
	}
	return out
}
