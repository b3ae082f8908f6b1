package shards_test

import (
	"context"
	"crypto/ed25519"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/test/shardtest"
	"github.com/nstance-go/nstance/kubernetes/internal/shards"
)

// issued returns the certificate of an operator that no shard has a record of.
func issued(t *testing.T, keys *keyring.Keys, begins time.Time, life time.Duration) shards.Identity {
	key := pki.NewKey()
	public, _ := key.Public().(ed25519.PublicKey)
	record, err := keys.Identity.Issue(keyring.Template{
		Subject: "operator-x", Tenant: nstance.DefaultTenant, Role: nstance.RoleOperator, Key: public, Lifetime: life, Now: begins,
	})
	require.NoError(t, err)
	return shards.Identity{
		Cluster: shardtest.ID, Tenant: nstance.DefaultTenant, Key: key, Chain: [][]byte{record.Certificate}, Roots: [][]byte{keys.Identity.Certificate()},
	}
}

// lost returns why a shard is lost, once why is as wanted.
func lost(t *testing.T, address string, id shards.Identity, wanted func(error) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), eventually)
	defer cancel()
	var last error
	shards.New(shards.Options{
		Name: "a", Servers: func() []string { return []string{address} }, Identity: func() shards.Identity { return id },
		Connection: func(_ bool, why error) {
			if last = why; wanted(why) {
				cancel()
			}
		},
	}).Run(ctx)
	require.ErrorIs(t, context.Cause(ctx), context.Canceled, "%v", last)
}

// TestRefusal: a certificate that a shard does not accept, or that does not know the shard, is
// told from a shard that is away.
func TestRefusal(t *testing.T) {
	cluster, other := shardtest.New(t), shardtest.New(t)
	server := cluster.Start("a", 0)
	foreign := issued(t, other.Keys(), time.Now(), time.Hour)
	unknown := foreign
	unknown.Roots = [][]byte{cluster.Keys().Identity.Certificate()}
	for name, id := range map[string]shards.Identity{
		"expired":           issued(t, cluster.Keys(), time.Now().Add(-30*time.Minute), 10*time.Minute),
		"of an unknown key": unknown,
		"knows another key": foreign,
		"without a record":  issued(t, cluster.Keys(), time.Now(), time.Hour),
	} {
		t.Run(name, func(t *testing.T) {
			lost(t, server.Operator(), id, func(err error) bool {
				refusal, ok := errors.AsType[*shards.Refusal](err)
				return ok && string(refusal.Certificate) == string(id.Certificate())
			})
		})
	}
	t.Run("away", func(t *testing.T) {
		server.Stop()
		lost(t, server.Operator(), foreign, func(err error) bool {
			_, ok := errors.AsType[*shards.Refusal](err)
			return !ok
		})
	})
}
