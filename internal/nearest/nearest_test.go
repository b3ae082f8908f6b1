package nearest_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/nearest"
)

func TestRemedy(t *testing.T) {
	words := []string{"drain_started", "deleted", "ready", "size"}
	for word, want := range map[string]string{
		"siez":         `did you mean "size"?`, // swapped
		"szie":         `did you mean "size"?`,
		"redy":         `did you mean "ready"?`,
		"readdy":       `did you mean "ready"?`,
		"drain_startd": `did you mean "drain_started"?`,
		"xyz":          "valid here: drain_started, deleted, ready, size",
		"":             "valid here: drain_started, deleted, ready, size",
	} {
		require.Equal(t, want, nearest.Remedy(word, words), word)
	}
	require.Equal(t, "none is defined", nearest.Remedy("x", nil))
	var many []string
	for i := range 25 {
		many = append(many, fmt.Sprintf("word%02d", i))
	}
	require.Regexp(t, `^valid here: word00, .*word19 and 5 more$`, nearest.Remedy("?", many))
}

func TestAmong(t *testing.T) {
	valid := []nstance.EventType{nstance.EventReady, nstance.EventDeleted}
	require.NoError(t, nearest.Among("type", nstance.EventReady, valid))
	err := nearest.Among("type", nstance.EventType("redy"), valid)
	require.ErrorIs(t, err, nstance.Invalid)
	require.EqualError(t, err, `type: unknown word "redy" (did you mean "ready"?)`)
}
