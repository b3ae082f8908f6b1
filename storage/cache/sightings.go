package cache

import (
	"context"
	"database/sql"

	"github.com/nstance-go/nstance"
)

// A Sighting is the first event of a notice in the journal.
type Sighting struct {
	Seq      nstance.Seq // of that event
	Instance nstance.InstanceID
	EventID  string
}

// Sightings returns the notices of the matching events, each once, the newest first,
// at most f.Limit of them. f.Newest is ignored. Queued events are not included.
func (c *Cache) Sightings(ctx context.Context, f Filter) (all []Sighting, err error) {
	err = c.reading(func(db *sql.DB) error {
		all, err = f.sightings(ctx, db)
		return err
	})
	return all, err
}

func (f Filter) sightings(ctx context.Context, db *sql.DB) ([]Sighting, error) {
	where, args := f.where()
	rows, err := db.QueryContext(ctx, `SELECT MIN(seq), instance, json_extract(body, '$.notice.event_id') AS id FROM events
		WHERE json_extract(body, '$.notice.event_id') IS NOT NULL AND `+where+`
		GROUP BY instance, id ORDER BY MIN(seq) DESC LIMIT ?`, append(args, f.limit())...)
	if err != nil {
		return nil, classify(err)
	}
	defer rows.Close()
	var all []Sighting
	for rows.Next() {
		var seq int64
		var s Sighting
		if err := rows.Scan(&seq, &s.Instance, &s.EventID); err != nil {
			return nil, classify(err)
		}
		s.Seq = nstance.Seq(seq)
		all = append(all, s)
	}
	return all, classify(rows.Err())
}
