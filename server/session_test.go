package server_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
)

var nan = math.NaN()

func TestSession(t *testing.T) {
	w := newWorld(t, setup{size: 1})
	id := w.machine(nstance.DefaultTenant)
	k := w.ready(id)
	require.NotNil(t, k)
}
