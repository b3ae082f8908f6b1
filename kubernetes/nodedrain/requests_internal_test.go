package nodedrain

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	lifecyclev1 "k8s.io/api/lifecycle/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/nstance-go/nstance"
)

// askedPods are the pods of which an eviction was asked for.
type askedPods struct{ names []string }

func (a *askedPods) Evict(_ context.Context, pod *corev1.Pod, _ *int64) error {
	a.names = append(a.names, pod.Name)
	return nil
}

// requesting returns an Evictor of a cluster that serves EvictionRequests.
func requesting(served ...string) (*EvictionRequests, *fake.Clientset, *askedPods) {
	api, asked := fake.NewClientset(), &askedPods{}
	list := &metav1.APIResourceList{GroupVersion: lifecyclev1.SchemeGroupVersion.String()}
	for _, name := range served {
		list.APIResources = append(list.APIResources, metav1.APIResource{Name: name})
	}
	api.Resources = []*metav1.APIResourceList{list}
	return &EvictionRequests{client: api, eviction: asked, log: slog.New(slog.DiscardHandler)}, api, asked
}

func podOn(name, node string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-of-" + name)}, Spec: corev1.PodSpec{NodeName: node}}
}

// TestRequestOrEviction: what has no EvictionRequest, or one that has failed, is evicted.
func TestRequestOrEviction(t *testing.T) {
	fails := func(t *testing.T, api *fake.Clientset, pod *corev1.Pod) {
		requests := api.LifecycleV1alpha1().EvictionRequests(pod.Namespace)
		r, err := requests.Get(t.Context(), requestName(pod), metav1.GetOptions{})
		require.NoError(t, err)
		r.Status.Conditions = []metav1.Condition{{Type: requestFailed, Status: metav1.ConditionTrue}}
		_, err = requests.UpdateStatus(t.Context(), r, metav1.UpdateOptions{})
		require.NoError(t, err)
	}
	t.Run("a request that stands", func(t *testing.T) {
		e, api, asked := requesting("evictionrequests")
		pod := podOn("p", "n")
		for range 2 {
			require.Equal(t, nstance.Denied, nstance.CodeOf(e.Evict(t.Context(), pod, nil)))
		}
		require.Empty(t, asked.names)
		fails(t, api, pod)
		require.NoError(t, e.Evict(t.Context(), pod, nil))
		require.Equal(t, []string{"p"}, asked.names)
	})
	t.Run("a pod of a group", func(t *testing.T) {
		e, _, asked := requesting("evictionrequests")
		pod := podOn("p", "n")
		pod.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: ptr.To("g")}
		require.NoError(t, e.Evict(t.Context(), pod, nil))
		require.Equal(t, []string{"p"}, asked.names)
	})
	t.Run("another resource of the group", func(t *testing.T) {
		e, _, asked := requesting("others")
		require.NoError(t, e.Evict(t.Context(), podOn("p", "n"), nil))
		require.Equal(t, []string{"p"}, asked.names)
		require.NoError(t, e.Withdraw(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}))
	})
}

// answering is a cluster that answers as the function does.
type answering func(*http.Request) (*http.Response, error)

func (a answering) RoundTrip(r *http.Request) (*http.Response, error) { return a(r) }

// TestSilentDiscovery: a cluster that does not say what it serves keeps no eviction longer than its
// caller waits for it, nor for long.
func TestSilentDiscovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		evicted := 0
		e, err := NewEvictionRequests(&rest.Config{Host: "http://kube.test", Transport: answering(func(r *http.Request) (*http.Response, error) {
			if r.URL.Path == "/apis/lifecycle.k8s.io/v1alpha1" {
				<-r.Context().Done()
				return nil, r.Context().Err()
			}
			evicted++
			return &http.Response{StatusCode: http.StatusCreated, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader("{}")), Request: r}, r.Context().Err()
		})}, nil)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		require.Error(t, e.Evict(ctx, podOn("p", "n"), nil))
		require.Equal(t, time.Second, time.Since(start))
		for range 2 {
			require.NoError(t, e.Evict(t.Context(), podOn("p", "n"), nil))
		}
		require.Equal(t, time.Second+servedWait, time.Since(start), "it is asked again later")
		require.Equal(t, 2, evicted)
	})
}

// TestWithdraw takes back the requests of drains for the pods of a node, and no others.
func TestWithdraw(t *testing.T) {
	e, api, _ := requesting("evictionrequests")
	other := requestFor(podOn("other", "n"))
	other.Spec.Requester = "example.com/rebalancer"
	elsewhere := requestFor(podOn("elsewhere", "m"))
	for _, r := range []*lifecyclev1.EvictionRequest{requestFor(podOn("p", "n")), other, elsewhere} {
		_, err := api.LifecycleV1alpha1().EvictionRequests("ns").Create(t.Context(), r, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	for range 2 {
		require.NoError(t, e.Withdraw(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}))
	}
	list, err := api.LifecycleV1alpha1().EvictionRequests("").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	var left []string
	for _, r := range list.Items {
		left = append(left, r.Name)
	}
	require.ElementsMatch(t, []string{other.Name, elsewhere.Name}, left)
}

// failWith has the API answer with an error.
func failWith(api *fake.Clientset, verb, resource string, err error) {
	api.PrependReactor(verb, resource, func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, err })
}

// TestWithdrawInTrouble: a request that is gone or another's by now is taken back. What else keeps one is
// an error, and keeps no other from being taken back. Where requests are served no more there is none.
func TestWithdrawInTrouble(t *testing.T) {
	requests := lifecyclev1.SchemeGroupVersion.WithResource("evictionrequests").GroupResource()
	for name, c := range map[string]struct {
		verb string
		err  error
		code nstance.Code
	}{
		"gone":                {"delete", apierrors.NewNotFound(requests, "r"), ""},
		"another's":           {"delete", apierrors.NewConflict(requests, "r", nil), ""},
		"not permitted":       {"delete", apierrors.NewForbidden(requests, "r", nil), nstance.Denied},
		"not listed":          {"list", apierrors.NewForbidden(requests, "", nil), nstance.Denied},
		"served no more":      {"list", apierrors.NewNotFound(requests, ""), ""},
		"there is no trouble": {"none", nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			e, api, _ := requesting("evictionrequests")
			for _, pod := range []string{"p", "q"} {
				require.Equal(t, nstance.Denied, nstance.CodeOf(e.Evict(t.Context(), podOn(pod, "n"), nil)))
			}
			api.ClearActions()
			failWith(api, c.verb, "evictionrequests", c.err)
			require.Equal(t, c.code, nstance.CodeOf(e.Withdraw(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})))
			if c.verb != "list" {
				require.Len(t, slices.DeleteFunc(api.Actions(), func(a clienttesting.Action) bool { return a.GetVerb() != "delete" }), 2)
			}
		})
	}
}

// TestServedForAWhile: whether requests are served is asked every five minutes. While that cannot be
// asked it is as it was.
func TestServedForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, api, asked := requesting("evictionrequests")
		pod := podOn("p", "n")
		requested := func() bool {
			before := len(asked.names)
			_ = e.Evict(t.Context(), pod, nil)
			return len(asked.names) == before
		}
		require.True(t, requested())
		api.ClearActions()
		for range 10 {
			require.True(t, requested())
		}
		for _, a := range api.Actions() {
			require.NotEqual(t, "resource", a.GetResource().Resource)
		}
		api.Resources[0].APIResources = nil
		failWith(api, "get", "resource", apierrors.NewInternalError(errors.New("etcdserver: leader changed")))
		<-time.After(servedFor)
		require.True(t, requested())
		api.ReactionChain = api.ReactionChain[1:]
		<-time.After(servedFor)
		require.False(t, requested())
		api.Resources[0].APIResources = []metav1.APIResource{{Name: "evictionrequests"}}
		require.False(t, requested())
		<-time.After(servedFor)
		require.True(t, requested())
	})
}

// TestRequestText: what responders say of a request is told, and not that its pod still runs.
func TestRequestText(t *testing.T) {
	r := requestFor(podOn("p", "n"))
	r.Status.Conditions = []metav1.Condition{{Type: requestFailed, Message: "moving its state"}, {Type: requestEvicted, Message: "it runs"}, {Type: "Other"}}
	require.Equal(t, "EvictionRequest nstance-uid-of-p has not moved it yet: moving its state", requestText(r))
}

// TestRequestFails: a request that cannot be made is no eviction.
func TestRequestFails(t *testing.T) {
	e, api, asked := requesting("evictionrequests")
	failWith(api, "create", "evictionrequests", apierrors.NewTooManyRequests("slow down", 1))
	require.Equal(t, nstance.Throttled, nstance.CodeOf(e.Evict(t.Context(), podOn("p", "n"), nil)))
	require.Empty(t, asked.names)
}

// TestOtherDaemonSets: whether a DaemonSet of another API exists is not known, so its pods stay.
func TestOtherDaemonSets(t *testing.T) {
	for version, stay := range map[string]bool{"apps/v1": false, "apps.kruise.io/v1alpha1": true} {
		t.Run(version, func(t *testing.T) {
			virtual(t, nil, func(r *virtualRig) {
				r.node("n")
				r.pod("agent", "n", func(p *corev1.Pod) {
					p.OwnerReferences = []metav1.OwnerReference{{APIVersion: version, Kind: "DaemonSet", Name: "agent", UID: "1", Controller: ptr.To(true)}}
				})
				d := r.drain("n", 10*time.Minute, nil)
				pass(15 * time.Second)
				require.Equal(r, stay, len(r.pods()) == 1)
				require.Equal(r, nstance.OutcomeDrained, r.ack(d).Outcome)
			})
		})
	}
}

// TestBlockedIsSaidOnce: what blocks a drain is in one event of the pod and one of the node, however
// long it does.
func TestBlockedIsSaidOnce(t *testing.T) {
	virtual(t, nil, func(r *virtualRig) {
		r.node("n")
		r.pod("job", "n", func(p *corev1.Pod) { p.Labels["cluster.x-k8s.io/drain"] = "wait-completed" })
		r.drain("n", 3*time.Hour, nil)
		pass(progressInterval / 2)
		require.Empty(r, r.said(reasonBlocked), "it may be over soon")
		for range 3 {
			pass(30 * time.Minute)
			require.Len(r, r.said(reasonBlocked), 2)
		}
	})
}

// TestBlockReport: what blocks is said once it has done so for ten seconds on end, again after a
// minute, and that nothing does any more at once.
func TestBlockReport(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var b blockReport
	for _, c := range []struct {
		second int
		text   string
		due    bool
	}{
		{0, "", false}, {1, "a", false}, {9, "a", false}, {10, "", false}, {12, "a", false}, {21, "a", false}, {22, "a", true},
		{30, "a", false}, {81, "a", false}, {82, "a", true}, {90, "", true}, {91, "", false}, {150, "b", false}, {160, "b", true},
	} {
		now := start.Add(time.Duration(c.second) * time.Second)
		due := b.due(c.text, now)
		require.Equal(t, c.due, due, "%+v", c)
		if due {
			b.text, b.at = c.text, now
		}
	}
}

// TestFixedRate: a rate that was asked for is not changed by the number of nodes.
func TestFixedRate(t *testing.T) {
	b := newBudget(7)
	b.resize(1000)
	require.EqualValues(t, 7, b.QPS())
	b = newBudget(0)
	b.resize(1000)
	require.EqualValues(t, maxQPS, b.QPS())
}
