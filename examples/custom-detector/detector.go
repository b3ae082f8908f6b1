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
	"github.com/nstance-go/nstance/spot"
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
	return spot.Poll(ctx, d.Interval, func(context.Context) ([]nstance.Notice, error) {
		doc, err := d.read()
		if err != nil || doc.Eviction == nil {
			return nil, err
		}
		return []nstance.Notice{notice(*doc.Eviction)}, nil
	})
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
