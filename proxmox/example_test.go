package proxmox_test

import (
	"fmt"

	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/proxmox"
)

func ExampleKind() {
	kind := proxmox.Kind()
	fmt.Println(kind.Name, kind.Spot)
	fmt.Println(kind.Check(provider.Settings{Options: []byte(`{"endpiont": "https://127.0.0.1"}`)}))
	// Output:
	// proxmox false
	// options.endpiont: no such argument (did you mean "endpoint"?)
}
