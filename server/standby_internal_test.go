package server

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage/lease"
)

// A fixedElector is an elector that has read a lease with this holder.
type fixedElector struct {
	lease.Elector
	holder lease.Holder
}

func (s fixedElector) Holder() lease.Holder { return s.holder }

func TestStandbyNamesTheLeader(t *testing.T) {
	t.Parallel()
	s := &Server{elector: fixedElector{holder: lease.Holder{ID: "b", Address: "10.0.0.7:8993", Epoch: 4}}}
	_, err := s.leading()
	require.ErrorIs(t, err, nstance.Unavailable)
	require.ErrorContains(t, err, "ask the leader, at 10.0.0.7:8993")

	s.elector = fixedElector{holder: lease.Holder{ID: "b", Address: "10.0.0.7:8993", Released: true}}
	_, err = s.leading()
	require.NotContains(t, err.Error(), "10.0.0.7", "it has released the lease")
}
