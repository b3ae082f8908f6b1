package cache

import (
	"context"
	"database/sql"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
)

// A Filter chooses events. Empty fields match anything.
type Filter struct {
	Tenant   nstance.TenantID
	Group    nstance.GroupID
	Instance nstance.InstanceID
	Any      []nstance.InstanceID // only those of any of these, at most 10,000 of them
	Replaces []nstance.InstanceID // only those that name one of these as what is replaced, at most 10,000 of them
	EventID  string               // only those of a notice with this ID
	Types    []nstance.EventType
	Since    time.Time   // only those of this second or later
	Until    time.Time   // only those of an earlier second
	After    nstance.Seq // only later ones, by the journal's own numbers
	Before   nstance.Seq // only earlier ones; 0 means no limit
	Limit    int         // at most so many; 0 means 100, more than 10,000 means 10,000
	Newest   bool        // of more than Limit matches the newest, not the oldest
}

const (
	defaultLimit = 100
	maxLimit     = 10_000
)

// query returns the statement and its arguments.
func (f Filter) query() (string, []any) {
	where, args := f.where()
	order := "ASC"
	if f.Newest {
		order = "DESC"
	}
	return "SELECT seq, body FROM events WHERE " + where + " ORDER BY seq " + order + " LIMIT ?", append(args, f.limit())
}

func (f Filter) limit() int {
	if f.Limit <= 0 {
		return defaultLimit
	}
	return min(f.Limit, maxLimit)
}

// where returns the condition and its arguments.
func (f Filter) where() (string, []any) {
	where, args := []string{"seq > ?"}, []any{int64(f.After)}
	add := func(column, value string) {
		if value != "" {
			where, args = append(where, column+" = ?"), append(args, value)
		}
	}
	add("tenant", string(f.Tenant))
	add("grp", string(f.Group))
	if f.Instance != "" {
		where = append(where, "instance <> ''") // lets the index be used
	}
	add("instance", string(f.Instance))
	add("json_extract(body, '$.notice.event_id')", f.EventID)
	among := func(column string, ids []nstance.InstanceID) {
		if len(ids) > 0 {
			list, _ := json.Marshal(ids[:min(len(ids), maxLimit)]) // of strings: it cannot fail
			where, args = append(where, column+" IN (SELECT value FROM json_each(?))"), append(args, string(list))
		}
	}
	among("instance", f.Any)
	among("json_extract(body, '$.replaces')", f.Replaces)
	if f.Before > 0 {
		where, args = append(where, "seq < ?"), append(args, int64(f.Before))
	}
	if len(f.Types) > 0 {
		where = append(where, "json_extract(body, '$.event') IN (?"+strings.Repeat(", ?", len(f.Types)-1)+")")
		for _, t := range f.Types {
			args = append(args, string(t))
		}
	}
	second := func(condition string, t time.Time) {
		if !t.IsZero() { // the text of a time has as many digits after the second as it needs
			where, args = append(where, "substr(json_extract(body, '$.time'), 1, 19) "+condition+" ?"), append(args, t.UTC().Format("2006-01-02T15:04:05"))
		}
	}
	second(">=", f.Since)
	second("<", f.Until)
	return strings.Join(where, " AND "), args
}

// Events returns the matching events, oldest first, with the journal's
// numbers. Events appended before are included, unless they cannot be written.
func (c *Cache) Events(ctx context.Context, f Filter) (events []nstance.Event, err error) {
	c.waitForFlush(ctx)
	err = c.reading(func(db *sql.DB) error {
		events, err = f.events(ctx, db)
		return err
	})
	return events, err
}

func (f Filter) events(ctx context.Context, db *sql.DB) ([]nstance.Event, error) {
	query, args := f.query()
	rows, err := db.QueryContext(ctx, query, args...)
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
		return e, nstance.Errorf(nstance.Internal, "cache: event %d: %w", seq, err)
	}
	e.Seq = nstance.Seq(seq)
	return e, nil
}
