package main

import (
	"testing"

	"github.com/nstance-go/nstance/internal/admin"
	"github.com/nstance-go/nstance/internal/test/doctest"
	"github.com/nstance-go/nstance/internal/test/flagtables"
)

func TestFlagsDocument(t *testing.T) {
	doctest.Section(t, doctest.Docs("flags.md"), "nstance-admin", flagtables.Commands(admin.Command()))
}
