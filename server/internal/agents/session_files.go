package agents

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/filelimit"
	"github.com/nstance-go/nstance/internal/files"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/internal/wire"
)

// Bounds on one transfer.
const (
	chunkSize     = 64 << 10         // bytes of a file in one message
	answerTimeout = 30 * time.Second // of an agent that was sent a request or an announcement
	pieceTimeout  = 30 * time.Second // between two pieces of a file
	applyTimeout  = 3 * time.Minute  // including the command
	firstRetry    = 10 * time.Second // after files could not be made or applied; doubles
	lastRetry     = 10 * time.Minute
)

// A filePhase is what a session waits for.
type filePhase int

const (
	filesIdle     filePhase = iota
	filesAsked              // the agent's keys
	filesBegun              // which contents the agent lacks
	filesSending            // until all pieces are sent
	filesApplying           // the outcome
)

// sessionFiles is the state of a machine's files. It is guarded by the session's lock.
type sessionFiles struct {
	phase       filePhase
	since       time.Time // of the phase, or of the last piece sent
	working     bool      // a worker checks it
	queued      bool
	parked      bool   // until there is memory for its files, or their kit
	known       bool   // the agent has reported what it has
	justApplied bool   // the next report may be older than the set
	hash        string // recorded by the agent
	have        []nstance.FileStatus
	slot        *kitSlot
	kit         *files.Kit // that set was made from
	set         *files.Set // being sent, or in place; nil: not made yet
	own         int64      // bytes reserved for it
	keys        map[string]files.Key
	keysFresh   bool // just received
	withheld    bool // set is not sent: the group is frozen
	ended       bool // with the session: nothing is reserved any more
	failures    int  // in a row
	retryAt     time.Time
	transfer    *transfer
}

// A transfer is what remains to be sent of a set.
type transfer struct {
	set     *files.Set
	digests []string
	offset  int
}

// next returns the next message; last says that it is the commit.
func (t *transfer) next() (m *apiv1.ConnectResponse, last bool) {
	for len(t.digests) > 0 {
		digest := t.digests[0]
		data, _ := t.set.Content(digest)
		if t.offset >= len(data) {
			t.digests, t.offset = t.digests[1:], 0
			continue
		}
		piece := data[t.offset:min(t.offset+chunkSize, len(data))]
		m := &apiv1.FileChunk{Digest: digest, Offset: int64(t.offset), Data: piece}
		t.offset += len(piece)
		return &apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_FileChunk{FileChunk: m}}, false
	}
	return &apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_FilesCommit{FilesCommit: &apiv1.FilesCommit{Hash: t.set.Hash}}}, true
}

// wantFiles queues the session for a check.
func (s *session) wantFiles() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queueFiles()
}

// queueFiles needs the lock.
func (s *session) queueFiles() {
	if f := &s.files; f.known && !f.queued && !f.parked {
		f.queued = true
		s.agents.files.enqueue(s)
	}
}

// filesReported compares a report with what the machine should have, which is all
// that the report of a machine with its files costs. It returns the report with its
// files as they are known to be: a report that was written before a set was applied
// may arrive after.
func (s *session) filesReported(r nstance.Report) nstance.Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := &s.files
	stale := f.justApplied && f.set != nil && !f.set.InPlace(r.ConfigHash, r.Files)
	if f.justApplied = false; stale {
		r.ConfigHash, r.Files = f.hash, f.have
		return r // the next report is newer
	}
	f.known, f.hash, f.have = true, r.ConfigHash, r.Files
	if f.phase == filesIdle && f.due(s.agents.Now(), time.Now()) {
		s.queueFiles()
	}
	return r
}

// due reports whether the files need a check: now is the wall clock, for
// certificates; mono is the monotonic one, for retries.
func (f *sessionFiles) due(now, mono time.Time) bool {
	switch {
	case f.set == nil:
		return !mono.Before(f.retryAt)
	case f.slot.dropped.Load() || f.slot.now.Load().Kit != f.kit || f.expired(now):
		return true
	case f.withheld:
		return false // until the thaw
	}
	return !mono.Before(f.retryAt) && !f.inPlace(f.set)
}

func (f *sessionFiles) expired(now time.Time) bool {
	return f.set != nil && !f.set.Renew.IsZero() && !now.Before(f.set.Renew)
}

// inPlace reports whether the machine needs nothing of a set. A machine that has
// never reported files and needs none is left alone: unknown is no drift.
func (f *sessionFiles) inPlace(set *files.Set) bool {
	return set.InPlace(f.hash, f.have) || f.hash == "" && len(set.Files)+len(f.have) == 0
}

// checkFiles makes the machine's set and announces it if the machine lacks something
// of it. In a frozen group that waits for the thaw, unless only certificates are to be
// renewed. One worker at a time checks a session.
func (s *session) checkFiles(ctx context.Context, k *fileKeeper) {
	outlived := s.outlived()
	s.mu.Lock()
	f := &s.files
	f.queued, f.parked = false, false
	if f.working || outlived || s.ctx.Err() != nil {
		f.queued = f.working && s.ctx.Err() == nil // that worker checks again
		s.mu.Unlock()
		return
	}
	f.working = true
	s.mu.Unlock()
	m, err := k.find(ctx, s)
	if err == nil {
		s.makeFiles(ctx, k, m)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	f.working = false
	awaits := errors.Is(err, errKitAwaited)
	if err != nil && !awaits {
		f.failed()
	}
	if f.queued && s.ctx.Err() == nil {
		k.enqueue(s)
	} else {
		f.parked = awaits || f.parked
	}
}

func (s *session) makeFiles(ctx context.Context, k *fileKeeper, m machineKit) {
	s.mu.Lock()
	f := &s.files
	if f.ended || f.phase == filesApplying || f.phase != filesIdle && f.kit == m.made.Kit && !f.keysFresh {
		s.mu.Unlock() // its outcome is checked
		return
	}
	s.dropFiles()
	f.withheld = false
	f.slot, f.kit = m.slot, m.made.Kit
	if names := f.kit.Keys(); len(names) > 0 && !f.keysFresh && (f.expired(s.agents.Now()) || !f.knowsKeys(names)) {
		f.phase, f.since = filesAsked, time.Now()
		s.queue(&apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_FileKeysRequest{FileKeysRequest: &apiv1.FileKeysRequest{Names: names}}})
		s.mu.Unlock()
		return
	}
	f.keysFresh = false
	keys := f.keys
	s.mu.Unlock()

	set := f.kit.Set(ctx, m.machine, keys, k.authority(m), s.agents.Now())

	s.mu.Lock()
	defer s.mu.Unlock()
	if f.ended {
		set.Drop()
		return
	}
	f.keepCertificates(set)
	f.set = set
	if f.inPlace(set) {
		set.Drop()
		f.failures, f.retryAt = 0, time.Time{}
		return
	}
	if f.withheld = m.frozen && !set.Renews(f.hash, f.have); f.withheld {
		set.Drop()
		return
	}
	if f.parked = !k.reserve(s, set.Own); f.parked {
		f.set = nil
		return
	}
	f.own = set.Own
	f.phase, f.since = filesBegun, time.Now()
	s.queue(beginMessage(set))
}

// knowsKeys reports whether the agent has sent each key.
func (f *sessionFiles) knowsKeys(names []string) bool {
	for _, name := range names {
		if k, ok := f.keys[name]; !ok || k.Err != nil {
			return false
		}
	}
	return true
}

// keepCertificates keeps the certificates of a set for the next one.
func (f *sessionFiles) keepCertificates(set *files.Set) {
	if len(set.Held()) == 0 {
		return
	}
	keys := make(map[string]files.Key, len(f.keys))
	for name, key := range f.keys {
		if held := set.Held()[name]; held != nil {
			key.Certificate = held
		}
		keys[name] = key
	}
	f.keys = keys
}

func beginMessage(set *files.Set) *apiv1.ConnectResponse {
	m := &apiv1.FilesBegin{Hash: set.Hash, PostApply: wire.Command(set.Command)}
	for _, f := range set.Files {
		m.Files = append(m.Files, &apiv1.File{Path: f.Path, Digest: f.Digest, Size: f.Size, Mode: f.Mode, Key: f.Key, Error: wire.Text(f.Error)})
	}
	return &apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_FilesBegin{FilesBegin: m}}
}

// dropFiles ends a transfer. It needs the lock.
func (s *session) dropFiles() {
	f := &s.files
	f.phase, f.transfer = filesIdle, nil
	if f.set != nil {
		f.set.Drop()
	}
	s.agents.files.release(f.own)
	f.own = 0
}

// failed delays the next attempt, longer each time.
func (f *sessionFiles) failed() {
	f.failures++
	f.retryAt = time.Now().Add(sleep.Backoff(f.failures, firstRetry, lastRetry))
}

// handleFileKeys receives the keys that the agent has, each with a proof of
// possession.
func (s *session) handleFileKeys(m *apiv1.FileKeys) {
	keys := map[string]files.Key{}
	for _, w := range m.GetKeys()[:min(len(m.GetKeys()), filelimit.Certificates)] {
		keys[w.GetName()] = keyOf(w)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := &s.files; f.phase == filesAsked {
		f.keys, f.keysFresh = keys, true
		s.queueFiles()
	}
}

func keyOf(w *apiv1.FileKey) (k files.Key) {
	if w.GetError() != "" {
		k.Err = nstance.Errorf(nstance.Unavailable, "the machine has no key: %s", wire.Text(w.GetError()))
		return k
	}
	k.Public, k.Err = keyring.ParseCSR(w.GetCsr())
	if len(w.GetCertificate()) <= chunkSize {
		k.Certificate = w.GetCertificate()
	}
	return k
}

// handleFilesWanted begins to send what the agent lacks.
func (s *session) handleFilesWanted(m *apiv1.FilesWanted) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := &s.files
	if f.phase != filesBegun || m.GetHash() != f.set.Hash {
		return // the answer to an older announcement
	}
	f.phase, f.since = filesSending, time.Now()
	f.transfer = &transfer{set: f.set}
	for _, digest := range m.GetDigests() {
		if _, ok := f.set.Content(digest); ok && !slices.Contains(f.transfer.digests, digest) {
			f.transfer.digests = append(f.transfer.digests, digest)
		}
	}
	s.startSending()
}

// pieceSent records that a piece, or the commit, is about to be sent. It needs the
// lock.
func (s *session) pieceSent(last bool) {
	f := &s.files
	f.since = time.Now()
	if last {
		s.dropFiles()
		f.phase = filesApplying
	}
}

// handleFilesApplied receives the outcome of a set.
func (s *session) handleFilesApplied(m *apiv1.FilesApplied) {
	s.mu.Lock()
	f := &s.files
	f.have = wire.FileStatusesOf(m.GetFiles())
	answers := (f.phase == filesApplying || f.phase == filesSending || f.phase == filesBegun) && m.GetHash() == f.set.Hash
	if !answers {
		s.mu.Unlock()
		return
	}
	s.dropFiles()
	placed := f.set.InPlace(f.set.Hash, f.have)
	if f.justApplied = placed; placed {
		f.failures, f.retryAt = 0, time.Time{}
		if f.set.Complete() {
			f.hash = f.set.Hash
		}
	} else {
		f.failed()
	}
	if f.due(s.agents.Now(), time.Now()) {
		s.queueFiles()
	}
	hash, missing := f.set.Hash, f.set.Errors()
	now := nstance.FilesReported{ID: s.id, ConfigHash: f.hash, Files: f.have, Error: wire.Text(m.GetError())}
	s.mu.Unlock()
	s.agents.shard.Observe(now)
	s.journalFiles(hash, placed, missing, now.Error)
}

// checkFileDeadlines checks what depends on time, and returns the kit that the session
// uses.
func (s *session) checkFileDeadlines() *kitSlot {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := &s.files
	waited := time.Since(f.since)
	switch {
	case f.phase == filesSending && waited > pieceTimeout:
		s.cancel(errSlow)
	case f.phase == filesApplying && waited > applyTimeout, (f.phase == filesAsked || f.phase == filesBegun) && waited > answerTimeout:
		s.dropFiles()
		f.set = nil
		f.failed()
	case f.phase == filesIdle && f.known && f.due(s.agents.Now(), time.Now()):
		s.queueFiles()
	}
	return f.slot
}

// endFiles releases the memory of the session's files.
func (s *session) endFiles() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files.ended = true
	s.dropFiles()
}

// journalFiles journals the outcome of a set. missing says what could not be made of
// it, failure what the agent could not apply.
func (s *session) journalFiles(hash string, placed bool, missing, failure string) {
	e := nstance.Event{
		Type: eventtype.FilesApplied, Time: s.agents.Now().UTC(), Instance: s.id, Tenant: s.group.Tenant, Group: s.group.Group,
		Reason: hash, Error: failure,
	}
	if !placed {
		e.Type = eventtype.FilesFailed
	} else if missing != "" {
		e.Error = wire.Text(missing)
	}
	s.agents.Journal(e)
}
