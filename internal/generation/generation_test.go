package generation_test

import (
	"fmt"
	"testing"

	"github.com/nstance-go/nstance/internal/generation"
)

func Example() {
	restored := generation.Next(7)
	fmt.Println(generation.Of(7), generation.Of(restored) > 0, generation.Of(restored+9) == generation.Of(restored))
	// Output: 0 true true
}

// TestNext: it is above every epoch of the generation, and two of one backup differ.
func TestNext(t *testing.T) {
	seen := map[uint64]bool{}
	for range 100 {
		next := generation.Next(1_000_009)
		if next%1_000_000 != 0 || next < 2_000_000 || next > 1_002_000_000 {
			t.Fatal(next)
		}
		seen[next] = true
	}
	if len(seen) < 50 {
		t.Fatalf("%d of 100 differ", len(seen))
	}
}
