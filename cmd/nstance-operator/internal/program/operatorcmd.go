// Package program is the command line nstance-operator as one library call.
package program

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/logqueue"
	"github.com/nstance-go/nstance/internal/version"
)

// The exit codes. docs/programs.md lists them for all programs.
const (
	exitOK     = 0
	exitFailed = 1 // it could not be done: see the message
	exitUsage  = 2 // the command line is wrong: repeating is useless
)

// shortestLease leaves a leader time for two renewals.
const shortestLease = 2 * time.Second

// podNamespace is the file in which Kubernetes says a pod's namespace.
const podNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// options are the parsed command line.
type options struct {
	namespaces  []string
	watchFilter string
	concurrency int
	kubeconfig  string
	kubeAPIQPS  float32

	evictionRequests bool

	name          string
	ownNamespace  string
	leaderElect   bool
	leaseDuration time.Duration

	metricsAddress string
	healthAddress  string

	webhookPort          int
	webhookCertDir       string
	webhookConfiguration string

	logLevel, logFormat string
	version             bool
}

func (o *options) flags() *pflag.FlagSet {
	f := pflag.NewFlagSet("nstance-operator", pflag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.SortFlags = false
	f.StringSliceVar(&o.namespaces, "namespace", nil, "namespace whose objects are reconciled, repeatable or with commas (default: all)")
	f.StringVar(&o.watchFilter, "watch-filter", "", "value of the label cluster.x-k8s.io/watch-filter that objects must have (default: all objects)")
	f.IntVar(&o.concurrency, "concurrency", 10, "objects of a kind that are reconciled at the same time")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "file with the API server's address and credentials (default: the pod's own, else $KUBECONFIG, else ~/.kube/config)")
	f.Float32Var(&o.kubeAPIQPS, "kube-api-qps", 100, "requests a second to the API server for each kind of object, twice as many at once; drains have a budget of their own")
	f.BoolVar(&o.evictionRequests, "eviction-requests", false, "ask pods to leave with EvictionRequests (lifecycle.k8s.io/v1alpha1) where a workload cluster serves them, in place of evictions")
	f.StringVar(&o.name, "name", "nstance-operator", "name of the Lease; the Secret with the webhooks' certificate is NAME-webhook")
	f.StringVar(&o.ownNamespace, "own-namespace", "", "namespace of Lease and Secret (default: the pod's)")
	f.BoolVar(&o.leaderElect, "leader-elect", true, "reconcile only while this replica holds the Lease")
	f.DurationVar(&o.leaseDuration, "lease-duration", 15*time.Second, "time after which another replica may take the Lease over from one that does not renew it")
	f.StringVar(&o.metricsAddress, "metrics-bind-address", ":8443", "where metrics are served, over TLS, to clients that Kubernetes permits to get /metrics; 0: nowhere")
	f.StringVar(&o.healthAddress, "health-addr", ":8081", "where /healthz and /readyz are served; 0: nowhere")
	f.IntVar(&o.webhookPort, "webhook-port", 9443, "where webhooks are served; 0: nowhere")
	f.StringVar(&o.webhookCertDir, "webhook-cert-dir", "", "folder with tls.crt and tls.key (default: the program makes a certificate, renews it, and writes its authority into the configuration of the webhooks)")
	f.StringVar(&o.webhookConfiguration, "webhook-configuration", "nstance-operator", "ValidatingWebhookConfiguration of the webhooks")
	f.StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&o.logFormat, "log-format", "text", "text or json")
	f.BoolVar(&o.version, "version", false, "print the version and exit")
	return f
}

const usageText = `nstance-operator makes the shards of Nstance infrastructure of Cluster API. Of several
replicas, one leads and reconciles; all answer webhooks. A replica that loses the
Lease stops to reconcile, and campaigns again in the same process.

Usage: nstance-operator [flags]

%s
Exit codes: 0 stopped by a signal, 1 error, 2 invalid flags. An API server that does
not answer, or refuses, does not end the program: see /readyz and the log.
`

// Main runs nstance-operator with args, which leave out the program's name, and
// returns its exit code. Errors are printed to stderr, once. It returns soon
// after ctx has ended, when nothing that it started runs any more. It sets the
// logger of controller-runtime, which is global, and so is called once.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var o options
	f := o.flags()
	err := f.Parse(args)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		fmt.Fprintf(stdout, usageText, f.FlagUsagesWrapped(100))
		return exitOK
	case err == nil && o.version:
		fmt.Fprintln(stdout, "nstance-operator", versionText())
		return exitOK
	case err == nil && f.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	var (
		log   *slog.Logger
		lines *logqueue.Queue
	)
	if err == nil {
		log, lines, err = o.check(stderr)
	}
	if err != nil {
		fmt.Fprintf(stderr, "%v\nsee nstance-operator --help\n", err)
		return exitUsage
	}
	defer lines.Close()
	defer logqueue.Libraries(log)()
	ctrl.SetLogger(logr.FromSlogHandler(log.Handler()))
	klog.SetSlogLogger(log)
	p, err := newProgram(&o, log)
	if err != nil {
		fmt.Fprintln(lines, clip.Text(err.Error(), math.MaxInt))
		return exitUsage
	}
	log.Info("nstance-operator starts", "version", versionText(), "identity", p.identity)
	if err := p.run(ctx); err != nil {
		log.Error("nstance-operator ends", "err", err)
		return exitFailed
	}
	return exitOK
}

// check validates the flags and completes their defaults.
func (o *options) check(stderr io.Writer) (*slog.Logger, *logqueue.Queue, error) {
	if o.ownNamespace == "" && (o.leaderElect || o.ownCertificate()) {
		data, err := os.ReadFile(podNamespace)
		if err != nil {
			return nil, nil, nstance.FieldError("--own-namespace", "name the namespace of the Lease and of the webhooks' Secret", "is needed outside of a pod")
		}
		o.ownNamespace = strings.TrimSpace(string(data))
	}
	for _, n := range o.namespaces {
		if len(validation.IsDNS1123Label(n)) > 0 {
			return nil, nil, nstance.FieldError("--namespace", "name namespaces, with commas between them", "%.64q is no name of a namespace", n)
		}
	}
	if len(validation.IsDNS1123Label(o.name)) > 0 {
		return nil, nil, nstance.FieldError("--name", "use at most 63 of a-z, 0-9 and hyphens", "%.64q is no name", o.name)
	}
	if o.concurrency < 1 {
		return nil, nil, nstance.FieldError("--concurrency", "use 1 or more", "%d is too few", o.concurrency)
	}
	if o.kubeAPIQPS < 1 {
		return nil, nil, nstance.FieldError("--kube-api-qps", "use 1 or more", "%v is too few", o.kubeAPIQPS)
	}
	if o.leaseDuration < shortestLease {
		return nil, nil, nstance.FieldError("--lease-duration", "use "+shortestLease.String()+" or more", "%s is too short", o.leaseDuration)
	}
	if o.webhookPort < 0 || o.webhookPort > 65535 {
		return nil, nil, nstance.FieldError("--webhook-port", "use 1 to 65535, or 0 for no webhooks", "%d is no port", o.webhookPort)
	}
	if o.webhookCertDir != "" && o.webhookPort == 0 {
		return nil, nil, nstance.FieldError("--webhook-cert-dir", "leave it out, or give a --webhook-port", "belongs to webhooks, which are off")
	}
	for flag, address := range map[string]string{"--metrics-bind-address": o.metricsAddress, "--health-addr": o.healthAddress} {
		if address != "0" {
			if _, _, err := net.SplitHostPort(address); err != nil {
				return nil, nil, nstance.FieldError(flag, "write host:port or :port, or 0 for nowhere", "%.64q is no address", address)
			}
		}
	}
	return o.logger(stderr)
}

// ownCertificate reports whether the program makes the webhooks' certificate itself.
func (o *options) ownCertificate() bool { return o.webhookPort != 0 && o.webhookCertDir == "" }

// logger writes the log to stderr through a queue, so that a reader that hangs delays
// nothing. The caller closes it.
func (o *options) logger(stderr io.Writer) (*slog.Logger, *logqueue.Queue, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(o.logLevel)); err != nil {
		return nil, nil, nstance.FieldError("--log-level", "use debug, info, warn or error", "%.64q is no level", o.logLevel)
	}
	handler, err := logqueue.Handler("--log-format", o.logFormat, level)
	if err != nil {
		return nil, nil, err
	}
	log, lines := logqueue.Logger(stderr, 0, handler)
	return log, lines, nil
}

// versionText is the software's version, and what the toolchain knows about this
// build.
func versionText() string {
	text := version.Software
	if info, ok := debug.ReadBuildInfo(); ok {
		text += " " + info.GoVersion
	}
	return text
}
