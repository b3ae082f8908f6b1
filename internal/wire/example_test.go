package wire_test

import (
	"fmt"

	"google.golang.org/grpc/status"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/wire"
)

// An error keeps its exact code on its way through gRPC, which has fewer.
func ExampleStatus() {
	err := wire.Status(nstance.Errorf(nstance.Capacity, "no %s left in zone a", "c7g.large"))
	fmt.Println(status.Code(err))
	fmt.Println(nstance.CodeOf(wire.ErrorOf(err)))
	// Output:
	// ResourceExhausted
	// capacity
}
