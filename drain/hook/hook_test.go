//go:build unix

package hook_test

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/drain/hook"
	"github.com/stretchr/testify/require"
)

const instance nstance.InstanceID = "web06dx9xy919t3v9kzd2xdsyzb3g"

// in returns a drain with that much time left.
func in(left time.Duration) nstance.Drain {
	return nstance.Drain{
		Instance:   instance,
		Generation: 1,
		Deadline:   time.Now().Add(left),
		Causes: []nstance.Cause{
			{Kind: nstance.CauseNotice, EventID: "one"},
			{Kind: nstance.CauseNotice, EventID: "two"},
			{Kind: nstance.CauseExpired},
		},
	}
}

// shell returns a hook that runs a script.
func shell(t *testing.T, script string, opts *hook.Options) *hook.Hook {
	t.Helper()
	h, err := hook.New([]string{"/bin/sh", "-c", script}, opts)
	require.NoError(t, err)
	return h
}

func TestNewRefusesNothingToRun(t *testing.T) {
	for _, command := range [][]string{nil, {}, {""}} {
		_, err := hook.New(command, nil)
		require.ErrorIs(t, err, nstance.Invalid)
	}
}

func TestOutcome(t *testing.T) {
	t.Run("exit status zero is drained, with the output as message", func(t *testing.T) {
		outcome, message := shell(t, "echo moved 3 jobs; echo done >&2", nil).Run(t.Context(), in(time.Minute))
		require.Equal(t, nstance.OutcomeDrained, outcome)
		require.Equal(t, "moved 3 jobs\ndone", message)
	})
	t.Run("any other status is failed, and says so", func(t *testing.T) {
		outcome, message := shell(t, "echo no quorum; exit 3", nil).Run(t.Context(), in(time.Minute))
		require.Equal(t, nstance.OutcomeFailed, outcome)
		require.Equal(t, "exit status 3: no quorum", message)
	})
	t.Run("a missing program is failed", func(t *testing.T) {
		h, err := hook.New([]string{"/nowhere/drain-me"}, nil)
		require.NoError(t, err)
		outcome, message := h.Run(t.Context(), in(time.Minute))
		require.Equal(t, nstance.OutcomeFailed, outcome)
		require.Contains(t, message, "/nowhere/drain-me")
	})
	t.Run("nothing is started when the deadline has passed", func(t *testing.T) {
		mark := filepath.Join(t.TempDir(), "ran")
		outcome, message := shell(t, "touch "+mark, nil).Run(t.Context(), in(-time.Second))
		require.Equal(t, nstance.OutcomeFailed, outcome)
		require.Equal(t, "not started: the deadline has passed", message)
		require.NoFileExists(t, mark)
	})
	t.Run("nothing is started when the drain was cancelled before", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		outcome, message := shell(t, "true", nil).Run(ctx, in(time.Minute))
		require.Equal(t, nstance.OutcomeFailed, outcome)
		require.Equal(t, "not started: the drain was cancelled", message)
	})
}

func TestEnvironment(t *testing.T) {
	script := `echo "$NSTANCE_INSTANCE_ID|$NSTANCE_DRAIN_DEADLINE|$NSTANCE_DRAIN_SECONDS|$NSTANCE_DRAIN_REASON|$NSTANCE_DRAIN_EVENT|$EXTRA"`
	t.Run("describes the drain", func(t *testing.T) {
		d := in(90 * time.Second)
		_, message := shell(t, script, nil).Run(t.Context(), d)
		got := strings.Split(message, "|")
		require.Equal(t, string(instance), got[0])
		require.Equal(t, d.Deadline.UTC().Format(time.RFC3339), got[1])
		seconds, err := strconv.Atoi(got[2])
		require.NoError(t, err)
		require.LessOrEqual(t, seconds, 90)
		require.Greater(t, seconds, 60)
		require.Equal(t, "notice,expired", got[3])
		require.Equal(t, "one,two", got[4])
	})
	t.Run("is added to the one given", func(t *testing.T) {
		h := shell(t, script, &hook.Options{Env: []string{"EXTRA=yes", "NSTANCE_INSTANCE_ID=other"}})
		_, message := h.Run(t.Context(), in(time.Minute))
		got := strings.Split(message, "|")
		require.Equal(t, string(instance), got[0], "the drain's own value wins")
		require.Equal(t, "yes", got[5])
	})
	t.Run("is the agent's own by default", func(t *testing.T) {
		t.Setenv("EXTRA", "inherited")
		_, message := shell(t, script, nil).Run(t.Context(), in(time.Minute))
		require.True(t, strings.HasSuffix(message, "|inherited"))
	})
	t.Run("a drain without deadline gets one", func(t *testing.T) {
		d := in(0)
		d.Deadline = time.Time{}
		_, message := shell(t, `echo "$NSTANCE_DRAIN_SECONDS"`, &hook.Options{Timeout: time.Hour}).Run(t.Context(), d)
		require.Regexp(t, `^35\d\d$`, message)
	})
	t.Run("runs in the directory given", func(t *testing.T) {
		dir, err := filepath.EvalSymlinks(t.TempDir())
		require.NoError(t, err)
		_, message := shell(t, "pwd -P", &hook.Options{Dir: dir}).Run(t.Context(), in(time.Minute))
		require.Equal(t, dir, message)
	})
}

func TestArgumentsAreNotInterpreted(t *testing.T) {
	h, err := hook.New([]string{"echo", "$HOME", "; true", "a  b"}, nil)
	require.NoError(t, err)
	_, message := h.Run(t.Context(), in(time.Minute))
	require.Equal(t, "$HOME ; true a  b", message)
}

func TestMessageIsTheEndOfTheOutput(t *testing.T) {
	t.Run("however much there is", func(t *testing.T) {
		_, message := shell(t, `i=0; while [ $i -lt 20000 ]; do echo "line $i"; i=$((i+1)); done`, nil).Run(t.Context(), in(time.Minute))
		require.LessOrEqual(t, len(message), 256)
		require.Greater(t, len(message), 240)
		require.True(t, strings.HasSuffix(message, "line 19998\nline 19999"))
	})
	t.Run("and one byte too many is one byte less", func(t *testing.T) {
		_, message := shell(t, `printf 'x%0256d' 0`, nil).Run(t.Context(), in(time.Minute))
		require.Equal(t, strings.Repeat("0", 256), message)
	})
	t.Run("after what went wrong", func(t *testing.T) {
		_, message := shell(t, `printf '%0300d' 0; exit 7`, nil).Run(t.Context(), in(time.Minute))
		require.Equal(t, "exit status 7: "+strings.Repeat("0", 256-len("exit status 7: ")), message)
	})
	t.Run("as valid text", func(t *testing.T) {
		_, message := shell(t, `printf 'x'; i=0; while [ $i -lt 128 ]; do printf '\303\251'; i=$((i+1)); done; printf 'y\377'`, nil).Run(t.Context(), in(time.Minute))
		require.Equal(t, strings.Repeat("é", 127)+"y", message)
	})
}

// witness is a pipe whose reading end tells when every process that holds the
// other end is gone.
type witness struct {
	path string
	file *os.File
}

func newWitness(t *testing.T) witness {
	t.Helper()
	path := filepath.Join(t.TempDir(), "alive")
	require.NoError(t, syscall.Mkfifo(path, 0o600))
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	require.NoError(t, err)
	t.Cleanup(func() { file.Close() })
	return witness{path, file}
}

// require that its holders said "alive" and are all gone.
func (w witness) require(t *testing.T) {
	t.Helper()
	require.NoError(t, w.file.SetReadDeadline(time.Now().Add(10*time.Second)))
	said, err := io.ReadAll(w.file)
	require.NoError(t, err, "a process is still alive")
	require.Equal(t, "alive\n", string(said))
}

// grandchild is a script that starts a process which would live on, and goes on
// only when that has begun.
const grandchild = `
	ready=$(mktemp -u); mkfifo "$ready"
	(exec 9>"$ALIVE"; echo alive >&9; echo > "$ready"; sleep 1000) &
	read _ < "$ready"; rm "$ready"
`

func TestNothingOutlivesRun(t *testing.T) {
	for name, c := range map[string]struct {
		before  string
		rest    string
		left    time.Duration
		outcome nstance.Outcome
		message string
	}{
		"at the deadline the whole group is killed": {
			rest: "echo waiting; wait", left: 2 * time.Second,
			outcome: nstance.OutcomeFailed, message: "killed: the deadline has passed: waiting",
		},
		"even one that does not listen to signals": {
			rest: "trap '' TERM INT HUP; echo deaf; while :; do wait; done", left: 2 * time.Second,
			outcome: nstance.OutcomeFailed, message: "killed: the deadline has passed: deaf",
		},
		"what a finished command left behind is killed": {
			rest: "echo done", left: time.Minute,
			outcome: nstance.OutcomeDrained, message: "done",
		},
		"also when it holds no output open": {
			before: "exec >/dev/null 2>&1", rest: "true", left: time.Minute,
			outcome: nstance.OutcomeDrained,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWitness(t)
			h := shell(t, c.before+grandchild+c.rest, &hook.Options{Env: append(os.Environ(), "ALIVE="+w.path)})
			begun := time.Now()
			outcome, message := h.Run(t.Context(), in(c.left))
			require.Equal(t, c.outcome, outcome)
			require.Equal(t, c.message, message)
			require.Less(t, time.Since(begun), 30*time.Second)
			w.require(t)
		})
	}
}

func TestCancellationKills(t *testing.T) {
	w := newWitness(t)
	begun := filepath.Join(t.TempDir(), "begun")
	h := shell(t, grandchild+"touch "+begun+"; wait", &hook.Options{Env: append(os.Environ(), "ALIVE="+w.path)})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		outcome, message := h.Run(ctx, in(time.Minute))
		if outcome != nstance.OutcomeFailed || message != "killed: the drain was cancelled" {
			t.Errorf("%s: %s", outcome, message)
		}
	}()
	require.Eventually(t, func() bool { _, err := os.Stat(begun); return err == nil }, time.Minute, 5*time.Millisecond)
	cancel()
	<-done
	w.require(t)
}
