//go:build kube

package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/kubernetes/kubetest"
	"github.com/nstance-go/nstance/provider/local"
)

// Variables of the environment.
const (
	envPrograms   = "NSTANCE_E2E_PROGRAMS"   // folder with the programs
	envKubeconfig = "NSTANCE_E2E_KUBECONFIG" // makes this program a machine, whose kubelet joins there
	envNetwork    = "NSTANCE_E2E_NETWORK"    // folder with a socket for each pod that machines run; empty: kwok runs pods
	envGroup      = "NSTANCE_E2E_GROUP"      // of a machine, for its node's label
)

const root = "../.."

var servers *kubetest.Cluster

func TestMain(m *testing.M) {
	if config := os.Getenv(envKubeconfig); config != "" {
		if err := machine(config); err != nil {
			fmt.Fprintln(os.Stderr, "machine:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(kubetest.Main(m, kubetest.Options{Controllers: true, Scheduler: true, Kubelets: true}, func(c *kubetest.Cluster) {
		servers = c
		for _, err := range []error{c.StartClusterAPI("--feature-gates=ReconcilerRateLimiting=false"), c.InstallCRDs(root + "/kubernetes/config/crd"), c.InstallStandIns()} {
			if err != nil {
				panic(err)
			}
		}
	}))
}

// labelGroup is the label of nodes that names their group.
const labelGroup = "test.nstance.dev/group"

// machine joins the cluster as a kubelet does, and becomes the agent. kwok does the rest of
// a kubelet's work, or with a network that of the node only.
func machine(config string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	data, err := local.UserData(ctx)
	if err != nil {
		return err
	}
	var boot struct{ Env map[string]string }
	if err := json.Unmarshal(data, &boot); err != nil {
		return err
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", config)
	if err != nil {
		return err
	}
	nodes, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	id := boot.Env["NSTANCE_INSTANCE_ID"]
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: id, Labels: map[string]string{"e2e": "true", labelGroup: os.Getenv(envGroup)}}, Spec: corev1.NodeSpec{ProviderID: "nstance:///" + id},
	}
	for {
		_, err := nodes.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
		if err == nil || apierrors.IsAlreadyExists(err) {
			break
		}
		if !sleep.For(ctx, 100*time.Millisecond) {
			return err
		}
	}
	program := filepath.Join(os.Getenv(envPrograms), "nstance-server")
	if network := os.Getenv(envNetwork); network != "" {
		return runNode(nodes, id, network, exec.Command(program, "machine"))
	}
	return syscall.Exec(program, []string{program, "machine"}, os.Environ())
}

// A process is a program that can be killed and started again.
type process struct {
	testing.TB
	name string
	args []string
	dir  string
	cmd  *exec.Cmd
}

// newProcess starts a program, which ends with the test. What it prints is appended to
// files, in its folder.
func newProcess(t testing.TB, name string, args ...string) *process {
	t.Helper()
	p := &process{TB: t, name: name, args: args, dir: t.TempDir()}
	p.start()
	t.Cleanup(func() {
		p.end(syscall.SIGTERM)
		if t.Failed() {
			log := p.printed("stderr")
			t.Logf("%s %s:\n%s", name, strings.Join(args, " "), log[max(0, len(log)-20000):])
		}
	})
	return p
}

func (p *process) start() {
	p.Helper()
	p.cmd = exec.Command(filepath.Join(os.Getenv(envPrograms), p.name), p.args...)
	p.cmd.Stdout, p.cmd.Stderr = p.appended("stdout"), p.appended("stderr")
	require.NoError(p, p.cmd.Start())
}

func (p *process) appended(stream string) *os.File {
	p.Helper()
	f, err := os.OpenFile(filepath.Join(p.dir, stream), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(p, err)
	p.Cleanup(func() { _ = f.Close() })
	return f
}

// end sends a signal, and waits for the end.
func (p *process) end(s syscall.Signal) {
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Signal(s)
	_ = p.cmd.Wait()
	p.cmd = nil
}

// printed returns what the program has printed.
func (p *process) printed(stream string) string {
	p.Helper()
	data, err := os.ReadFile(filepath.Join(p.dir, stream))
	require.NoError(p, err)
	return string(data)
}

// tool runs a program to its end, and returns what it prints.
func tool(t testing.TB, path string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), path, args...).Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		require.NoError(t, err, "%s %s: %s", path, strings.Join(args, " "), exit.Stderr)
	}
	require.NoError(t, err)
	return string(out)
}
