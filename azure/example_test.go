package azure_test

import (
	"fmt"

	"github.com/nstance-go/nstance/azure"
	"github.com/nstance-go/nstance/provider"
)

func ExampleKind() {
	kind := azure.Kind()
	fmt.Println(kind.Name, kind.Spot)
	fmt.Println(kind.Check(provider.Settings{Options: []byte(`{"endpiont": "https://127.0.0.1"}`)}))
	// Output:
	// azure true
	// options.endpiont: no such argument (did you mean "endpoint"?)
}
