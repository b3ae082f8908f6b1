// Package kubetest runs, for tests, the servers of a Kubernetes cluster that `make
// kube-servers` builds: a real API server with etcd, and on demand the controller
// manager, the scheduler, and kwok in the place of kubelets. A server that is missing is
// a failure, never a reason to pass.
//
// A package of tests shares one cluster, since a start takes seconds:
//
//	var cluster *kube.Cluster
//
//	func TestMain(m *testing.M) {
//		os.Exit(kube.Main(m, kube.Options{Controllers: true, Kubelets: true}, func(c *kube.Cluster) { cluster = c }))
//	}
//
// Each test has a [Cluster.Namespace] of its own. CRDs and webhooks are installed by
// envtest with UseExistingCluster and the cluster's Config.
//
// Tests may use a cluster concurrently. Its servers end with the tests. On Linux they also end when the tests are killed.
package kubetest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	_ "embed"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/internal/test/freeport"
)

// Assets is the environment variable that names the folder with the servers.
const Assets = "KUBEBUILDER_ASSETS"

const (
	startLimit = time.Minute
	token      = "administrator-of-the-tests"
)

// Options say which servers run beside the API server and etcd.
type Options struct {
	Controllers bool // kube-controller-manager: Deployments, disruption budgets, garbage collection, attachment of volumes
	Scheduler   bool // kube-scheduler
	Kubelets    bool // kwok: nodes are ready, and pods run and end, as in stages.yaml
}

// A Cluster is a running cluster. Its methods are safe for concurrent use.
type Cluster struct {
	Config     *rest.Config // of an administrator, without limits on the rate of requests
	Kubeconfig string       // a file with the same
	Client     kubernetes.Interface

	dir         string
	starter     *starter
	servers     []*server
	diagnostics string // address of Cluster API's manager
}

// Main runs the tests of a package in one cluster, and returns their exit status.
func Main(m *testing.M, o Options, ready func(*Cluster)) int {
	c, err := Start(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "kube:", err)
		return 1
	}
	defer c.Stop()
	ready(c)
	return m.Run()
}

// Start starts a cluster, which the caller must stop.
func Start(o Options) (*Cluster, error) {
	dir, err := os.MkdirTemp("", "kube-")
	if err != nil {
		return nil, err
	}
	c := &Cluster{dir: dir, starter: newStarter()}
	if err := c.start(o); err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
}

func (c *Cluster) start(o Options) error {
	etcd, err := c.startEtcd()
	if err != nil {
		return err
	}
	if err := c.startAPIServer(etcd); err != nil {
		return err
	}
	auth := []string{"--kubeconfig", c.Kubeconfig}
	noPorts := append(auth, "--leader-elect=false", "--secure-port=0")
	if o.Controllers {
		if err := c.begin("kube-controller-manager", append(noPorts, "--service-account-private-key-file", c.path("sa.key"), "--controllers=*,-node-ipam-controller",
			"--node-monitor-grace-period=10m", // kwok may be late on a busy machine
			"--kube-api-qps=1000", "--kube-api-burst=1000")...); err != nil {
			return err
		}
	}
	if o.Scheduler {
		if err := c.begin("kube-scheduler", append(noPorts, "--kube-api-qps=1000", "--kube-api-burst=1000")...); err != nil {
			return err
		}
	}
	if o.Kubelets {
		if err := os.WriteFile(c.path("stages.yaml"), stages, 0o600); err != nil {
			return err
		}
		return c.begin("kwok", append(auth, "--manage-all-nodes=true", "--node-lease-duration-seconds=40", "--config", c.path("stages.yaml"))...)
	}
	return nil
}

//go:embed stages.yaml
var stages []byte

func (c *Cluster) path(name string) string { return filepath.Join(c.dir, name) }

// begin starts a server without waiting until it serves.
func (c *Cluster) begin(name string, args ...string) error {
	assets := os.Getenv(Assets)
	if assets == "" {
		return fmt.Errorf("%s must name the folder with the servers: run make test-kube", Assets)
	}
	path, err := filepath.Abs(filepath.Join(assets, name))
	if err != nil {
		return err
	}
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("run make kube-servers: %w", err)
	}
	s := &server{name: name, cmd: exec.Command(path, args...), ended: make(chan struct{})}
	s.cmd.Dir, s.cmd.Env = c.dir, os.Environ()
	if os.Getenv("GOGC") == "" {
		s.cmd.Env = append(s.cmd.Env, "GOGC=400") // they are short-lived
	}
	if err := c.starter.start(s, c.path(name+".log")); err != nil {
		return err
	}
	c.servers = append(c.servers, s)
	return nil
}

func (c *Cluster) startEtcd() (url string, err error) {
	client, err := freeport.Address()
	if err != nil {
		return "", err
	}
	peer, err := freeport.Address()
	if err != nil {
		return "", err
	}
	url = "http://" + client
	if err := c.begin("etcd", "--data-dir", c.path("etcd"), "--listen-client-urls", url, "--advertise-client-urls", url,
		"--listen-peer-urls", "http://"+peer, "--unsafe-no-fsync=true"); err != nil {
		return "", err
	}
	return url, c.await(http.DefaultClient, url+"/health", "")
}

func (c *Cluster) startAPIServer(etcd string) error {
	address, err := freeport.Address()
	if err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	if err := writeKey(c.path("sa.key")); err != nil {
		return err
	}
	if err := os.WriteFile(c.path("tokens.csv"), []byte(token+",administrator,1,system:masters\n"), 0o600); err != nil {
		return err
	}
	url := "https://" + address
	if err := c.begin("kube-apiserver", "--etcd-servers", etcd, "--bind-address=127.0.0.1", "--secure-port", port, "--cert-dir", c.path("certs"),
		"--service-cluster-ip-range=10.0.0.0/24", "--authorization-mode=RBAC", "--token-auth-file", c.path("tokens.csv"), "--allow-privileged=true",
		"--disable-admission-plugins=ServiceAccount", // pods need none then, whose controller may not run
		"--service-account-issuer", url, "--service-account-key-file", c.path("sa.key"), "--service-account-signing-key-file", c.path("sa.key"),
		"--max-requests-inflight=0", "--enable-priority-and-fairness=false"); err != nil {
		return err
	}
	return c.connect(url)
}

// connect waits until the API server is ready.
func (c *Cluster) connect(url string) error {
	c.Config = &rest.Config{
		Host: url, BearerToken: token, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAFile: c.path("certs/apiserver.crt")},
	}
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	for {
		// The file is there before its content, and without that no answer of the server would be trusted.
		if data, err := os.ReadFile(c.Config.CAFile); err == nil && x509.NewCertPool().AppendCertsFromPEM(data) {
			break
		}
		if !sleep.For(ctx, 20*time.Millisecond) {
			return fmt.Errorf("kube-apiserver has no certificate after %s: %s", startLimit, c.tail())
		}
	}
	web, err := rest.HTTPClientFor(c.Config)
	if err != nil {
		return err
	}
	if err := c.await(web, url+"/readyz", token); err != nil {
		return err
	}
	if c.Client, err = kubernetes.NewForConfig(c.Config); err != nil {
		return err
	}
	authority, err := os.ReadFile(c.Config.CAFile)
	if err != nil {
		return err
	}
	c.Kubeconfig = c.path("kubeconfig")
	return clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"test": {Server: url, CertificateAuthorityData: authority}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"test": {Token: token}},
		Contexts:       map[string]*clientcmdapi.Context{"test": {Cluster: "test", AuthInfo: "test"}},
		CurrentContext: "test",
	}, c.Kubeconfig)
}

// await returns when a server answers with 200.
func (c *Cluster) await(web *http.Client, url, token string) error {
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	for {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		r.Header.Set("Authorization", "Bearer "+token)
		answer, err := web.Do(r)
		if err == nil {
			_ = answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				return nil
			}
			err = fmt.Errorf("status %s", answer.Status)
		}
		if s := c.dead(); s != nil || !sleep.For(ctx, 50*time.Millisecond) {
			return fmt.Errorf("%s does not answer: %w: %s", url, err, c.tail())
		}
	}
}

func (c *Cluster) dead() *server {
	for _, s := range c.servers {
		select {
		case <-s.ended:
			return s
		default:
		}
	}
	return nil
}

// tail returns the end of the latest server's log.
func (c *Cluster) tail() string {
	name := c.servers[len(c.servers)-1].name
	if s := c.dead(); s != nil {
		name = s.name
	}
	text, err := os.ReadFile(c.path(name + ".log"))
	if err != nil {
		return err.Error()
	}
	return name + ": " + string(text[max(0, len(text)-2000):])
}

// Stop ends the servers, the latest first, and removes their files.
func (c *Cluster) Stop() {
	for i := len(c.servers) - 1; i >= 0; i-- {
		_ = c.servers[i].cmd.Process.Kill() // a server without state that matters needs no clean end
		<-c.servers[i].ended
	}
	c.starter.stop()
	_ = os.RemoveAll(c.dir)
}

// Namespace makes a namespace for a test. It is deleted in the background afterwards,
// if the controllers run.
func (c *Cluster) Namespace(t testing.TB) string {
	t.Helper()
	spaces := c.Client.CoreV1().Namespaces()
	n, err := spaces.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = spaces.Delete(context.Background(), n.Name, metav1.DeleteOptions{}) })
	return n.Name
}

// A server is one child process.
type server struct {
	name  string
	cmd   *exec.Cmd
	ended chan struct{}
}

// A starter starts processes from one thread that lives until stop: Linux ends the
// children of a thread with it.
type starter struct {
	jobs chan func()
	done chan struct{}
}

func newStarter() *starter {
	s := &starter{jobs: make(chan func()), done: make(chan struct{})}
	go func() {
		runtime.LockOSThread()
		defer close(s.done)
		for job := range s.jobs {
			job()
		}
	}()
	return s
}

func (s *starter) start(p *server, log string) error {
	out, err := os.Create(log)
	if err != nil {
		return err
	}
	defer out.Close()
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.SysProcAttr = out, out, endWithParent()
	result := make(chan error)
	s.jobs <- func() { result <- p.cmd.Start() }
	if err := <-result; err != nil {
		return err
	}
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait()
	}()
	return nil
}

func (s *starter) stop() {
	close(s.jobs)
	<-s.done
}

// writeKey writes the key that signs tokens of service accounts.
func writeKey(path string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600)
}
