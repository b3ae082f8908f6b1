package nodedrain

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nstance-go/nstance"
)

// allStay knows an instance of each node, which stays.
type allStay struct{}

func (allStay) OfNodes(_ context.Context, nodes []*corev1.Node) map[types.UID]Known {
	out := map[types.UID]Known{}
	for _, node := range nodes {
		out[node.UID] = Known{Instance: nstance.InstanceID("web-" + node.Name), State: InstanceStays}
	}
	return out
}

// A countedStay counts the comparisons that found all nodes of a test.
type countedStay struct {
	allStay
	nodes int
	found atomic.Int64
}

func (c *countedStay) OfNodes(ctx context.Context, nodes []*corev1.Node) map[types.UID]Known {
	if len(nodes) == c.nodes {
		c.found.Add(1)
	}
	return c.allStay.OfNodes(ctx, nodes)
}

// marked counts the nodes that name their instance.
func (r *virtualRig) marked() (n int) {
	for _, o := range r.kube.Objects("/api/v1/nodes/") {
		if annotations, _ := o["metadata"].(map[string]any)["annotations"].(map[string]any); annotations[AnnotationInstance] != nil {
			n++
		}
	}
	return n
}

// TestMarksPastFailures: a node that cannot be patched keeps no other node from being marked with
// its instance.
func TestMarksPastFailures(t *testing.T) {
	for name, answer := range map[string]func(*http.Request) error{
		"refused": func(*http.Request) error { return apierrors.NewForbidden(corev1.Resource("nodes"), "", nil) },
		"no answer": func(q *http.Request) error {
			<-q.Context().Done()
			return q.Context().Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			const nodes = 40
			known := &countedStay{nodes: nodes}
			virtual(t, &Options{Instances: known, QPS: 1000}, func(r *virtualRig) {
				var mu sync.Mutex
				first := "" // the first node that is patched cannot be
				patches := 0
				r.kube.Refuse(func(q *http.Request) error {
					if q.Method != http.MethodPatch || !strings.HasPrefix(q.URL.Path, "/api/v1/nodes/") {
						return nil
					}
					mu.Lock()
					if first == "" {
						first = q.URL.Path
					}
					failing := q.URL.Path == first
					if failing {
						patches++
					}
					mu.Unlock()
					if failing {
						return answer(q)
					}
					return nil
				})
				for i := range nodes {
					r.node(fmt.Sprint("n", i))
				}
				for known.found.Load() == 0 {
					pass(10 * time.Millisecond)
				}
				pass(comparePause - 100*time.Millisecond) // until the next comparison
				require.Equal(r, nodes-1, r.marked())
				pass(10 * time.Minute)
				require.Equal(r, nodes-1, r.marked())
				mu.Lock()
				defer mu.Unlock()
				require.InDelta(r, 11, patches, 2, "tried again at each comparison")
			})
		})
	}
}

// TestMarksManyNodes: what one comparison leaves is marked by the next, and nodes that cannot be
// patched are not tried more often for that.
func TestMarksManyNodes(t *testing.T) {
	virtual(t, &Options{Instances: allStay{}, QPS: 10000}, func(r *virtualRig) {
		var mu sync.Mutex
		refused := 0
		r.kube.Refuse(func(q *http.Request) error {
			if q.Method != http.MethodPatch || !strings.HasSuffix(q.URL.Path, "x") {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			refused++
			return apierrors.NewForbidden(corev1.Resource("nodes"), "", nil)
		})
		const good = 32
		for i := range good + maxMarks {
			name := fmt.Sprint("n", i)
			if i >= good {
				name += "x"
			}
			r.node(name)
		}
		pass(3 * time.Minute)
		require.Equal(r, good, r.marked())
		mu.Lock()
		defer mu.Unlock()
		require.Less(r, refused, 15*maxMarks, "once a minute, and as often as it helped another node")
	})
}

// TestMarkIsCorrected: a node that names another instance than its own is marked with that. One that is
// marked is not written to again.
func TestMarkIsCorrected(t *testing.T) {
	virtual(t, &Options{Instances: allStay{}}, func(r *virtualRig) {
		var patches atomic.Int64
		r.kube.Refuse(func(q *http.Request) error {
			if q.Method == http.MethodPatch {
				patches.Add(1)
			}
			return nil
		})
		r.node("n")
		r.change("n", func(n *corev1.Node) { n.Annotations = map[string]string{AnnotationInstance: "web-m"} })
		pass(10 * time.Minute)
		require.Equal(r, "web-n", r.get("n").Annotations[AnnotationInstance])
		require.EqualValues(r, 1, patches.Load())
	})
}

// TestOneNodeByBothIDs: a node whose provider ID ends in its instance's ID is one node, also where the
// provider's ID of the machine is the same.
func TestOneNodeByBothIDs(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		r.node("web-n")
		pass(time.Second)
		for _, providerID := range []string{"cloud:///web-n", "web-n", "", "104"} {
			node, err := r.Find("web-n", providerID)
			require.NoError(r, err, providerID)
			require.Equal(r, "web-n", node.Name)
		}
		_, err := r.Find("", "")
		require.ErrorIs(r, err, nstance.NotFound)
	})
}

// A countedNone counts comparisons that know no instance.
type countedNone struct{ made atomic.Int64 }

func (c *countedNone) OfNodes(context.Context, []*corev1.Node) map[types.UID]Known {
	c.made.Add(1)
	return nil
}

// TestComparesNowAndThen: nodes are compared every minute, at once when one joins, and once a second
// where many do.
func TestComparesNowAndThen(t *testing.T) {
	known := &countedNone{}
	virtual(t, &Options{Instances: known}, func(r *virtualRig) {
		pass(10 * time.Second)
		require.EqualValues(r, 1, known.made.Load())
		for i := range 30 {
			r.node(fmt.Sprint("n", i))
			pass(100 * time.Millisecond)
		}
		require.InDelta(r, 4, known.made.Load(), 1)
		before := known.made.Load()
		pass(10 * time.Minute)
		require.InDelta(r, 10, known.made.Load()-before, 1)
	})
}
