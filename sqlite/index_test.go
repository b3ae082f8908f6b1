package sqlite_test

import (
	"database/sql"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/journal"
	"github.com/nstance-go/nstance/sqlite"
)

// TestTenantsSearchTheirOwnEvents: a search of one tenant looks at none of the events of
// others, also in files that an earlier version has made.
func TestTenantsSearchTheirOwnEvents(t *testing.T) {
	path := newPath(t)
	j := open(t, path, nil)
	for _, index := range []string{"events_by_tenant", "events_by_type", "events_by_notice"} {
		require.NoError(t, j.Exec(t.Context(), "DROP INDEX "+index))
	}
	require.NoError(t, j.Close())
	open(t, path, nil)
	db, err := sql.Open("sqlite", sqlite.URL(path))
	require.NoError(t, err)
	defer db.Close()
	for name, f := range map[string]journal.Filter{
		"all":                 {Tenant: "acme"},
		"the newest":          {Tenant: "acme", Newest: true, Limit: 1},
		"of one type":         {Tenant: "acme", Types: []nstance.EventType{nstance.EventAlarm}, Limit: 1},
		"of one type, newest": {Tenant: "acme", Types: []nstance.EventType{nstance.EventAlarm}, Newest: true},
		"of types":            {Tenant: "acme", Types: []nstance.EventType{nstance.EventAlarm, nstance.EventReady}},
		"of a notice":         {Tenant: "acme", EventID: "e1"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, query := range []func(journal.Filter) (string, []any){sqlite.Query, sqlite.QueryNotices} {
				statement, args := query(f)
				var plan []string
				rows, err := db.QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+statement, args...)
				require.NoError(t, err)
				defer rows.Close()
				for rows.Next() {
					var id, parent, unused int
					var detail string
					require.NoError(t, rows.Scan(&id, &parent, &unused, &detail))
					plan = append(plan, detail)
				}
				require.NoError(t, rows.Err())
				require.Contains(t, plan[0], "tenant=?", strings.Join(plan, "; "))
			}
		})
	}
}
