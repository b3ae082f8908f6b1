package conformance

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

const defectVariable = "NSTANCE_DEFECT"

// Defect returns the defect that [Rerun] named for this process; empty: none.
func Defect() string { return os.Getenv(defectVariable) }

// Rerun runs a test of this test binary again, in a process of its own in which Defect
// returns this defect. A suite that fails would fail the test that runs it, so a
// suite's own tests run it there. subtests selects some, as in "/^smoke$"; empty: all.
// It returns what the test printed, and whether it passed.
func Rerun(t testing.TB, test, subtests, defect string) (out string, passed bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	child := exec.CommandContext(ctx, os.Args[0], "-test.v", "-test.run", "^"+test+"$"+subtests)
	child.Env = append(os.Environ(), defectVariable+"="+defect, "GORACE=atexit_sleep_ms=0")
	data, err := child.CombinedOutput()
	if ctx.Err() != nil {
		t.Fatalf("defect %q: the run took too long:\n%s", defect, data)
	}
	return string(data), err == nil
}

// RequireFailure is [Rerun], and requires that the test fails and prints all texts.
func RequireFailure(t testing.TB, test, subtests, defect string, texts ...string) (out string) {
	t.Helper()
	out, passed := Rerun(t, test, subtests, defect)
	if passed {
		t.Fatalf("the suite did not find defect %q:\n%s", defect, out)
	}
	for _, text := range texts {
		if !strings.Contains(out, text) {
			t.Fatalf("defect %q: the output lacks %q:\n%s", defect, text, out)
		}
	}
	return out
}

// RequireSmokeFailure requires that the smoke test fails with this message, and that no
// other subtest runs.
func RequireSmokeFailure(t testing.TB, test, defect, message string) {
	t.Helper()
	out := RequireFailure(t, test, "", defect, "--- FAIL: "+test+"/smoke ", message, "no other subtest was run")
	if strings.Count(out, "=== RUN   "+test+"/") != 1 {
		t.Fatalf("defect %q: more than the smoke test was run:\n%s", defect, out)
	}
}
