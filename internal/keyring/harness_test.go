package keyring_test

import (
	"crypto/ed25519"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/pki"
)

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const (
	cluster = nstance.ClusterID("prod")
	shard   = nstance.ShardID("eu-1a")
)

func agentClaims(id nstance.InstanceID, now time.Time) keyring.Claims {
	return keyring.Claims{
		Kind: nstance.RoleAgent, Subject: string(id), Cluster: cluster, Shard: shard, Tenant: "default", Group: "web",
		ConfigHash: "v1:sha256:00", NotBefore: now, Expiry: now.Add(20 * time.Minute),
	}
}

func operatorClaims(kind nstance.Role, jti string, now time.Time) keyring.Claims {
	return keyring.Claims{
		Kind: kind, Subject: string(cluster), Cluster: cluster, Tenant: "acme", JTI: jti,
		NotBefore: now, Expiry: now.Add(3 * time.Hour),
	}
}

func csrOf(t testing.TB, key ed25519.PrivateKey) []byte {
	der, err := pki.NewCSR(key, "ignored")
	require.NoError(t, err)
	return der
}

func public(key ed25519.PrivateKey) ed25519.PublicKey { return key.Public().(ed25519.PublicKey) }
