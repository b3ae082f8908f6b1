package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/server/config"
	"github.com/stretchr/testify/require"
)

const demo = `{
	"cluster": {"id": "home"},
	"shard": {"id": "a", "provider": {"kind": "sim"}},
	"load_balancers": {"front": {"id": "lb-1"}},
	"templates": {"small": {"kind": "web", "arch": "amd64"}},
	"groups": {"default": {"web": {"template": "small", "size": 3}}}, // merged
}`

func TestLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "demo.jsonc")
	_, err := config.Load(path)
	require.ErrorIs(t, err, nstance.NotFound)
	require.NoError(t, os.WriteFile(path, []byte(demo), 0o600))
	c, err := config.Load(path, simcloud.Kind())
	require.NoError(t, err)
	require.Equal(t, nstance.ClusterID("home"), c.Cluster())
	require.Equal(t, nstance.ShardID("a"), c.Shard())
	require.Len(t, c.Groups(), 1)
	require.Equal(t, nstance.InstanceKind("web"), c.Groups()[0].Definition.Kind)
	require.Equal(t, 3, c.Groups()[0].Size)
	require.Len(t, c.LoadBalancers(), 1)
	require.Equal(t, "front", c.LoadBalancers()[0].Name)
}

func TestParseNamesThePlace(t *testing.T) {
	c, err := config.Parse("demo", []byte(`{"cluster": {"id": "home"}}`))
	require.Nil(t, c)
	require.ErrorIs(t, err, nstance.Invalid)
	e, ok := errors.AsType[*nstance.Error](err)
	require.True(t, ok)
	require.Equal(t, "shard", e.Field)
	require.Contains(t, e.Msg, "demo:1:")
}

func TestOpenProvider(t *testing.T) {
	c, err := config.Parse("demo", []byte(demo), simcloud.Kind())
	require.NoError(t, err)
	p, closeProvider, err := c.OpenProvider(t.Context(), nil)
	require.NoError(t, err)
	_, err = p.Get(t.Context(), "web000000000000000000000000")
	require.Error(t, err)
	require.NoError(t, closeProvider())

	unknown, err := config.Parse("demo", []byte(demo))
	require.NoError(t, err)
	_, _, err = unknown.OpenProvider(t.Context(), nil)
	require.ErrorIs(t, err, nstance.Invalid, "no kinds were given")
}
