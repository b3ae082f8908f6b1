package qemu_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/internal/test/doctest"
	"github.com/nstance-go/nstance/provider/qemu"
)

func TestDocument(t *testing.T) { doctest.Kind(t, qemu.Kind(), "args of provider qemu") }

// TestWalkthrough: the configuration in the document is accepted.
func TestWalkthrough(t *testing.T) {
	_, err := config.ParseContext(t.Context(), "prod.jsonc", doctest.Example(t, qemu.Kind()), qemu.Kind())
	require.NoError(t, err)
}
