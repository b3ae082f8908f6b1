package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"flag"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/nstance-go/nstance/cmd/nstance-operator/internal/program"
	"github.com/nstance-go/nstance/internal/test/doctest"
	"github.com/nstance-go/nstance/internal/test/freeport"
	"github.com/nstance-go/nstance/internal/test/kubeapi"
	"github.com/nstance-go/nstance/internal/test/metrictables"
)

// asProgram makes this test binary the program.
const asProgram = "NSTANCE_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main() // exits
	}
	os.Exit(m.Run())
}

// TestLinesOfLibraries: with JSON, every line on standard error is JSON: of controller-runtime,
// of klog, of net/http.
func TestLinesOfLibraries(t *testing.T) {
	flags, webhooks := populated(t)
	self, err := os.Executable()
	require.NoError(t, err)
	ctx, stop := context.WithTimeout(t.Context(), 3*time.Minute)
	defer stop()
	cmd := exec.CommandContext(ctx, self, append(flags, "--log-format=json")...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	r, w, err := os.Pipe()
	require.NoError(t, err)
	cmd.Stderr = w
	require.NoError(t, cmd.Start())
	require.NoError(t, w.Close())
	wanted := map[string]string{
		"controller-runtime": `"msg":"Starting webhook server"`, "klog": `"msg":"Successfully acquired lease"`, "net/http": "TLS handshake error",
	}
	var asked sync.Once
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		require.True(t, json.Valid(lines.Bytes()), lines.Text())
		for library, line := range wanted {
			if strings.Contains(lines.Text(), line) {
				delete(wanted, library)
			}
		}
		if strings.Contains(lines.Text(), `"msg":"Serving webhook server"`) {
			conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(webhooks, "https://"))
			require.NoError(t, err)
			_, _ = conn.Write([]byte("no TLS"))
			require.NoError(t, conn.Close())
		}
		if len(wanted) == 0 {
			asked.Do(func() { _ = cmd.Process.Signal(syscall.SIGTERM) }) // a second one ends it at once
		}
	}
	require.NoError(t, cmd.Wait(), "it did not print %s", wanted)
}

// TestReaderOfLog: a reader of standard error that hangs or has gone stops neither webhooks
// nor controllers, and not the end of the program.
func TestReaderOfLog(t *testing.T) {
	for name, prepare := range map[string]func(r, w *os.File){
		"hangs": func(_, w *os.File) {
			require.NoError(t, w.SetWriteDeadline(time.Now().Add(100*time.Millisecond)))
			_, err := io.Copy(w, zeros{})
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		},
		"has gone": func(r, _ *os.File) { require.NoError(t, r.Close()) },
	} {
		t.Run(name, func(t *testing.T) {
			flags, webhooks := populated(t)
			r, w, err := os.Pipe()
			require.NoError(t, err)
			t.Cleanup(func() { _ = r.Close(); _ = w.Close() })
			prepare(r, w)
			self, err := os.Executable()
			require.NoError(t, err)
			ctx, stop := context.WithTimeout(t.Context(), 3*time.Minute)
			defer stop()
			cmd := exec.CommandContext(ctx, self, append(flags, "--log-level=debug")...)
			cmd.Env = append(os.Environ(), asProgram+"=1")
			cmd.Stderr = w
			require.NoError(t, cmd.Start())
			require.Eventually(t, func() bool { return askWebhook(t, webhooks) }, 2*time.Minute, 10*time.Millisecond)
			require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
			require.NoError(t, cmd.Wait())
		})
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// inOwnProcess in the environment says that a test has this process to itself.
const inOwnProcess = "NSTANCE_TEST_IN_OWN_PROCESS"

// populated returns an API server with an NstanceCluster and a configuration of webhooks, and
// flags with which the program uses it.
func populated(t *testing.T) (flags []string, webhooks string) {
	t.Helper()
	api := kubeapi.Start(t)
	api.Put("/apis/infrastructure.cluster.x-k8s.io/v1beta1/namespaces/default/nstanceclusters/c",
		`{"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "NstanceCluster", "metadata": {"namespace": "default", "name": "c", "uid": "u"}}`)
	api.Put("/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/nstance-operator",
		`{"metadata": {"name": "nstance-operator"}, "webhooks": [{"name": "w", "clientConfig": {"service": {"namespace": "nstance-system", "name": "webhooks"}}}]}`)
	config := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(config, api.Kubeconfig(), 0o600))
	addr, err := freeport.Address()
	require.NoError(t, err)
	_, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	return []string{
		"--kubeconfig", config, "--own-namespace=nstance-system", "--metrics-bind-address=0", "--health-addr=0", "--webhook-port=" + port,
	}, "https://127.0.0.1:" + port
}

// askWebhook asks a webhook, and reports whether it answered.
func askWebhook(t *testing.T, webhooks string) bool {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, webhooks+"/validate-infrastructure-cluster-x-k8s-io-v1beta1-nstancemachinepool",
		strings.NewReader(`{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "u", "operation": "DELETE"}}`))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// reconciled reports whether the registry of the program has counted a reconcile.
func reconciled() bool {
	families, _ := ctrlmetrics.Registry.Gather()
	for _, f := range families {
		if f.GetName() == "controller_runtime_reconcile_time_seconds" {
			return true
		}
	}
	return false
}

// TestMetricsDocument compares the table of docs/metrics.md with the registry of a program that
// leads. The figures of drains have a table of their own, see package operator.
func TestMetricsDocument(t *testing.T) {
	if os.Getenv(inOwnProcess) == "" { // a program sets loggers that are global
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestMetricsDocument$", "-update="+flag.Lookup("update").Value.String())
		cmd.Env = append(os.Environ(), inOwnProcess+"=1")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return
	}
	flags, webhooks := populated(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var errs bytes.Buffer
	ended := make(chan int)
	go func() { ended <- program.Main(ctx, flags, io.Discard, &errs) }()
	require.Eventually(t, func() bool { return reconciled() && askWebhook(t, webhooks) }, 3*time.Minute, 20*time.Millisecond)
	wanted := func(name string) bool {
		process, _, _ := strings.Cut(name, "_")
		return slices.Contains([]string{"go_goroutines", "process_resident_memory_bytes"}, name) ||
			!slices.Contains([]string{"go", "process", "nstance"}, process) &&
				name != "controller_runtime_client_consistency_wait_duration_seconds" // of a client that is not used
	}
	table := metrictables.Table(t, ctrlmetrics.Registry, wanted)
	stop()
	require.Zero(t, <-ended, &errs)
	doctest.Section(t, doctest.Docs("metrics.md"), "operator", table)
}
