package logqueue_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/grpclog"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/logqueue"
)

// A reader blocks writes until it is released.
type reader struct {
	mu      sync.Mutex
	text    strings.Builder
	release chan struct{}
	err     error
}

func (r *reader) Write(p []byte) (int, error) {
	<-r.release
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return 0, r.err
	}
	return r.text.Write(p)
}

func (r *reader) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.String()
}

func TestReaderThatHangs(t *testing.T) {
	r := &reader{release: make(chan struct{})}
	log, q := logqueue.Logger(r, 1000, func(w io.Writer) slog.Handler { return slog.NewTextHandler(w, nil) })
	for i := range 1000 {
		log.Info("line", "n", i) // returns, or the test hangs
	}
	lost := q.Dropped()
	require.Greater(t, lost, int64(900))
	require.Less(t, lost, int64(1000))
	close(r.release)
	q.Close()
	require.Equal(t, 1000-int(lost), strings.Count(r.String(), "msg=line"), "what waited is written in order")
	require.Contains(t, r.String(), "n=0\n")
	require.Contains(t, r.String(), fmt.Sprintf("log lines dropped: the reader of this log is too slow\" lost=%d\n", lost))
	require.Equal(t, lost, q.Dropped())
}

// TestLimit: exactly so many bytes may wait, and what was written makes room again.
func TestLimit(t *testing.T) {
	r := &reader{release: make(chan struct{})}
	q := logqueue.New(r, &logqueue.Options{Limit: 8})
	write := func(text string) {
		line := []byte(text)
		_, err := q.Write(line)
		require.NoError(t, err)
		clear(line) // callers use it again
	}
	for range 3 {
		write("12345678")
		require.Zero(t, q.Dropped())
		r.release <- struct{}{}
	}
	write("123456789")
	require.EqualValues(t, 1, q.Dropped())
	close(r.release)
	q.Close()
	require.Equal(t, strings.Repeat("12345678", 3), r.String())
}

func TestCloseDoesNotWaitForEver(t *testing.T) {
	r := &reader{release: make(chan struct{})}
	defer close(r.release)
	q := logqueue.New(r, nil)
	_, err := q.Write([]byte("x\n"))
	require.NoError(t, err)
	q.Close()
	n, err := q.Write([]byte("late\n"))
	require.NoError(t, err)
	require.Equal(t, 5, n)
	require.Equal(t, int64(1), q.Dropped())
}

func TestReaderThatHasGone(t *testing.T) {
	r := &reader{release: make(chan struct{}), err: errors.New("broken pipe")}
	close(r.release)
	failures := make(chan error, 10)
	q := logqueue.New(r, &logqueue.Options{
		Failed: func(err error) { failures <- err },
		Lost:   func(int64) []byte { return []byte("lost\n") }, // what could not be written is not said either
	})
	for range 3 {
		_, err := q.Write([]byte("x\n"))
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool { return q.Dropped() == 3 }, time.Minute, time.Millisecond)
	r.mu.Lock()
	r.err = nil // as a journal that was restarted
	r.mu.Unlock()
	_, err := q.Write([]byte("again\n"))
	require.NoError(t, err)
	q.Close()
	require.Equal(t, "again\n", r.String())
	require.Len(t, failures, 1)
}

// TestLibraries: what a library logs is a line like any other, until restore.
func TestLibraries(t *testing.T) {
	handler, err := logqueue.Handler("--log-format", "json", slog.LevelInfo)
	require.NoError(t, err)
	var out bytes.Buffer
	restore := logqueue.Libraries(slog.New(handler(&out)))
	log.Print("a library says so")
	grpclog.Error("and gRPC")
	grpclog.Warning("nothing")
	restore()
	require.Regexp(t, `^\{.*"level":"INFO","msg":"a library says so"\}\n\{.*"msg":"grpc: and gRPC"\}\n$`, out.String())
	require.NotEqual(t, 0, log.Flags())
	_, err = logqueue.Handler("--log-format", "xml", slog.LevelInfo)
	require.ErrorIs(t, err, nstance.Invalid)
}
