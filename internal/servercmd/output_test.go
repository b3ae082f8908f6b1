//go:build unix

package servercmd_test

import (
	"bytes"
	"context"
	"io"
	"log"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/grpclog"

	"github.com/nstance-go/nstance/internal/servercmd"
	"github.com/nstance-go/nstance/storage"
)

// asProgram makes this test binary the program.
const asProgram = "NSTANCE_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) == "" {
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	p := parts()
	p.Storage = func(ctx context.Context, rawURL string) (storage.Store, error) {
		log.Print("a library says so")
		grpclog.Error("and gRPC")
		return storage.Open(ctx, rawURL)
	}
	os.Exit(servercmd.Main(ctx, p, os.Args[1:], os.Stdout, os.Stderr, os.Getenv))
}

// stuck returns the writing end of a pipe that is full: nothing reads it.
func stuck(t *testing.T) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() { _ = r.Close(); _ = w.Close() })
	require.NoError(t, w.SetWriteDeadline(time.Now().Add(100*time.Millisecond)))
	_, err = io.Copy(w, zeros{})
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	return w
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// closed returns the writing end of a pipe whose reader has gone.
func closed(t *testing.T) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	require.NoError(t, r.Close())
	t.Cleanup(func() { _ = w.Close() })
	return w
}

// TestLinesOfLibraries: with JSON, every line on standard error is JSON, those of libraries too.
func TestLinesOfLibraries(t *testing.T) {
	t.Parallel()
	web := freeAddress(t)
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self, "run", "--key-provider", "none", "--storage", "mem://", "--data", t.TempDir(),
		"--config", configFile(t), "--bind", ports(web), "--log-format", "json")
	cmd.Env = append(os.Environ(), asProgram+"=1")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	require.NoError(t, cmd.Start())
	require.Eventually(t, func() bool { return get(web, "/readyz") == http.StatusOK }, time.Minute, 10*time.Millisecond)
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, cmd.Wait())
	requireJSON(t, errs.String())
	require.Contains(t, errs.String(), `"msg":"a library says so"`)
	require.Contains(t, errs.String(), `"msg":"grpc: and gRPC"`)
}

// TestReadersOfOutput: a reader of either output that hangs or has gone stops nothing, not
// even the end of the program.
func TestReadersOfOutput(t *testing.T) {
	for name, reader := range map[string]func(*testing.T) *os.File{"hangs": stuck, "has gone": closed} {
		for _, output := range []string{"standard error", "standard output", "both"} {
			t.Run(output+" "+name, func(t *testing.T) {
				t.Parallel()
				web, out := freeAddress(t), reader(t)
				self, err := os.Executable()
				require.NoError(t, err)
				cmd := exec.CommandContext(t.Context(), self, "run", "--key-provider", "none", "--storage", "mem://", "--data", t.TempDir(),
					"--config", configFile(t), "--bind", ports(web), "--print-events", "--log-level", "debug")
				cmd.Env = append(os.Environ(), asProgram+"=1")
				if output != "standard output" {
					cmd.Stderr = out
				}
				if output != "standard error" {
					cmd.Stdout = out
				}
				require.NoError(t, cmd.Start())
				ended := make(chan error, 1)
				go func() { ended <- cmd.Wait() }()
				t.Cleanup(func() { _ = cmd.Process.Kill() })
				require.Eventually(t, func() bool { return get(web, "/readyz") == http.StatusOK }, time.Minute, 10*time.Millisecond)
				require.Eventually(t, func() bool {
					return strings.Contains(metrics(web), `nstance_group_members{group="web",state="booting",tenant="default"} 2`)
				}, time.Minute, 10*time.Millisecond)
				require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
				select {
				case err := <-ended:
					require.NoError(t, err)
				case <-time.After(time.Minute):
					require.FailNow(t, "it does not end")
				}
			})
		}
	}
}

func metrics(address string) string {
	resp, err := http.Get("http://" + address + "/metrics")
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return ""
	}
	return string(text)
}
