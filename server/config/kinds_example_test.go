package config_test

import (
	"context"
	"fmt"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/server/config"
)

// shelfArgs are what args of templates and groups say of kind shelf.
type shelfArgs struct {
	Disks int `json:"disks" doc:"how many disks to put in" min:"1" max:"8"`
}

// shelf is a kind of provider under a name of the program's own.
var shelf = provider.Kind{
	Name: "shelf", Args: &shelfArgs{}, Spot: true,
	CheckSpec: func(_ provider.Settings, spec nstance.MachineSpec) error {
		return provider.DecodeArgs(spec.Args, &shelfArgs{})
	},
	Open: func(context.Context, provider.Settings) (nstance.Provider, func() error, error) {
		cloud := simcloud.New(nil)
		return cloud, func() error { cloud.Close(); return nil }, nil
	},
}

func ExampleParse_kinds() {
	_, err := config.Parse("shelf.jsonc", []byte(`{
		"cluster": {"id": "home"},
		"shard": {"id": "a", "provider": {"kind": "shelf"}},
		"templates": {"web": {"kind": "web", "arch": "amd64", "args": {"disk": 2}}},
		"groups": {"default": {"web": {"template": "web", "size": 3}}}
	}`), shelf)
	fmt.Println(err)
	// Output: templates.web.args.disk: shelf.jsonc:4:74: no such argument (did you mean "disks"?)
}
