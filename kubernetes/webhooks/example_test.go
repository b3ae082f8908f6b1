package webhooks_test

import (
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/kubernetes/webhooks"
)

// A program with a manager of its own adds the webhooks to it.
func Example() {
	scheme := runtime.NewScheme()
	err := infrav1.AddToScheme(scheme)
	var mgr ctrl.Manager
	if err == nil {
		mgr, err = ctrl.NewManager(ctrl.GetConfigOrDie(), ctrl.Options{
			Scheme: scheme, WebhookServer: webhook.NewServer(webhook.Options{CertDir: "/etc/webhooks"}),
		})
	}
	if err == nil {
		err = webhooks.Add(mgr)
	}
	if err == nil {
		err = mgr.Start(ctrl.SetupSignalHandler())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
