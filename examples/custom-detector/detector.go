package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"time"

	"github.com/nstance-go/nstance"
)

// A FileDetector reads what the rack controller of a data centre intends for
// this machine from a file that the controller keeps up to date, such as
//
//	{"spot": true, "eviction": {"id": "ev-17", "action": "poweroff", "at": "2030-01-01T12:00:00Z"}}
//
// The controller replaces the file by rename, so a reader never sees half of
// it. A missing file is trouble, not good news.
type FileDetector struct {
	Path     string
	Interval time.Duration // between reads
}

var _ nstance.SpotDetector = (*FileDetector)(nil)

// A document is the file's content.
type document struct {
	Spot     *bool     `json:"spot"`
	Eviction *eviction `json:"eviction"` // nil: none
}

type eviction struct {
	ID     string    `json:"id"`
	Action string    `json:"action"`
	At     time.Time `json:"at"` // zero: unknown
}

// Interruptible reports the file's spot field. A file that does not say is an
// error, since an error is not a no.
func (d *FileDetector) Interruptible(ctx context.Context) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	doc, err := d.read()
	if err != nil {
		return false, err
	}
	return *doc.Spot, nil
}

// Watch yields the eviction as it appears, changes and goes.
func (d *FileDetector) Watch(ctx context.Context) iter.Seq2[nstance.Notice, error] {
	return func(yield func(nstance.Notice, error) bool) {
		ticks := time.NewTicker(d.Interval)
		defer ticks.Stop()
		var seen memory
		for ctx.Err() == nil {
			doc, err := d.read()
			for _, n := range seen.update(doc, err, time.Now().UTC()) {
				if !yield(n, nil) {
					return
				}
			}
			if seen.isNews(err) && !yield(nstance.Notice{}, err) {
				return
			}
			select {
			case <-ctx.Done():
			case <-ticks.C:
			}
		}
	}
}

const maxFile = 64 << 10 // bytes

// read classifies its errors here, at the edge: its callers do not know about files.
func (d *FileDetector) read() (document, error) {
	var doc document
	f, err := os.Open(d.Path)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return doc, nstance.Errorf(nstance.Denied, "eviction file: %w", err)
	case err != nil:
		return doc, nstance.Errorf(nstance.Unavailable, "eviction file: %w", err)
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err != nil {
		return doc, nstance.Errorf(nstance.Unavailable, "eviction file: %w", err)
	}
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.DisallowUnknownFields() // a misspelt eviction must not be overlooked
	if err := decoder.Decode(&doc); err != nil {
		return doc, nstance.Errorf(nstance.Invalid, "eviction file: %w", err)
	}
	return doc, doc.check()
}

func (doc document) check() error {
	switch {
	case doc.Spot == nil:
		return nstance.Errorf(nstance.Invalid, "eviction file: it does not say whether the machine is spot")
	case doc.Eviction != nil && (doc.Eviction.ID == "" || doc.Eviction.Action == ""):
		return nstance.Errorf(nstance.Invalid, "eviction file: the eviction has no id or no action")
	}
	return nil
}

// A memory knows what has been told. It is apart from the loop because it is
// the part with rules: no clock, no file.
type memory struct {
	standing *nstance.Notice
	watching bool           // there has been a reading: what appears now is new
	stale    nstance.Notice // ignored, its deadline was past when the watch began
	trouble  string
}

// update returns what a reading adds to what has been told. A reading that
// failed adds nothing and takes nothing back.
func (m *memory) update(doc document, err error, now time.Time) (news []nstance.Notice) {
	if err != nil {
		return nil
	}
	var present *nstance.Notice
	if doc.Eviction != nil {
		present = m.believe(notice(*doc.Eviction), now)
	}
	old := m.standing
	m.standing, m.watching = present, true
	if present != nil && (old == nil || *old != *present) {
		news = append(news, *present)
	}
	if old != nil && (present == nil || present.EventID != old.EventID) {
		gone := *old
		gone.Cancelled = true
		news = append(news, gone)
	}
	return news
}

// believe returns n as it stands, or nil if it was left over when the watch began.
func (m *memory) believe(n nstance.Notice, now time.Time) *nstance.Notice {
	known := m.standing != nil && m.standing.EventID == n.EventID
	switch {
	case n == m.stale:
		return nil
	case known:
		n.DetectedAt = m.standing.DetectedAt
	case !m.watching && !n.Deadline.IsZero() && !n.Deadline.After(now):
		m.stale = n
		return nil
	default:
		n.DetectedAt = now
	}
	return &n
}

// isNews reports whether err differs from the trouble that lasts already.
func (m *memory) isNews(err error) bool {
	last := m.trouble
	m.trouble = ""
	if err != nil {
		m.trouble = err.Error()
	}
	return m.trouble != "" && m.trouble != last
}

// notice has the controller's own ID in its identity, and nothing of when it
// was read: the same eviction is the same event for every reader.
func notice(e eviction) nstance.Notice {
	return nstance.Notice{
		Kind:     nstance.Reclaim,
		Action:   e.Action,
		Deadline: e.At.UTC(),
		Source:   "rack",
		EventID:  fmt.Sprintf("rack/%s", e.ID),
	}
}
