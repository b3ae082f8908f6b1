package sqlite_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/journal"
	"github.com/nstance-go/nstance/sqlite"
)

// TestReaderWaitsForTheFlushUnderWay: events that a flush has taken from the queue, and
// not written yet, are in what is read then.
func TestReaderWaitsForTheFlushUnderWay(t *testing.T) {
	path := newPath(t)
	j := open(t, path, nil)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- j.Run(ctx) }()
	defer func() { stop(); require.NoError(t, <-ended) }()

	other, err := sql.Open("sqlite", sqlite.URL(path))
	require.NoError(t, err)
	defer other.Close()
	lock, err := other.Conn(t.Context())
	require.NoError(t, err)
	defer lock.Close()
	_, err = lock.ExecContext(t.Context(), "BEGIN IMMEDIATE") // nobody else writes meanwhile
	require.NoError(t, err)

	j.Append(event("on its way"))
	require.Eventually(t, func() bool { return sqlite.Flushing(j) }, time.Minute, time.Millisecond)
	type answer struct {
		events []nstance.Event
		err    error
	}
	answers := make(chan answer, 1)
	go func() {
		found, err := j.Events(t.Context(), journal.Filter{})
		answers <- answer{found, err}
	}()
	require.Eventually(t, func() bool { return sqlite.Waiting(j) > 0 || len(answers) > 0 }, time.Minute, time.Millisecond)
	_, err = lock.ExecContext(t.Context(), "ROLLBACK")
	require.NoError(t, err)
	got := <-answers
	require.NoError(t, got.err)
	require.Equal(t, []string{"on its way"}, reasons(got.events))
}
