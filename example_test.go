package nstance_test

import (
	"errors"
	"fmt"

	"github.com/nstance-go/nstance"
)

func ExampleParseInstanceID() {
	id, err := nstance.ParseInstanceID("acc06bgm7733st2576nx5jht4ecjw")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(id.Kind(), id.Time())
	// Output: acc 2025-05-26 01:02:34.782 +0000 UTC
}

func ExampleCode() {
	err := fmt.Errorf("create: %w", nstance.Errorf(nstance.Capacity, "no m7i.large in eu-west-1a"))
	if errors.Is(err, nstance.Capacity) {
		fmt.Println("try another shape:", err)
	}
	// Output: try another shape: create: no m7i.large in eu-west-1a
}
