package servercmd

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/server/config"
)

func TestSimOptions(t *testing.T) {
	p, end, err := newProvider(config.Provider{Kind: "sim", Options: json.RawMessage(`{
		"images": [{"id": "img-1", "owner": "self", "name": "base-1"}, {"id": "img-2", "owner": "self", "name": "base-2"}],
		"types": {"small": ["amd64"]}, "subnets": {"subnet-1": 250}, "load_balancers": ["lb-1"]
	}`)}, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, end()) }()
	can := provider.AbilitiesOf(p)
	id, err := can.Images.ResolveImage(t.Context(), nstance.ImageQuery{Owner: "self", Name: "base-*"})
	require.NoError(t, err)
	require.Equal(t, "img-2", id)
	free, err := can.Subnets.FreeAddresses(t.Context(), []string{"subnet-1"})
	require.NoError(t, err)
	require.Equal(t, map[string]int{"subnet-1": 250}, free)
	archs, err := can.Types.TypeArchs(t.Context(), []string{"small", "huge"})
	require.NoError(t, err)
	require.Equal(t, map[string][]nstance.Arch{"small": {nstance.AMD64}}, archs)
	_, err = can.Balancers.BalancerMembers(t.Context(), nstance.LoadBalancer{ID: "lb-1"})
	require.NoError(t, err)

	_, _, err = newProvider(config.Provider{Kind: "sim", Options: json.RawMessage(`{"subnets": 1}`)}, nil)
	require.ErrorContains(t, err, "shard.provider.options.subnets")
}
