package config_test

import (
	"testing"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/stretchr/testify/require"
)

func TestChangeLimit(t *testing.T) {
	for name, c := range map[string]struct {
		limit   *nstance.Count
		members int
		want    int
	}{
		"a small shard may change ten":      {nil, 3, 10},
		"a large one a fifth":               {nil, 101, 21},
		"a percentage is meant as it is":    {&nstance.Count{N: 10, Percent: true}, 30, 3},
		"a count too":                       {&nstance.Count{N: 2}, 1000, 2},
		"none at all is a decision":         {&nstance.Count{}, 1000, 0},
		"nothing is a part of an empty one": {&nstance.Count{N: 50, Percent: true}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.want, (&config.Shard{MaxChange: c.limit}).ChangeLimit(c.members))
		})
	}
}
