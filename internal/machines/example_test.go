package machines_test

import (
	"context"
	"fmt"
	"os"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/machines"
)

func ExampleSet() {
	root, err := os.MkdirTemp("", "machines")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(root)
	set := machines.New[*folder](machines.Options{Root: root, Prefix: "vm", Zone: "here"})
	spec := nstance.MachineSpec{ID: "web06bgm7733st2576nx5jht4ecjw", Group: "web"}
	m, err := set.Create(context.Background(), spec, machines.Name{}, func(p *machines.Part) *folder { return &folder{Part: p, set: set} })
	fmt.Println(m.ProviderID, m.Zone, m.Status, err)
	// Output: vm-1 here pending <nil>
}
