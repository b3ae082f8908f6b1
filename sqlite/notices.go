package sqlite

import (
	"context"
	"database/sql"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/journal"
)

// Notices implements [journal.Journal]. Queued events are not included.
func (j *Journal) Notices(ctx context.Context, f journal.Filter) (all []journal.NoticeEntry, err error) {
	j.waitForFlush(ctx)
	err = j.reading(func(db *sql.DB) error {
		all, err = notices(ctx, db, f)
		return err
	})
	return all, err
}

// queryNotices returns the statement and its arguments.
func queryNotices(f journal.Filter) (string, []any) {
	condition, args := where(f)
	return `SELECT MIN(seq), instance, json_extract(body, '$.notice.event_id') AS id FROM events
		WHERE json_extract(body, '$.notice.event_id') IS NOT NULL AND ` + condition + `
		GROUP BY instance, id ORDER BY MIN(seq) DESC LIMIT ?`, append(args, f.Max())
}

func notices(ctx context.Context, db *sql.DB, f journal.Filter) ([]journal.NoticeEntry, error) {
	statement, args := queryNotices(f)
	rows, err := db.QueryContext(ctx, statement, args...)
	if err != nil {
		return nil, classify(err)
	}
	defer rows.Close()
	var all []journal.NoticeEntry
	for rows.Next() {
		var seq int64
		var n journal.NoticeEntry
		if err := rows.Scan(&seq, &n.Instance, &n.EventID); err != nil {
			return nil, classify(err)
		}
		n.Seq = nstance.Seq(seq)
		all = append(all, n)
	}
	return all, classify(rows.Err())
}
