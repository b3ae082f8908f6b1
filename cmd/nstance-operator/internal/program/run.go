package program

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	kubeconfig "sigs.k8s.io/controller-runtime/pkg/client/config"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	metrics "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/nstance-go/nstance"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/kubernetes/operator"
	"github.com/nstance-go/nstance/kubernetes/webhooks"
)

// stopGrace is how long requests that are being answered are waited for at the end.
const stopGrace = 10 * time.Second

// A program is one run of the command. A standing manager serves webhooks, metrics
// and health from the start to the end. Each term has a manager of its own, with
// the controllers.
type program struct {
	*options
	log          *slog.Logger
	config       *rest.Config
	kube         kubernetes.Interface
	scheme       *runtime.Scheme
	identity     string // of this replica in the Lease
	standing     ctrl.Manager
	certificates *certificates // nil: from files, or no webhooks
}

func newProgram(o *options, log *slog.Logger) (*program, error) {
	p := &program{options: o, log: log, scheme: runtime.NewScheme()}
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, clusterv1.AddToScheme, infrav1.AddToScheme} {
		if err := add(p.scheme); err != nil {
			return nil, err
		}
	}
	var err error
	if p.config, err = loadConfig(o.kubeconfig); err != nil {
		return nil, nstance.FieldError("--kubeconfig", "name a file with the address and the credentials of an API server", "%v", err)
	}
	p.config.QPS, p.config.Burst = o.kubeAPIQPS, int(2*o.kubeAPIQPS)
	if p.kube, err = kubernetes.NewForConfig(p.config); err != nil {
		return nil, nstance.FieldError("--kubeconfig", "correct the file", "%v", err)
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	p.identity = host + "_" + rand.Text()
	if o.ownCertificate() {
		p.certificates = newCertificates(p.kube, o, log)
	}
	p.standing, err = p.newStanding()
	return p, err
}

func loadConfig(path string) (*rest.Config, error) {
	if path != "" {
		return clientcmd.BuildConfigFromFlags("", path)
	}
	return kubeconfig.GetConfig()
}

// newStanding makes the manager that serves whether this replica leads or not.
func (p *program) newStanding() (ctrl.Manager, error) {
	grace := stopGrace
	o := ctrl.Options{
		Scheme: p.scheme, HealthProbeBindAddress: p.healthAddress, GracefulShutdownTimeout: &grace,
		Metrics: metrics.Options{BindAddress: p.metricsAddress, SecureServing: true, FilterProvider: permitReaders},
	}
	if p.webhookPort != 0 {
		w := webhook.Options{Port: p.webhookPort, CertDir: p.webhookCertDir, TLSOpts: []func(*tls.Config){func(c *tls.Config) {
			c.MinVersion = tls.VersionTLS13
			if p.certificates != nil {
				c.GetCertificate = p.certificates.get
			}
		}}}
		o.WebhookServer = webhook.NewServer(w)
	}
	mgr, err := ctrl.NewManager(p.config, o)
	if err != nil {
		return nil, err
	}
	err = mgr.AddHealthzCheck("ping", healthz.Ping)
	if err == nil && p.webhookPort == 0 {
		return mgr, mgr.AddReadyzCheck("ping", healthz.Ping)
	}
	if err == nil {
		err = webhooks.Add(mgr)
	}
	if err == nil {
		err = mgr.AddReadyzCheck("webhooks", p.webhooksReady(mgr))
	}
	return mgr, err
}

// webhooksReady reports whether webhooks can be answered.
func (p *program) webhooksReady(mgr ctrl.Manager) healthz.Checker {
	started := mgr.GetWebhookServer().StartedChecker()
	return func(r *http.Request) error {
		if p.certificates != nil {
			if _, err := p.certificates.get(nil); err != nil {
				return err
			}
		}
		return started(r)
	}
}

// run serves, and reconciles while this replica leads, until ctx ends. It serves
// until the controllers have stopped and the Lease is released.
func (p *program) run(ctx context.Context) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	serve, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := p.standing.Start(serve); err != nil {
			fail(err)
		}
	})
	if p.certificates != nil {
		serving.Go(func() { p.certificates.keep(serve) })
	}
	p.lead(ctx)
	stopServing()
	serving.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// term runs the controllers until ctx ends, and returns when all have stopped.
func (p *program) term(ctx context.Context) error {
	untilStopped, sameNames := time.Duration(-1), true // names of controllers are those of the last term
	mgr, err := ctrl.NewManager(p.config, ctrl.Options{
		Scheme: p.scheme, Cache: p.cache(), GracefulShutdownTimeout: &untilStopped,
		Metrics: metrics.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
		Controller: config.Controller{SkipNameValidation: &sameNames},
	})
	if err != nil {
		return err
	}
	err = operator.Add(mgr, &operator.Options{
		WatchFilter: p.watchFilter, Concurrency: p.concurrency, EvictionRequests: p.evictionRequests, Metrics: ctrlmetrics.Registry, Log: p.log,
	})
	if err != nil {
		return err
	}
	return mgr.Start(ctx)
}

// cache returns how objects are kept: who wrote which field is most of some of them.
func (p *program) cache() cache.Options {
	o := cache.Options{DefaultTransform: cache.TransformStripManagedFields()}
	for _, n := range p.namespaces {
		if o.DefaultNamespaces == nil {
			o.DefaultNamespaces = map[string]cache.Config{}
		}
		o.DefaultNamespaces[n] = cache.Config{}
	}
	return o
}
