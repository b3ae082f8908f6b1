package testcloud_test

import (
	"fmt"

	"github.com/nstance-go/nstance/provider/testcloud"
)

// Capacity says how many machines of a shape can start; other shapes are endless.
func ExampleCapacity() {
	var capacity testcloud.Capacity
	spot := testcloud.Shape{Type: "m5.large", Zone: "us-east-1a", Spot: true}
	capacity.Set(spot, 1)
	fmt.Println(capacity.Take(spot), capacity.Take(spot))
	// Output: true false
}
