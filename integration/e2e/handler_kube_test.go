//go:build kube

package e2e_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/nstance-go/nstance/internal/imds"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/kubernetes/kubetest"
)

// handlerPoll is how often AWS Node Termination Handler asks the metadata service. It
// cannot be set.
const handlerPoll = 2 * time.Second

// ec2Notice is the time that EC2 gives. The handler leaves a node alone while there is more.
const ec2Notice = 2 * time.Minute

// BenchmarkNoticeToCordon reports how long after EC2's metadata service shows a notice the
// machine's node is cordoned: by agent, server and operator, and by AWS Node Termination
// Handler (v1.25.1, in the folder of the programs), which runs on the node. Both ask every
// two seconds. Half of that is the floor of a mean.
func BenchmarkNoticeToCordon(b *testing.B) {
	w := newWorld(b, options{zones: []string{"a"}, poll: handlerPoll.String()})
	w.cluster()
	w.pool("pool", 1, spotNodes())
	var own, other []time.Duration
	for b.Loop() {
		machine := w.whole(1)[0]
		sleep.For(w.Context(), rand.N(handlerPoll)) // not in step with its agent
		own = append(own, w.cordoned(machine, func() { w.interrupt([]string{machine}, ec2Notice) }))
		w.until("it is replaced", func() bool { names, settled := w.machines(); return settled && !slices.Contains(names, machine) })
		other = append(other, w.handled(fmt.Sprint("handler-", len(other))))
	}
	for name, times := range map[string][]time.Duration{"nstance": own, "handler": other} {
		slices.Sort(times)
		b.ReportMetric(float64(times[len(times)/2].Milliseconds()), "ms-"+name+"-p50")
		b.ReportMetric(float64(times[len(times)-1].Milliseconds()), "ms-"+name+"-max")
	}
	b.ReportMetric(0, "ns/op")
}

// cordoned does something, and returns after which time the node is cordoned.
func (w *world) cordoned(node string, do func()) time.Duration {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), eventually)
	defer cancel()
	nodes, err := servers.Client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, node).String()})
	require.NoError(w, err)
	defer nodes.Stop()
	began := time.Now()
	do()
	for e := range nodes.ResultChan() {
		if n, ok := e.Object.(*corev1.Node); ok && n.Spec.Unschedulable {
			return time.Since(began)
		}
	}
	require.FailNow(w, "the node is not cordoned", node)
	return 0
}

// handled has AWS Node Termination Handler cordon a node.
func (w *world) handled(name string) time.Duration {
	w.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{ProviderID: "aws:///a/" + name}}
	require.NoError(w, w.Create(w.Context(), node))
	metadata := imds.New(&imds.Options{Protocol: imds.AWS, Spot: true, RequireToken: true})
	serving := httptest.NewServer(metadata)
	defer serving.Close()
	stop := w.startHandler(name, serving.URL)
	defer stop()
	asked := metadata.Requests(imds.AWSAction)
	w.until("it asks", func() bool { return metadata.Requests(imds.AWSAction) > asked })
	sleep.For(w.Context(), rand.N(handlerPoll))
	took := w.cordoned(name, func() { metadata.Reclaim("terminate", time.Now().Add(ec2Notice)) })
	require.NoError(w, w.Delete(w.Context(), node))
	return took
}

// startHandler runs it as in a pod: it takes its identity from a fixed folder, which is its
// own in a mount namespace of its own.
func (w *world) startHandler(node, metadata string) (stop func()) {
	w.Helper()
	api, err := url.Parse(servers.Config.Host)
	require.NoError(w, err)
	authority, err := os.ReadFile(servers.Config.CAFile)
	require.NoError(w, err)
	identity := w.TempDir()
	for name, data := range map[string][]byte{"token": []byte(servers.Config.BearerToken), "ca.crt": authority} {
		require.NoError(w, os.WriteFile(filepath.Join(identity, name), data, 0o600))
	}
	const pod = `mount -t tmpfs none /run && mkdir -p /run/secrets/kubernetes.io/serviceaccount &&
cp "$1"/* /run/secrets/kubernetes.io/serviceaccount && exec "$2"`
	handler := filepath.Join(os.Getenv(kubetest.Assets), "..", "aws-node-termination-handler")
	cmd := exec.CommandContext(w.Context(), "unshare", "--mount", "sh", "-c", pod, "sh", identity, handler)
	cmd.Env = append(os.Environ(), "NODE_NAME="+node, "INSTANCE_METADATA_URL="+metadata, "POD_NAME="+node, "NAMESPACE="+w.namespace,
		"KUBERNETES_SERVICE_HOST="+api.Hostname(), "KUBERNETES_SERVICE_PORT="+api.Port(), "CHECK_TAG_BEFORE_DRAINING=false")
	log, err := os.Create(filepath.Join(identity, "log"))
	require.NoError(w, err)
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(w, cmd.Start())
	return func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = log.Close()
		if data, err := os.ReadFile(log.Name()); w.Failed() && err == nil {
			w.Logf("the handler said: %s", data)
		}
	}
}
