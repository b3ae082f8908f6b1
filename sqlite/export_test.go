package sqlite

import (
	"context"

	"github.com/nstance-go/nstance/journal"
)

// Query returns the statement of a search for events, and its arguments.
func Query(f journal.Filter) (string, []any) { return query(f) }

// QueryNotices returns the statement of a search for notices, and its arguments.
func QueryNotices(f journal.Filter) (string, []any) { return queryNotices(f) }

// Exec runs a statement on the writer's connection.
func (j *Journal) Exec(ctx context.Context, stmt string) error {
	_, err := j.file.write.ExecContext(ctx, stmt)
	return err
}

// URL names the file at path, as the journal opens it.
func URL(path string) string { return dsn(path, "_txlock=immediate") }

// Flushing reports whether a flush has taken all events from the queue, and not ended.
func Flushing(j *Journal) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.flushing && len(j.events) == 0
}

// Waiting returns how many readers wait for a flush.
func Waiting(j *Journal) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.waiting)
}

// StorageFull reports whether a journal that cannot be opened for err is kept in memory.
func StorageFull(err error) bool { return storageFull(err) }
