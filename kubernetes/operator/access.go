package operator

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/sleep"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
)

// Times of the way to the nodes of a cluster.
const (
	probeInterval = 5 * time.Second
	probeLimit    = 5 * time.Second

	// probeFailures is how many probes in a row fail before the nodes are not reached:
	// one may meet a restart of the API server. Refused credentials count at once.
	probeFailures = 2

	// rereadKubeconfig is between two looks at a kubeconfig that works, rereadPause the
	// least between two at one that does not.
	rereadKubeconfig = 10 * time.Minute
	rereadPause      = time.Second
)

// A nodeAccess says whether the nodes of a cluster are reached, and follows the kubeconfig
// that they are reached with. It is safe for concurrent use.
type nodeAccess struct {
	use     func(kubeconfig []byte) (changed bool, err error)
	read    func(context.Context) ([]byte, error) // the kubeconfig as it is stored now
	probe   func(context.Context) error
	changed func(reached bool) // must not block
	refused chan struct{}      // the credentials were; capacity 1

	mu       sync.Mutex
	failure  error  // why the nodes are not reached; nil: they are
	unused   error  // why the stored kubeconfig is not used; nil: it is
	failures int    // probes, in a row
	reported string // what changed was told last
}

func newNodeAccess() *nodeAccess {
	return &nodeAccess{refused: make(chan struct{}, 1), failure: nstance.Errorf(nstance.Unavailable, "the API server was not asked yet")}
}

// refuse is called when the API server has refused the credentials.
func (a *nodeAccess) refuse() {
	select {
	case a.refused <- struct{}{}:
	default:
	}
}

// state returns why the nodes are not reached, and why a kubeconfig that is stored is not
// used.
func (a *nodeAccess) state() (failure, unused error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.failure, a.unused
}

func (a *nodeAccess) reached() bool {
	failure, _ := a.state()
	return failure == nil
}

// run probes until ctx ends.
func (a *nodeAccess) run(ctx context.Context) {
	ticker := time.NewTicker(probeInterval)
	defer ticker.Stop()
	read := time.Now() // when the connection was made
	for refused := false; ; {
		if refused || time.Since(read) > rereadKubeconfig {
			a.reread(ctx)
			read = time.Now()
		}
		err := a.ask(ctx)
		if apierrors.IsUnauthorized(err) && !refused && a.reread(ctx) {
			read, err = time.Now(), a.ask(ctx)
		}
		if ctx.Err() != nil {
			return
		}
		a.record(err)
		if !sleep.For(ctx, rereadPause) {
			return
		}
		select {
		case <-a.refused:
			refused = true
		case <-ticker.C:
			refused = false
		case <-ctx.Done():
			return
		}
	}
}

func (a *nodeAccess) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	return a.probe(ctx)
}

// reread takes the stored kubeconfig into use, and reports whether it is another one. One
// that cannot be used leaves the former in use.
func (a *nodeAccess) reread(ctx context.Context) (changed bool) {
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	data, err := a.read(ctx)
	if err == nil {
		changed, err = a.use(data)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.unused = err
	return changed
}

// record takes the result of a probe over. Texts of errors, which may differ each time, are no
// change.
func (a *nodeAccess) record(err error) {
	a.mu.Lock()
	if a.failures++; err == nil {
		a.failures = 0
	}
	if err == nil || a.failure != nil || apierrors.IsUnauthorized(err) || a.failures >= probeFailures {
		a.failure = err
	}
	report := fmt.Sprint(a.failure == nil, apierrors.ReasonForError(a.failure), a.unused)
	reached, differs := a.failure == nil, report != a.reported
	a.reported = report
	a.mu.Unlock()
	if differs {
		a.changed(reached)
	}
}

// condition says whether the nodes are reached now, and what is wrong with a stored kubeconfig
// that is not used.
func (a *nodeAccess) condition() metav1.Condition {
	failure, unused := a.state()
	c := metav1.Condition{Type: infrav1.ConditionNodesReached, Status: metav1.ConditionTrue, Reason: reasonConnected}
	if unused != nil {
		c.Message = "the stored kubeconfig is not used: " + unused.Error()
	}
	if failure != nil {
		c.Status, c.Reason = metav1.ConditionFalse, reasonUnreachable
		c.Message = strings.TrimSuffix("the API server of the nodes: "+failure.Error()+"; "+c.Message, "; ")
	}
	c.Message = clip.Text(c.Message, 1024)
	return c
}

// probeNodes returns what asks an API server for what drains need of it, without waiting for
// requests of others.
func probeNodes(cfg *rest.Config) (func(context.Context) error, error) {
	cfg.QPS = -1
	nodes, err := kubernetes.NewForConfig(cfg)
	return func(ctx context.Context) error {
		_, err := nodes.CoreV1().Nodes().List(ctx, metav1.ListOptions{Limit: 1})
		return err
	}, err
}
