// Command operator makes shards infrastructure of Cluster API inside a
// controller-runtime manager, beside whatever controllers the manager has. Webhooks
// use tls.crt and tls.key in $WEBHOOK_CERTS. Without $KUBECONFIG it does nothing.
package main

import (
	"errors"
	"log"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/kubernetes/operator"
	"github.com/nstance-go/nstance/kubernetes/webhooks"
)

func main() {
	if os.Getenv("KUBECONFIG") == "" {
		return
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), clusterv1.AddToScheme(scheme), infrav1.AddToScheme(scheme)); err != nil {
		log.Fatal(err)
	}
	mgr, err := ctrl.NewManager(ctrl.GetConfigOrDie(), ctrl.Options{
		Scheme: scheme, LeaderElection: true, LeaderElectionID: "fleet", LeaderElectionNamespace: "default",
		Metrics: server.Options{BindAddress: "0"}, WebhookServer: webhook.NewServer(webhook.Options{CertDir: os.Getenv("WEBHOOK_CERTS")}),
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := errors.Join(operator.Add(mgr, nil), webhooks.Add(mgr)); err != nil {
		log.Fatal(err)
	}
	if err := mgr.Start(ctrl.SetupSignalHandler()); err != nil {
		log.Fatal(err)
	}
}
