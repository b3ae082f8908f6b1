package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nstance-go/nstance/agent"
	"github.com/nstance-go/nstance/internal/test/doctest"
	"github.com/nstance-go/nstance/internal/test/flagtables"
)

func TestFlagsDocument(t *testing.T) {
	var table strings.Builder
	table.WriteString("| flag | variable | meaning |\n|---|---|---|\n")
	for _, v := range agent.Variables() {
		fmt.Fprintf(&table, "| `--%s` | `%s` | %s |\n", flagOf(v), v.Name, flagtables.Text(v.Help))
	}
	doctest.Section(t, doctest.Docs("flags.md"), "nstance-agent", table.String())
}
