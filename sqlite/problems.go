package sqlite

import (
	"fmt"
	"time"
)

// Limits of the notes that Problems returns.
const (
	noteAge  = time.Hour
	maxNotes = 8
)

// A note is a problem that is over.
type note struct {
	at   time.Time
	text string
}

// Problems returns what needs attention: why writes fail at present, and what was
// lost in the last hour.
func (j *Journal) Problems() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	var out []string
	if j.failure != nil {
		out = append(out, fmt.Sprintf("the journal cannot be written since %s, %d events wait, %d events were dropped: %v",
			j.since.UTC().Format(time.RFC3339), len(j.events), j.dropped-j.droppedReported, j.failure))
	}
	for _, r := range j.notes {
		if time.Since(r.at) < noteAge {
			out = append(out, fmt.Sprintf("%s (%s)", r.text, r.at.UTC().Format(time.RFC3339)))
		}
	}
	return out
}

func (j *Journal) addNote(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.addNoteLocked(format, args...)
}

// addNoteLocked is addNote for callers that hold j.mu.
func (j *Journal) addNoteLocked(format string, args ...any) {
	j.notes = append(j.notes, note{time.Now(), fmt.Sprintf(format, args...)})
	j.notes = j.notes[max(0, len(j.notes)-maxNotes):]
}

// recordOutcome records and logs whether writing succeeded.
func (j *Journal) recordOutcome(err error) {
	j.mu.Lock()
	was := j.failure
	j.failure = err
	if was == nil {
		j.since = time.Now()
	}
	dropped := j.dropped - j.droppedReported
	if err == nil && dropped > 0 {
		j.addNoteLocked("%d events were dropped: more came than could be written", dropped)
		j.droppedReported = j.dropped
	}
	j.mu.Unlock()
	switch {
	case err != nil && was == nil:
		j.opts.Log.Warn("events cannot be written, keeping them in memory", "err", err)
	case err == nil && was != nil:
		j.opts.Log.Warn("events are written again", "dropped", dropped)
	case err == nil && dropped > 0:
		j.opts.Log.Warn("events were dropped: more came than could be written", "dropped", dropped)
	}
}
