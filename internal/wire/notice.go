package wire

import (
	"strings"
	"time"
	"unicode"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/clip"
)

// maxAhead is how far ahead the times of a notice may be. No cloud announces anything
// a year before.
const maxAhead = 366 * 24 * time.Hour

// CheckNotice fails with Invalid for a notice that arrived at now and that no agent
// sends: without a kind or an event ID, with control characters in a text, or with a
// time that is years ahead. A kind that is not known comes from a newer agent, and a
// time that is long past from a machine whose clock was set: both are accepted.
func CheckNotice(w *apiv1.Notice, now time.Time) error {
	for _, f := range []struct{ name, text string }{
		{"kind", w.GetKind()}, {"event_id", w.GetEventId()}, {"action", w.GetAction()}, {"source", w.GetSource()},
	} {
		switch {
		case f.text == "" && (f.name == "kind" || f.name == "event_id"):
			return nstance.FieldError(f.name, "give each notice a kind and the ID of its event", "is empty")
		case strings.ContainsFunc(f.text, unicode.IsControl):
			return nstance.FieldError(f.name, "send printable text", "has control characters")
		}
	}
	if left := duration(w.GetTimeLeft()); left > maxAhead {
		return nstance.FieldError("time_left", "send the time until the machine ends", "%v is more than a year", left)
	}
	if at := TimeOf(w.GetNotBefore()); at.After(now.Add(maxAhead)) {
		return nstance.FieldError("not_before", "send when the maintenance begins", "%s is more than a year ahead", at.Format(time.RFC3339))
	}
	return nil
}

// Printable is Text in one line.
func Printable(s string) string { return clip.Line(Text(s)) }
