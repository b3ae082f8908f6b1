package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/wire"
)

// fileNotices is a file of the identity directory: the notices that stand, so that a
// restarted agent sends those that no server has acknowledged, and withdraws those that
// ended meanwhile.
const fileNotices = "notices.json"

const (
	// noticeFileVersion is the version of the file.
	noticeFileVersion = 1
	// maxNoticeFile bounds the file: a notice has less than 4 KiB.
	maxNoticeFile = wire.MaxNotices * 4 << 10
	// saveRetryPause is the pause after a failure to write the file.
	saveRetryPause = 5 * time.Second
)

type noticeFile struct {
	Version  int                `json:"version"`
	Instance nstance.InstanceID `json:"instance_id"`
	Notices  []savedNotice      `json:"notices"`
}

// A savedNotice is a standing notice, or a withdrawn one that no server has
// acknowledged.
type savedNotice struct {
	nstance.Notice
	Acknowledged bool `json:"acknowledged,omitempty"`       // in this form
	EverAcked    bool `json:"acknowledged_before,omitzero"` // in this or an earlier form
}

// saved returns what the file should have.
func (o *outbox) saved() []savedNotice {
	out := []savedNotice{}
	for _, s := range o.notices {
		out = append(out, savedNotice{Notice: s.Notice, Acknowledged: s.revision <= o.ackedRevision, EverAcked: s.everAcked})
	}
	return out
}

// restore adds the notices of the file. The time without acknowledgement begins anew:
// a server may be there. Times are by the machine's clock, which may have been set
// meanwhile: the next reading of the metadata service corrects deadlines.
func (o *outbox) restore(saved []savedNotice, now time.Time) {
	for _, n := range saved {
		s := &standingNotice{Notice: n.Notice, firstSeen: now, changedAt: now, everAcked: n.EverAcked, restored: true}
		if !n.Acknowledged {
			o.revision++
			s.revision = o.revision
		}
		o.notices = append(o.notices, s)
	}
}

// loadNotices reads the file. A file that cannot be used is moved aside.
func (v identityDir) loadNotices(id nstance.InstanceID) ([]savedNotice, error) {
	data, err := readFile(v.path(fileNotices), maxNoticeFile)
	if errors.Is(err, nstance.NotFound) {
		return nil, nil
	}
	var notices []savedNotice
	if err == nil {
		notices, err = parseNotices(data, id)
	}
	if err == nil {
		return notices, nil
	}
	aside := v.path(fileNotices + ".damaged")
	if moved := os.Rename(v.path(fileNotices), aside); moved != nil {
		return nil, fmt.Errorf("%s cannot be used: %w", v.path(fileNotices), errors.Join(err, moved))
	}
	return nil, fmt.Errorf("%s cannot be used, moved to %s: %w", v.path(fileNotices), aside, err)
}

func parseNotices(data []byte, id nstance.InstanceID) ([]savedNotice, error) {
	var f noticeFile
	switch err := json.Unmarshal(data, &f); {
	case err != nil:
		return nil, nstance.Errorf(nstance.Invalid, "not a file of notices: %w", err)
	case f.Version != noticeFileVersion:
		return nil, nstance.Errorf(nstance.Invalid, "version %d, not %d", f.Version, noticeFileVersion)
	case f.Instance != id:
		return nil, nstance.Errorf(nstance.Invalid, "notices of another instance")
	case len(f.Notices) > wire.MaxNotices:
		return nil, nstance.Errorf(nstance.Invalid, "%d notices", len(f.Notices))
	}
	seen := map[string]bool{}
	for i := range f.Notices {
		n := &f.Notices[i].Notice
		n.EventID, n.Action, n.Source = wire.Text(n.EventID), wire.Text(n.Action), wire.Text(n.Source)
		if n.EventID == "" || seen[n.EventID] {
			return nil, nstance.Errorf(nstance.Invalid, "notice %d has no event ID of its own", i)
		}
		seen[n.EventID] = true
	}
	return f.Notices, nil
}

// saveNotices replaces the file. Its mode is 0600.
func (v identityDir) saveNotices(id nstance.InstanceID, notices []savedNotice) error {
	data, err := json.Marshal(noticeFile{Version: noticeFileVersion, Instance: id, Notices: notices})
	if err != nil {
		return err
	}
	return pki.WriteFile(v.path(fileNotices), append(data, '\n'))
}

// restoreNotices loads the notices of an earlier process. A detector that cannot
// continue with them finds those that still stand by itself.
func (a *Agent) restoreNotices() {
	if _, can := a.o.Detector.(resumer); a.o.Detector != nil && !can {
		return
	}
	saved, err := a.certs.identityDir.loadNotices(a.o.InstanceID)
	if err != nil {
		a.o.Log.Error("notices of the last run are lost: the metadata service is read anew", "code", nstance.CodeOf(err), "err", err)
		a.setNoticesError(err)
	}
	if len(saved) > 0 {
		a.o.Log.Info("notices of the last run restored", "notices", len(saved))
		a.mail.do(func(o *outbox) { o.restore(saved, a.mail.now()) })
		signal(a.mail.noticed)
	}
}

// keepNotices writes the file after each change until ctx ends. Sending a notice does
// not wait for it.
func (a *Agent) keepNotices(ctx context.Context) {
	var (
		written []byte
		retry   <-chan time.Time
		failed  bool
	)
	if a.mail.isEmpty() {
		written = []byte("[]") // there is no file, or one without notices
	}
	for {
		var notices []savedNotice
		a.mail.do(func(o *outbox) { notices = o.saved() })
		present, _ := json.Marshal(notices) // of texts and times
		if retry = nil; string(present) != string(written) {
			err := a.certs.identityDir.saveNotices(a.o.InstanceID, notices)
			if err == nil {
				written = present
			} else {
				retry = time.After(saveRetryPause)
				if !failed {
					a.o.Log.Error("notices cannot be saved: a restart of the agent forgets them", "code", nstance.CodeOf(err), "err", err)
				}
			}
			failed = err != nil
			a.setNoticesError(err)
		}
		select {
		case <-ctx.Done():
			return
		case <-a.mail.unsaved:
		case <-retry:
		}
	}
}

func (a *Agent) setNoticesError(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.noticesError = err
}
