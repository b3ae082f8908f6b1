package nstance_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
)

func TestValidateName(t *testing.T) {
	for _, good := range []string{"a", "0", "web", "eu-west-1a", strings.Repeat("x", 32)} {
		require.NoError(t, nstance.ValidateName("group", good), good)
	}
	for _, bad := range []string{"", "-a", "a-", "a--b", "A", "a_b", "a.b", "ü", "a b", strings.Repeat("x", 33)} {
		err := nstance.GroupID(bad).Validate("groups.default")
		require.ErrorIs(t, err, nstance.Invalid, bad)
		require.ErrorContains(t, err, "groups.default", "the field is named")
	}
}

func TestNoShardIsCalledCluster(t *testing.T) {
	require.ErrorIs(t, nstance.ShardID("cluster").Validate("shard.id"), nstance.Invalid)
	require.NoError(t, nstance.ShardID("cluster-a").Validate("shard.id"))
	require.NoError(t, nstance.ClusterID("cluster").Validate("cluster.id"))
}

func TestKind(t *testing.T) {
	require.NoError(t, nstance.InstanceKind("knc").Validate("kind"))
	for _, bad := range []nstance.InstanceKind{"", "kn", "kncx", "KNC", "k1c", "küc"} {
		require.ErrorIs(t, bad.Validate("kind"), nstance.Invalid, bad)
	}
}

// FuzzValidateName holds the rule against its definition as an expression.
func FuzzValidateName(f *testing.F) {
	rule := regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)
	for _, s := range []string{"web", "a--b", "-", "a-b-c", "Ab"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		want := rule.MatchString(s) && len(s) <= 32 && !strings.Contains(s, "--")
		require.Equal(t, want, nstance.ValidateName("name", s) == nil, "%q", s)
	})
}
