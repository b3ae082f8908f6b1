// Command cmd writes the overlay with which the simulation is built:
//
//	go run ./internal/test/sim/exact/cmd -o DIR
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/nstance-go/nstance/internal/test/sim/exact"
)

func main() {
	out := flag.String("o", "", "directory to write into")
	module := flag.String("module", ".", "directory of the module that is built")
	flag.Parse()
	if _, err := exact.Write(*out, *module, nil); err != nil {
		fmt.Fprintln(os.Stderr, "exact:", err)
		os.Exit(1)
	}
}
