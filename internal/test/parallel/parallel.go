// Package parallel runs tests of one package at once that wait most of their time: more
// of them than there are processors.
package parallel

import (
	"flag"
	"strconv"
	"testing"
)

// waiting is how many tests wait at once, on any machine.
const waiting = 8

// Run runs the tests of a package, and returns the program's exit code. A package's
// TestMain calls it.
func Run(m *testing.M) int {
	Permit(waiting)
	return m.Run()
}

// Permit lets n tests that are parallel run at once. The flag -parallel wins. A package's
// TestMain calls it before it runs the tests.
func Permit(n int) {
	flag.Parse()
	const name = "test.parallel"
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == name })
	if given {
		return
	}
	if err := flag.Set(name, strconv.Itoa(n)); err != nil {
		panic(err) // package testing has the flag
	}
}
