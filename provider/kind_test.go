package provider_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
)

type dockOptions struct {
	Dir  string `json:"dir" doc:"folder" required:"true"`
	Mode string `json:"mode" doc:"how it works" enum:"fast|slow"`
}

type dockArgs struct {
	Memory  int                 `json:"memory" doc:"MiB" min:"16" max:"64" required:"true"`
	Share   float64             `json:"share" doc:"of a processor" min:"0.5"`
	Network string              `json:"network" doc:"kind of network" enum:"bridge|host"`
	Flags   []string            `json:"flags" doc:"what it may do" enum:"tty|net"`
	Ports   []dockPort          `json:"ports" doc:"open ports"`
	Named   map[string]dockPort `json:"named" doc:"ports with a name"`
	Health  *dockPort           `json:"health" doc:"port of the check"`
	Boot    provider.Duration   `json:"boot" doc:"how long it takes to start"`
}

type dockPort struct {
	Number uint16 `json:"number" doc:"of the port" required:"true" min:"1"`
}

func dock() provider.Kind {
	return provider.Kind{Name: "dock", Options: &dockOptions{}, Args: &dockArgs{},
		Open: func(context.Context, provider.Settings) (nstance.Provider, func() error, error) { return nil, nil, nil }}
}

// requireField checks that err is Invalid and names field.
func requireField(t *testing.T, err error, field, says string) {
	t.Helper()
	e, ok := errors.AsType[*nstance.Error](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, nstance.Invalid, e.Code)
	require.Equal(t, field, e.Field, "%v", err)
	require.ErrorContains(t, err, says)
}

// TestKindWithoutChecks: a kind without checks of its own has strict ones.
func TestKindWithoutChecks(t *testing.T) {
	k, err := provider.Kinds{dock()}.Find("dock")
	require.NoError(t, err)
	check := func(options string) error { return k.Check(provider.Settings{Options: json.RawMessage(options)}) }
	checkSpec := func(args string) error {
		return k.CheckSpec(provider.Settings{}, nstance.MachineSpec{Args: json.RawMessage(args)})
	}
	require.NoError(t, check(`{"dir": "/var", "mode": "fast"}`))
	require.NoError(t, checkSpec(`{"memory": 20}`))
	requireField(t, check(`{"dir": "/var", "moed": "fast"}`), "options.moed", `did you mean "mode"?`)
	requireField(t, check(`{"dir": 7}`), "options.dir", "number")
	requireField(t, check(``), "options.dir", "is missing")
	requireField(t, checkSpec(`{"memroy": 20}`), "args.memroy", `did you mean "memory"?`)
	requireField(t, checkSpec(`{"memory": 2}`), "args.memory", "2 is out of range (use 16 to 64)")

	bare := dock()
	bare.Options, bare.Args = nil, nil
	k, err = provider.Kinds{bare}.Find("dock")
	require.NoError(t, err)
	require.NoError(t, check(``))
	requireField(t, check(`{"dir": "x"}`), "options.dir", "no such argument")
	requireField(t, checkSpec(`{"memory": 20}`), "args.memory", "no such argument")
}

// TestTagsAreEnforced: what the documented tags say of a field is what decoding permits.
func TestTagsAreEnforced(t *testing.T) {
	for _, good := range []string{
		`{"memory": 16, "share": 0.5, "network": "host", "flags": ["tty", "net"], "boot": "7d"}`,
		`{"memory": 64, "network": "", "ports": [{"number": 1}], "named": {"a": {"number": 2}}, "health": {"number": 3}}`,
		`{"memory": 16, "health": null, "ports": null, "share": null}`,
	} {
		require.NoError(t, provider.DecodeArgs(json.RawMessage(good), &dockArgs{}), good)
	}
	for bad, want := range map[string]struct{ field, says string }{
		``:                                {"args.memory", "is missing (add it)"},
		`{}`:                              {"args.memory", "is missing (add it)"},
		`{"memory": null}`:                {"args.memory", "is missing"},
		`{"memory": 0}`:                   {"args.memory", "0 is out of range"},
		`{"memory": 65}`:                  {"args.memory", "65 is out of range (use 16 to 64)"},
		`{"MEMORY": 65}`:                  {"args.memory", "65 is out of range"},
		`{"memory": 20, "share": 0.25}`:   {"args.share", "0.25 is out of range (use at least 0.5)"},
		`{"memory": 20, "network": "br"}`: {"args.network", `unknown word "br" (valid here: bridge, host)`},
		`{"memory": 20, "flags": ["tty", "nte"]}`:                 {"args.flags[1]", `did you mean "net"?`},
		`{"memory": 20, "ports": [{"number": 1}, {"number": 0}]}`: {"args.ports[1].number", "0 is out of range (use at least 1)"},
		`{"memory": 20, "ports": [{}]}`:                           {"args.ports[0].number", "is missing"},
		`{"memory": 20, "named": {"web": {}}}`:                    {"args.named.web.number", "is missing"},
		`{"memory": 20, "health": {}}`:                            {"args.health.number", "is missing"},
	} {
		requireField(t, provider.DecodeArgs(json.RawMessage(bad), &dockArgs{}), want.field, want.says)
	}
	t.Run("of options too", func(t *testing.T) {
		requireField(t, provider.DecodeOptions(nil, &dockOptions{}), "options.dir", "is missing")
		requireField(t, provider.DecodeOptions(json.RawMessage(`{"dir": ""}`), &dockOptions{}), "options.dir", "is missing")
		requireField(t, provider.DecodeOptions(json.RawMessage(`{"dir": "x", "mode": "fats"}`), &dockOptions{}), "options.mode", `did you mean "fast"?`)
	})
	t.Run("what was set before need not be given", func(t *testing.T) {
		a := dockArgs{Memory: 20}
		require.NoError(t, provider.DecodeArgs(nil, &a))
		require.Equal(t, 20, a.Memory)
	})
}

// TestKindsValidate: mistakes in a kind are found before it is used.
func TestKindsValidate(t *testing.T) {
	require.NoError(t, provider.Kinds{dock()}.Validate())
	bare := dock()
	bare.Options, bare.Args = nil, nil
	require.NoError(t, provider.Kinds{bare}.Validate(), "there are none")
	for name, tc := range map[string]struct {
		change      func(k *provider.Kind)
		field, says string
	}{
		"no Open":               {func(k *provider.Kind) { k.Open = nil }, "kinds.dock.open", "is nil"},
		"options that are none": {func(k *provider.Kind) { k.Options = dockOptions{} }, "kinds.dock.options", "provider_test.dockOptions is not a pointer to a struct"},
		"args that are text":    {func(k *provider.Kind) { k.Args = new(string) }, "kinds.dock.args", "*string is not a pointer to a struct"},
		"a field without doc": {func(k *provider.Kind) {
			k.Args = &struct {
				X int `json:"x"`
			}{}
		}, "kinds.dock.args.x", "has no doc tag"},
		"an inner field without doc": {func(k *provider.Kind) {
			k.BalancerArgs = &struct {
				List []struct{ Y int } `json:"list" doc:"them"`
			}{}
		}, "kinds.dock.balancer_args.list.Y", "has no doc tag"},
	} {
		t.Run(name, func(t *testing.T) {
			k := dock()
			tc.change(&k)
			requireField(t, provider.Kinds{k}.Validate(), tc.field, tc.says)
		})
	}
	t.Run("a type that contains itself", func(t *testing.T) {
		type node struct {
			Next *node `json:"next" doc:"the next"`
		}
		k := dock()
		k.Args = &node{}
		require.NoError(t, provider.Kinds{k}.Validate())
	})
}
