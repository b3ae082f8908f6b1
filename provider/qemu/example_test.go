package qemu_test

import (
	"fmt"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/qemu"
)

// A configuration is checked without QEMU.
func Example() {
	kind := qemu.Kind()
	settings := provider.Settings{Options: []byte(`{"kernel": "vmlinuz", "types": {"small": {"memory": 256}}}`)}
	spec := nstance.MachineSpec{
		ID: "tst06dx9xy919t3v9kzd2xdsyzb3g", Token: "t", InstanceType: "smal",
		Owner: nstance.Owner{Installation: "i", Cluster: "lab", Shard: "a", Tenant: "default"},
	}
	fmt.Println(kind.CheckSpec(settings, spec))
	// Output: instance_type: "smal" is not among options.types (did you mean "small"?)
}
