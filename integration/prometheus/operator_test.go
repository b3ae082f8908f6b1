package prometheus_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/nstance-go/nstance/internal/test/kubeapi"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/kubernetes/operator"
	"github.com/nstance-go/nstance/kubernetes/webhooks"
)

// TestOperatorQueries: the operator's dashboard names metrics and labels that the controllers
// and webhooks expose.
func TestOperatorQueries(t *testing.T) {
	config, scheme := apiServer(t)
	lead(t, config, scheme)
	askWebhook(t, config, scheme)
	exposed := func() string {
		rec := httptest.NewRecorder()
		promhttp.HandlerFor(ctrlmetrics.Registry, promhttp.HandlerOpts{}).ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		return rec.Body.String()
	}
	require.Eventually(t, func() bool {
		return strings.Contains(exposed(), "controller_runtime_reconcile_time_seconds_bucket{") && strings.Contains(exposed(), "leader_election_master_status{")
	}, 3*time.Minute, 20*time.Millisecond)
	requireDashboard(t, "grafana-dashboard-operator.json", scraped(t, exposed()))
}

// apiServer returns the way to an API server with one NstanceCluster.
func apiServer(t *testing.T) (*rest.Config, *runtime.Scheme) {
	t.Helper()
	api := kubeapi.Start(t)
	api.Put("/apis/infrastructure.cluster.x-k8s.io/v1beta1/namespaces/default/nstanceclusters/c",
		`{"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "NstanceCluster", "metadata": {"namespace": "default", "name": "c", "uid": "u"}}`)
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, clusterv1.AddToScheme, infrav1.AddToScheme} {
		require.NoError(t, add(scheme))
	}
	return &rest.Config{Host: api.URL}, scheme
}

// lead runs the controllers until the test ends.
func lead(t *testing.T, config *rest.Config, scheme *runtime.Scheme) {
	t.Helper()
	sameNames := true // -count=2
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: scheme, Metrics: server.Options{BindAddress: "0"}, Controller: ctrlconfig.Controller{SkipNameValidation: &sameNames},
		LeaderElection: true, LeaderElectionID: "o", LeaderElectionNamespace: "default", LeaderElectionReleaseOnCancel: true,
	})
	require.NoError(t, err)
	require.NoError(t, operator.Add(mgr, &operator.Options{Metrics: ctrlmetrics.Registry}))
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- mgr.Start(ctx) }()
	t.Cleanup(func() { stop(); require.NoError(t, <-ended) })
}

// askWebhook has a webhook answer, without a port.
func askWebhook(t *testing.T, config *rest.Config, scheme *runtime.Scheme) {
	t.Helper()
	mgr, err := ctrl.NewManager(config, ctrl.Options{Scheme: scheme, Metrics: server.Options{BindAddress: "0"}})
	require.NoError(t, err)
	require.NoError(t, webhooks.Add(mgr))
	req := httptest.NewRequest(http.MethodPost, "/validate-infrastructure-cluster-x-k8s-io-v1beta1-nstancemachinepool",
		strings.NewReader(`{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "u", "operation": "DELETE"}}`))
	req.Header.Set("Content-Type", "application/json")
	rec := httptest.NewRecorder()
	mgr.GetWebhookServer().WebhookMux().ServeHTTP(rec, req)
	require.Equal(t, http.StatusOK, rec.Code)
}
