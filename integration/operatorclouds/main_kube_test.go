//go:build kube

package operatorclouds_test

import (
	"context"
	"os"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/kubernetes/kubetest"
	"github.com/nstance-go/nstance/kubernetes/webhooks"
)

var servers *kubetest.Cluster

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	code := kubetest.Main(m, kubetest.Options{}, func(c *kubetest.Cluster) {
		servers = c
		for _, err := range []error{
			c.StartClusterAPI("--feature-gates=ReconcilerRateLimiting=false"), c.InstallCRDs(operatorConfig + "crd"), c.InstallStandIns(), serveWebhooks(ctx, &running, c),
		} {
			if err != nil {
				panic(err)
			}
		}
	})
	stop()
	running.Wait()
	os.Exit(code)
}

const operatorConfig = "../../kubernetes/config/"

// serveWebhooks has the operator's webhooks answer until ctx ends.
func serveWebhooks(ctx context.Context, running *sync.WaitGroup, c *kubetest.Cluster) error {
	hooks, err := c.PrepareWebhooks(operatorConfig + "webhook/manifests.yaml")
	if err != nil {
		return err
	}
	s := runtime.NewScheme()
	if err := infrav1.AddToScheme(s); err != nil {
		return err
	}
	answers := webhook.NewServer(webhook.Options{Host: hooks.LocalServingHost, Port: hooks.LocalServingPort, CertDir: hooks.LocalServingCertDir})
	mgr, err := ctrl.NewManager(c.Config, ctrl.Options{Scheme: s, Metrics: server.Options{BindAddress: "0"}, WebhookServer: answers})
	if err != nil {
		return err
	}
	if err := webhooks.Add(mgr); err != nil {
		return err
	}
	running.Go(func() {
		if err := mgr.Start(ctx); err != nil {
			panic(err)
		}
	})
	return hooks.Install(c.Config)
}
