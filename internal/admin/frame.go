package admin

import (
	"bytes"
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/mattn/go-runewidth"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
)

// A frame is the screen of top: a snapshot and the operator's choices.
type frame struct {
	snapshot
	failed        error // why the snapshot could not be refreshed
	width, height int   // of the screen; 0: without limit
	chosen        nstance.GroupKey
	detail        detail
}

// A detail is what a frame shows under the groups.
type detail int

const (
	showMembers detail = iota
	showProblems
	showPools
	showInterruptions
)

// toggle shows a detail, or members again.
func (f *frame) toggle(d detail) {
	if f.detail == d {
		d = showMembers
	}
	f.detail = d
}

// move moves the selection by so many lines.
func (f *frame) move(by int) {
	if len(f.groups) == 0 {
		return
	}
	at := max(0, f.index()) + by
	f.chosen = wire.GroupKeyOf(f.groups[min(max(at, 0), len(f.groups)-1)])
}

// index returns the line of the chosen group, or -1.
func (f *frame) index() int {
	for i, g := range f.groups {
		if wire.GroupKeyOf(g) == f.chosen {
			return i
		}
	}
	return -1
}

// text draws the frame.
func (f *frame) text(now time.Time) string {
	head := f.head(now)
	if f.at.IsZero() {
		return f.fit(head)
	}
	if waves := f.waveLines(now); len(waves) > 0 {
		head = append(append(head, waves...), "")
	}
	groups := f.groupLines()
	rest := f.detailLines(now)
	if f.height > 0 { // the groups get the lines they need, up to half of the screen
		room := max(3, f.height-len(head)-2)
		rest, groups = clipLines(rest, max(room/2, room-len(groups)), 0), clipLines(groups, max(room/2, room-len(rest)), f.index()+1)
	}
	lines := append(append(append(head, groups...), ""), rest...)
	return f.fit(lines)
}

// head returns the lines with the shard and the age of the snapshot.
func (f *frame) head(now time.Time) []string {
	if f.at.IsZero() {
		if f.failed != nil {
			return []string{"nothing seen yet: " + printable(f.failed.Error())}
		}
		return []string{"looking ..."}
	}
	s := f.status
	first := fmt.Sprintf("%s/%s   epoch %d   %s   %d agents   %s", s.GetCluster(), s.GetShard(), s.GetEpoch(), f.server, s.GetAgentsConnected(), f.at.UTC().Format("15:04:05Z"))
	if f.failed != nil {
		first = fmt.Sprintf("%s   seen %s ago: %s", first, short(now.Sub(f.at)), f.failed)
	}
	out := []string{printable(first)}
	needs, known := needsAttention(s, f.at), int(s.GetAttentionAcknowledged())
	switch open := len(needs) + int(s.GetAttentionOmitted()) - known; {
	case open > 0 && known > 0:
		out = append(out, fmt.Sprintf("%d in need of attention, and %d acknowledged (p shows all): %s", open, known, printable(needs[0])))
	case open > 0:
		out = append(out, fmt.Sprintf("%d in need of attention (p shows all): %s", open, printable(needs[0])))
	case known > 0:
		out = append(out, fmt.Sprintf("nothing in need of attention but %d acknowledged (p shows all)", known))
	}
	return append(out, "")
}

func (f *frame) groupLines() []string {
	t := &table{now: f.at}
	t.row("GROUP", "SIZE", "READY", "BOOTING", "LEAVING", "STALE", "HOLDS")
	for _, g := range f.groups {
		t.row(wire.GroupKeyOf(g).String(), strconv.Itoa(int(g.GetSize())), strconv.Itoa(int(g.GetReady())), strconv.Itoa(int(g.GetBooting())), strconv.Itoa(int(g.GetLeaving())),
			strconv.Itoa(int(g.GetStale())), holdsOf(g, f.at))
	}
	lines := t.aligned()
	for i := range lines {
		mark := "  "
		if i > 0 && wire.GroupKeyOf(f.groups[i-1]) == f.chosen {
			mark = "> "
		}
		lines[i] = mark + lines[i]
	}
	return lines
}

// holdsOf returns the holds of a group with their remaining time.
func holdsOf(g *apiv1.Group, now time.Time) string {
	var out []string
	for _, h := range g.GetHolds() {
		s := h.GetKind() + ": " + h.GetReason()
		if left := wire.TimeOf(h.GetUntil()).Sub(now); left > 0 {
			s += " (" + short(left) + " more)"
		}
		out = append(out, s)
	}
	return cmp.Or(strings.Join(out, "; "), " ")
}

// detailLines returns the lines under the groups: problems, pools, interruptions, or the
// members of the chosen group, or all members.
func (f *frame) detailLines(now time.Time) []string {
	switch f.detail {
	case showPools:
		return f.poolLines()
	case showInterruptions:
		return f.interruptionLines(now)
	case showProblems:
		out := []string{"NEEDS ATTENTION"}
		needs := needsAttention(f.status, f.at)
		for _, line := range needs {
			out = append(out, printable(line))
		}
		if len(needs) == 0 {
			out = append(out, "nothing")
		}
		return append(out, "")
	}
	t := &table{now: f.at}
	t.row("ID", "GROUP", "STATE", "AGE", "TYPE", "MARKET", "CPU", "MEM", "REPORT", "DRAIN", "CONDITIONS")
	for _, i := range f.instances {
		if f.chosen.Group != "" && wire.GroupKeyOf(i) != f.chosen {
			continue
		}
		cpu, mem := loadOf(i)
		t.row(i.GetId(), wire.GroupKeyOf(i).String(), i.GetState(), t.age(i.GetCreatedAt()), i.GetInstanceType(), i.GetMarket(), cpu, mem,
			t.age(i.GetLastReportAt()), drainOf(i, now), remarks(i))
	}
	return t.aligned()
}

func loadOf(i *apiv1.Instance) (cpu, mem string) {
	if i.GetLastReport() == nil {
		return "", ""
	}
	r := i.GetLastReport()
	return fmt.Sprintf("%.0f%%", r.GetCpuUsage()), fmt.Sprintf("%.0f%%", r.GetMemoryUsage())
}

// drainOf returns the remaining time and the executor of a drain.
func drainOf(i *apiv1.Instance, now time.Time) string {
	if i.GetDrain() == nil {
		return ""
	}
	if wire.DrainOf(i.GetDrain()).Unlimited() {
		return strings.TrimSpace("until empty " + i.GetDrain().GetExecutor())
	}
	return strings.TrimSpace(short(max(0, wire.TimeOf(i.GetDrain().GetDeadline()).Sub(now))) + " left " + i.GetDrain().GetExecutor())
}

// compareUrgency orders members: those that leave first, then those that are not
// ready, then the others.
func compareUrgency(a, b *apiv1.Instance) int {
	return cmp.Or(cmp.Compare(urgencyRank(a), urgencyRank(b)), cmp.Compare(a.GetId(), b.GetId()))
}

func urgencyRank(i *apiv1.Instance) int {
	switch {
	case nstance.State(i.GetState()).Leaving():
		return 0
	case nstance.State(i.GetState()) != nstance.Ready || len(i.GetConditions()) > 0:
		return 1
	}
	return 2
}

// clipLines returns at most room lines: the column names, and lines around index
// keep. The last one shows how many are omitted.
func clipLines(lines []string, room, keep int) []string {
	if len(lines) <= room || room < 3 {
		return lines[:min(len(lines), max(room, 1))]
	}
	from := 1
	if keep > room-2 {
		from = min(keep-(room-3), len(lines)-(room-2))
	}
	out := append([]string{lines[0]}, lines[from:from+room-2]...)
	return append(out, fmt.Sprintf("  ... %d more", len(lines)-1-(room-2)))
}

// fit cuts lines to the screen's width.
func (f *frame) fit(lines []string) string {
	if f.height > 0 {
		lines = lines[:min(len(lines), f.height)]
	}
	if f.width > 0 {
		for i, line := range lines {
			lines[i] = runewidth.Truncate(line, f.width, "")
		}
	}
	text := strings.Join(lines, "\n")
	if f.height == 0 {
		return text + "\n"
	}
	return text // one more line would push the first one off a full screen
}

// aligned returns the table's lines with their columns aligned.
func (t *table) aligned() []string {
	var b bytes.Buffer
	_ = t.flush(&b) // a buffer never fails
	lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return lines
}
