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
)

// A frame is what top shows: a scene, and what of it somebody has chosen.
type frame struct {
	scene
	failed        error // why the scene is not a newer one
	width, height int   // of the screen; 0: without limit
	chosen        nstance.GroupKey
	problems      bool // instead of members
}

// move chooses the group so many lines further down.
func (f *frame) move(by int) {
	if len(f.groups) == 0 {
		return
	}
	at := max(0, f.index()) + by
	f.chosen = f.groups[min(max(at, 0), len(f.groups)-1)].key()
}

// index is where the chosen group stands, or -1.
func (f *frame) index() int {
	for i, g := range f.groups {
		if g.key() == f.chosen {
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
	groups := f.groupLines()
	rest := f.below(now)
	if f.height > 0 { // the groups get what they need, up to half of the room
		room := max(3, f.height-len(head)-2)
		rest, groups = clipLines(rest, max(room/2, room-len(groups)), 0), clipLines(groups, max(room/2, room-len(rest)), f.index()+1)
	}
	lines := append(append(append(head, groups...), ""), rest...)
	return f.fit(lines)
}

// head says which shard it is, and how old what is shown.
func (f *frame) head(now time.Time) []string {
	if f.at.IsZero() {
		if f.failed != nil {
			return []string{"nothing seen yet: " + printable(f.failed.Error())}
		}
		return []string{"looking ..."}
	}
	s := f.status
	first := fmt.Sprintf("%s/%s   epoch %d   %s   %d agents   %s", s.Cluster, s.Shard, s.Epoch, s.Server, s.AgentsConnected, f.at.UTC().Format("15:04:05Z"))
	if f.failed != nil {
		first = fmt.Sprintf("%s   seen %s ago: %s", first, short(now.Sub(f.at)), f.failed)
	}
	out := []string{printable(first)}
	if needs := s.needs(f.at); len(needs) > 0 {
		out = append(out, fmt.Sprintf("%d in need of attention (p shows all): %s", len(needs)+s.Omitted, printable(needs[0])))
	}
	return append(out, "")
}

func (f *frame) groupLines() []string {
	t := &table{now: f.at}
	t.row("GROUP", "SIZE", "READY", "BOOTING", "LEAVING", "STALE", "HOLDS")
	for _, g := range f.groups {
		t.row(g.key().String(), strconv.Itoa(g.Size), strconv.Itoa(g.Ready), strconv.Itoa(g.Booting), strconv.Itoa(g.Leaving),
			strconv.Itoa(g.Stale), holdsOf(g, f.at))
	}
	lines := t.aligned()
	for i := range lines {
		mark := "  "
		if i > 0 && f.groups[i-1].key() == f.chosen {
			mark = "> "
		}
		lines[i] = mark + lines[i]
	}
	return lines
}

// holdsOf says what a group waits for, and for how long still.
func holdsOf(g Group, now time.Time) string {
	var out []string
	for _, h := range g.Holds {
		s := h.Kind + ": " + h.Reason
		if left := h.Until.Sub(now); left > 0 {
			s += " (" + short(left) + " more)"
		}
		out = append(out, s)
	}
	return cmp.Or(strings.Join(out, "; "), " ")
}

// below is what stands under the groups: problems, or the chosen group's
// members, or all members that something happens to.
func (f *frame) below(now time.Time) []string {
	if f.problems {
		out := []string{"NEEDS ATTENTION"}
		needs := f.status.needs(f.at)
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
		if f.chosen.Group != "" && i.key() != f.chosen {
			continue
		}
		cpu, mem := loadOf(i)
		t.row(string(i.ID), i.key().String(), string(i.State), t.age(i.CreatedAt), i.InstanceType, string(i.Market), cpu, mem,
			t.age(i.LastReportAt), drainOf(i, now), remarks(i))
	}
	return t.aligned()
}

func loadOf(i Instance) (cpu, mem string) {
	if i.LastReport == nil {
		return "", ""
	}
	u := i.LastReport.OneMinute
	return fmt.Sprintf("%.0f%%", u.CPUPercent), fmt.Sprintf("%.0f%%", u.MemoryPercent)
}

// drainOf says how long a drain may still take, and who does it.
func drainOf(i Instance, now time.Time) string {
	if i.Drain == nil {
		return ""
	}
	return strings.TrimSpace(short(max(0, i.Drain.Deadline.Sub(now))) + " left " + string(i.Drain.Executor))
}

// urgency orders members: those that leave first, then those that are not
// ready, then the others.
func urgency(a, b Instance) int {
	return cmp.Or(cmp.Compare(haste(a), haste(b)), cmp.Compare(a.ID, b.ID))
}

func haste(i Instance) int {
	switch {
	case i.State.Leaving():
		return 0
	case i.State != nstance.Ready || len(i.Conditions) > 0:
		return 1
	}
	return 2
}

// clipLines keeps the first line, which names the columns, and so many in all,
// the one at index keep among them. The last says how many are left out.
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
	return strings.Join(lines, "\n") + "\n"
}

// aligned returns the table's lines with their columns aligned.
func (t *table) aligned() []string {
	var b bytes.Buffer
	_ = t.flush(&b) // a buffer takes everything
	lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return lines
}
