package sqlite

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/nstance-go/nstance"
)

// A share is counted and trimmed by itself: the events of one tenant, or its alarms.
type share struct {
	tenant nstance.TenantID
	alarm  bool
}

func shareOf(e nstance.Event) share { return share{e.Tenant, e.Type == nstance.EventAlarm} }

// trimEvents deletes the oldest events once there are a tenth too many, and the
// oldest alarms likewise: those of the tenants with the most, so that a noisy tenant
// costs the others nothing.
func (j *Journal) trimEvents(ctx context.Context, written []nstance.Event) error {
	if err := j.count(ctx, written); err != nil {
		return err
	}
	for _, kind := range []struct {
		alarm bool
		keep  int
	}{{false, j.opts.MaxEvents}, {true, j.opts.MaxAlarms}} {
		for s, surplus := range j.surplus(kind.alarm, kind.keep) {
			if err := j.trimShare(ctx, s, surplus); err != nil {
				return err
			}
		}
	}
	return nil
}

// count keeps the number of events of each share.
func (j *Journal) count(ctx context.Context, written []nstance.Event) error {
	for _, e := range written {
		if j.counts != nil {
			j.counts[shareOf(e)]++
		}
	}
	if err := j.file.write.QueryRowContext(ctx, "SELECT max(?, coalesce(max(seq), 0)) FROM events", j.last).Scan(&j.last); err != nil {
		return classify(err)
	}
	if j.counts != nil {
		return nil
	}
	counts := map[share]int{}
	rows, err := j.file.write.QueryContext(ctx, "SELECT tenant, json_extract(body, '$.event') = ?, count(*) FROM events GROUP BY 1, 2", string(nstance.EventAlarm))
	if err != nil {
		return classify(err)
	}
	defer rows.Close()
	for rows.Next() {
		var s share
		var n int
		if err := rows.Scan(&s.tenant, &s.alarm, &n); err != nil {
			return classify(err)
		}
		counts[s] = n
	}
	if err := rows.Err(); err != nil {
		return classify(err)
	}
	j.counts = counts
	return nil
}

// surplus returns how many events of each share to delete so that keep of them are
// left: none, until there are a tenth too many. Smaller shares stay complete.
func (j *Journal) surplus(alarm bool, keep int) map[share]int {
	var all []share
	total := 0
	for s, n := range j.counts {
		if s.alarm == alarm {
			all, total = append(all, s), total+n
		}
	}
	if total <= keep+keep/10 {
		return nil
	}
	slices.SortFunc(all, func(a, b share) int { return cmp.Compare(j.counts[a], j.counts[b]) })
	surplus := map[share]int{}
	for i, s := range all {
		part := keep / (len(all) - i)
		if n := j.counts[s]; n > part {
			surplus[s] = n - part
			keep -= part
		} else {
			keep -= n
		}
	}
	return surplus
}

// trimShare deletes the oldest events of one share in small transactions, so that
// readers and the queue never wait long.
func (j *Journal) trimShare(ctx context.Context, s share, surplus int) error {
	const ofShare = "tenant = ? AND (json_extract(body, '$.event') = '" + string(nstance.EventAlarm) + "') = ?"
	var first, last int64
	row := j.file.write.QueryRowContext(ctx, "SELECT coalesce(min(seq), 1), coalesce(max(seq), 0) FROM (SELECT seq FROM events WHERE "+ofShare+" ORDER BY seq LIMIT ?)",
		string(s.tenant), s.alarm, surplus)
	if err := row.Scan(&first, &last); err != nil {
		return classify(err)
	}
	for ; first <= last; first += deleteChunk {
		end := min(first+deleteChunk-1, last)
		done, err := j.file.write.ExecContext(ctx, "DELETE FROM events WHERE seq BETWEEN ? AND ? AND "+ofShare, first, end, string(s.tenant), s.alarm)
		if err != nil {
			j.counts = nil // to be counted again
			return classify(fmt.Errorf("delete old events: %w", err))
		}
		n, _ := done.RowsAffected()
		j.counts[s] -= int(n)
	}
	return nil
}

// queueEvent queues an event. If the queue is full, it drops the latest event of the
// tenant with the most. It needs j.mu.
func (j *Journal) queueEvent(e nstance.Event) {
	if len(j.events) < j.opts.Queue {
		j.events = append(j.events, e)
		return
	}
	j.dropped++
	waiting := map[nstance.TenantID]int{}
	most := e.Tenant
	for _, other := range j.events {
		waiting[other.Tenant]++
	}
	for tenant, n := range waiting {
		if n > waiting[most]+1 {
			most = tenant
		}
	}
	if most == e.Tenant {
		return
	}
	for i := len(j.events) - 1; i >= 0; i-- {
		if j.events[i].Tenant == most {
			j.events = append(slices.Delete(j.events, i, i+1), e)
			return
		}
	}
}
