package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/journal"
)

// query returns the statement and its arguments.
func query(f journal.Filter) (string, []any) {
	condition, args := where(f)
	order := "ASC"
	if f.Newest {
		order = "DESC"
	}
	return "SELECT seq, body FROM events WHERE " + condition + " ORDER BY seq " + order + " LIMIT ?", append(args, f.Max())
}

// where returns the condition and its arguments.
func where(f journal.Filter) (string, []any) {
	conditions, args := []string{"seq > ?"}, []any{int64(f.After)}
	add := func(column, value string) {
		if value != "" {
			conditions, args = append(conditions, column+" = ?"), append(args, value)
		}
	}
	add("tenant", string(f.Tenant))
	add("grp", string(f.Group))
	if f.Instance != "" {
		conditions = append(conditions, "instance <> ''") // lets the index be used
	}
	add("instance", string(f.Instance))
	add("json_extract(body, '$.notice.event_id')", f.EventID)
	among := func(column string, ids []nstance.InstanceID) {
		if len(ids) > 0 {
			list, _ := json.Marshal(ids[:min(len(ids), journal.MaxLimit)]) // of strings: it cannot fail
			conditions, args = append(conditions, column+" IN (SELECT value FROM json_each(?))"), append(args, string(list))
		}
	}
	among("instance", f.Any)
	among("json_extract(body, '$.replaces')", f.Replaces)
	if f.Before > 0 {
		conditions, args = append(conditions, "seq < ?"), append(args, int64(f.Before))
	}
	if len(f.Types) > 0 {
		conditions = append(conditions, "json_extract(body, '$.event') IN (?"+strings.Repeat(", ?", len(f.Types)-1)+")")
		for _, t := range f.Types {
			args = append(args, string(t))
		}
	}
	second := func(condition string, t time.Time) {
		if !t.IsZero() { // the text of a time has as many digits after the second as it needs
			conditions, args = append(conditions, "substr(json_extract(body, '$.time'), 1, 19) "+condition+" ?"), append(args, t.UTC().Format("2006-01-02T15:04:05"))
		}
	}
	second(">=", f.Since)
	second("<", f.Until)
	return strings.Join(conditions, " AND "), args
}

// Events implements [journal.Journal]. Events appended before are included, unless they
// cannot be written.
func (j *Journal) Events(ctx context.Context, f journal.Filter) (events []nstance.Event, err error) {
	j.waitForFlush(ctx)
	err = j.reading(func(db *sql.DB) error {
		events, err = readEvents(ctx, db, f)
		return err
	})
	return events, err
}

func readEvents(ctx context.Context, db *sql.DB, f journal.Filter) ([]nstance.Event, error) {
	statement, args := query(f)
	rows, err := db.QueryContext(ctx, statement, args...)
	if err != nil {
		return nil, classify(err)
	}
	defer rows.Close()
	var events []nstance.Event
	for rows.Next() {
		e, err := scan(rows)
		if err != nil {
			return nil, err
		}
		events = append(events, e)
	}
	if err := rows.Err(); err != nil {
		return nil, classify(err)
	}
	if f.Newest {
		slices.Reverse(events)
	}
	return events, nil
}

func scan(rows *sql.Rows) (e nstance.Event, err error) {
	var seq int64
	var body string
	if err := rows.Scan(&seq, &body); err != nil {
		return e, classify(err)
	}
	if err := json.Unmarshal([]byte(body), &e); err != nil {
		return e, classify(fmt.Errorf("event %d: %w: %w", seq, errDamaged, err))
	}
	e.Seq = nstance.Seq(seq)
	return e, nil
}
