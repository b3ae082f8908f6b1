package v1beta1_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
)

// TestAbandons: the annotation gives up shards that are not in the spec any more, or all that it
// names once the cluster is deleted. A shard that is still in use is none of them.
func TestAbandons(t *testing.T) {
	for name, c := range map[string]struct {
		annotation string
		shards     []string
		deleted    bool
		want       bool // of shard b
	}{
		"not named":               {"", nil, false, false},
		"named":                   {"b", nil, false, true},
		"one of several":          {"a, b ,c", nil, false, true},
		"another one":             {"bb", nil, false, false},
		"still in use":            {"b", []string{"a", "b"}, false, false},
		"in use by one that goes": {"b", []string{"a", "b"}, true, true},
		"not named, and it goes":  {"a", []string{"a", "b"}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			nc := &infrav1.NstanceCluster{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{infrav1.AnnotationAbandonedShards: c.annotation}}}
			for _, shard := range c.shards {
				nc.Spec.Shards = append(nc.Spec.Shards, infrav1.Shard{Name: shard})
			}
			if c.deleted {
				nc.DeletionTimestamp = &metav1.Time{Time: time.Now()}
			}
			require.Equal(t, c.want, nc.Abandons("b"))
		})
	}
}
