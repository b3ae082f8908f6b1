package server

import (
	"context"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/registration"
	"github.com/nstance-go/nstance/server/files"
)

// Bounds on one transfer.
const (
	chunkSize    = 64 << 10         // bytes of a file in one message
	answerWithin = 30 * time.Second // longest silence of an agent that was asked or announced something
	stallAfter   = 30 * time.Second // longest pause between two pieces of a file
	applyWithin  = 3 * time.Minute  // longest time to put files to use, command and all
	firstRetry   = 10 * time.Second // after files could not be made or put to use; doubles
	maxRetry     = 10 * time.Minute
)

// A filePhase says what a session waits for.
type filePhase int

const (
	filesIdle     filePhase = iota
	filesAsked              // the agent for its keys
	filesBegun              // the agent to say what it lacks
	filesSending            // the agent to read
	filesApplying           // the agent to put all to use
)

// sessionFiles is how far a machine's files have come. It is guarded by the
// session's lock.
type sessionFiles struct {
	phase    filePhase
	since    time.Time // of the phase, or of the last piece sent
	looking  bool      // a worker is at it
	queued   bool      // it is to be looked at
	parked   bool      // until there is memory for its files
	known    bool      // the agent has said what it has
	settling bool      // the next report may have been put together before the set was in place
	hash     string    // that it has recorded
	have     []nstance.FileStatus
	slot     *kitSlot
	kit      *files.Kit // that set was made from
	set      *files.Set // on its way, or in place; nil: not made yet
	own      int64      // bytes reserved for it
	keys     map[string]files.Key
	fresh    bool // keys have just been told
	withheld bool // set is not sent: the group is frozen
	failures int  // in a row
	retryAt  time.Time
	transfer *transfer
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

// wantFiles has the session looked at.
func (s *session) wantFiles() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queueFiles()
}

// queueFiles needs the lock.
func (s *session) queueFiles() {
	if f := &s.files; f.known && !f.queued && !f.parked {
		f.queued = true
		s.term.files.look(s)
	}
}

// filesReported compares what a report says with what the machine should have.
// That is all that a report of a machine in order costs. It returns the report
// with its files as they are known to be: one that was written before a set was
// in place may arrive after.
func (s *session) filesReported(r nstance.Report) nstance.Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := &s.files
	stale := f.settling && f.set != nil && !f.set.InPlace(r.ConfigHash, r.Files)
	if f.settling = false; stale {
		r.ConfigHash, r.Files = f.hash, f.have
		return r // the next one says how it is
	}
	f.known, f.hash, f.have = true, r.ConfigHash, r.Files
	if f.phase == filesIdle && f.due(s.now(), time.Now()) {
		s.queueFiles()
	}
	return r
}

func (s *session) now() time.Time { return s.term.server.opts.Now() }

// due reports whether there is something to look at: now is what certificates
// go by, mono what waiting goes by.
func (f *sessionFiles) due(now, mono time.Time) bool {
	switch {
	case f.set == nil:
		return !mono.Before(f.retryAt)
	case f.slot.now.Load().Kit != f.kit || f.expired(now):
		return true
	case f.withheld:
		return false // until the thaw
	}
	return !mono.Before(f.retryAt) && !f.inPlace(f.set)
}

func (f *sessionFiles) expired(now time.Time) bool {
	return f.set != nil && !f.set.Renew.IsZero() && !now.Before(f.set.Renew)
}

// inPlace reports whether the machine needs nothing of a set. One that has never
// heard of files, and needs none, is left alone: what is not known is no drift.
func (f *sessionFiles) inPlace(set *files.Set) bool {
	return set.InPlace(f.hash, f.have) || f.hash == "" && len(set.Files)+len(f.have) == 0
}

// lookAtFiles does what is due: it makes the machine's set and announces it if
// something of it is lacking. In a frozen group that waits for the thaw, unless
// only certificates are to be renewed, which keep the machine serving. One worker at a time is at a session.
func (s *session) lookAtFiles(ctx context.Context, k *fileKeeper) {
	s.mu.Lock()
	f := &s.files
	f.queued, f.parked = false, false
	if f.looking || s.ctx.Err() != nil {
		f.queued = f.looking && s.ctx.Err() == nil // whoever is at it looks again
		s.mu.Unlock()
		return
	}
	f.looking = true
	s.mu.Unlock()
	m, err := k.find(ctx, s.id)
	if err == nil {
		s.makeFiles(ctx, k, m)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	f.looking = false
	if err != nil {
		f.failed()
	}
	if f.queued && s.ctx.Err() == nil {
		k.look(s)
	}
}

func (s *session) makeFiles(ctx context.Context, k *fileKeeper, m machineKit) {
	s.mu.Lock()
	f := &s.files
	if f.phase == filesApplying || f.phase != filesIdle && f.kit == m.made.Kit && !f.fresh {
		s.mu.Unlock() // what comes of it will be looked at
		return
	}
	s.dropFiles()
	f.withheld = false
	f.slot, f.kit = m.slot, m.made.Kit
	if names := f.kit.Keys(); len(names) > 0 && !f.fresh && (f.expired(s.now()) || !f.knowsKeys(names)) {
		f.phase, f.since = filesAsked, time.Now()
		s.put(&apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_FileKeysRequest{FileKeysRequest: &apiv1.FileKeysRequest{Names: names}}})
		s.mu.Unlock()
		return
	}
	f.fresh = false
	keys := f.keys
	s.mu.Unlock()

	set := f.kit.Set(ctx, m.machine, keys, k.authority(m), s.now())

	s.mu.Lock()
	defer s.mu.Unlock()
	f.hold(set)
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
	if f.parked = !k.take(s, set.Own); f.parked {
		f.set = nil
		return
	}
	f.own = set.Own
	f.phase, f.since = filesBegun, time.Now()
	s.put(beginMessage(set))
}

// knowsKeys reports whether the agent has told of each key.
func (f *sessionFiles) knowsKeys(names []string) bool {
	for _, name := range names {
		if k, ok := f.keys[name]; !ok || k.Err != nil {
			return false
		}
	}
	return true
}

// hold remembers the certificates of a set, so that the next set has them, too.
func (f *sessionFiles) hold(set *files.Set) {
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

// dropFiles ends what is under way. It needs the lock.
func (s *session) dropFiles() {
	f := &s.files
	f.phase, f.transfer = filesIdle, nil
	if f.set != nil {
		f.set.Drop()
	}
	s.term.files.give(f.own)
	f.own = 0
}

// failed makes the next attempt wait, longer each time.
func (f *sessionFiles) failed() {
	f.retryAt = time.Now().Add(min(firstRetry<<min(f.failures, 10), maxRetry))
	f.failures++
}

// fileKeys takes the keys that the agent has. Each must prove that it is there.
func (s *session) fileKeys(m *apiv1.FileKeys) {
	keys := map[string]files.Key{}
	for _, w := range m.GetKeys()[:min(len(m.GetKeys()), nstance.MaxCertificates)] {
		keys[w.GetName()] = keyOf(w)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := &s.files; f.phase == filesAsked {
		f.keys, f.fresh = keys, true
		s.queueFiles()
	}
}

func keyOf(w *apiv1.FileKey) (k files.Key) {
	if w.GetError() != "" {
		k.Err = nstance.Errorf(nstance.Unavailable, "the machine has no key: %s", wire.Text(w.GetError()))
		return k
	}
	k.Public, k.Err = registration.ParseCSR(w.GetCsr())
	if len(w.GetCertificate()) <= chunkSize {
		k.Certificate = w.GetCertificate()
	}
	return k
}

// filesWanted begins to send what the agent lacks.
func (s *session) filesWanted(m *apiv1.FilesWanted) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := &s.files
	if f.phase != filesBegun || m.GetHash() != f.set.Hash {
		return // to an announcement that another has replaced
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

// filesSent takes note of a piece, or of the commit, that is about to be sent.
// It needs the lock.
func (s *session) filesSent(last bool) {
	f := &s.files
	f.since = time.Now()
	if last {
		s.dropFiles()
		f.phase = filesApplying
	}
}

// filesApplied takes what became of a set.
func (s *session) filesApplied(m *apiv1.FilesApplied) {
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
	if f.settling = placed; placed {
		f.failures, f.retryAt = 0, time.Time{}
		if f.set.Complete() {
			f.hash = f.set.Hash
		}
	} else {
		f.failed()
	}
	if f.due(s.now(), time.Now()) {
		s.queueFiles()
	}
	hash, lacks := f.set.Hash, f.set.Errors()
	now := nstance.FilesReported{ID: s.id, ConfigHash: f.hash, Files: f.have, Error: wire.Text(m.GetError())}
	s.mu.Unlock()
	s.term.reconciler.Observe(now)
	s.term.filesApplied(s, hash, placed, lacks, now.Error)
}

// checkFiles looks at what time alone has brought about, and returns the kit
// that the session uses.
func (s *session) checkFiles() *kitSlot {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := &s.files
	waited := time.Since(f.since)
	switch {
	case f.phase == filesSending && waited > stallAfter:
		s.cancel(errSlow)
	case f.phase == filesApplying && waited > applyWithin, (f.phase == filesAsked || f.phase == filesBegun) && waited > answerWithin:
		s.dropFiles()
		f.set = nil
		f.failed()
	case f.phase == filesIdle && f.known && f.due(s.now(), time.Now()):
		s.queueFiles()
	}
	return f.slot
}

// endFiles gives back what the session held.
func (s *session) endFiles() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropFiles()
}

// filesApplied journals what became of a machine's files.
func (t *term) filesApplied(s *session, hash string, placed bool, lacks, trouble string) {
	e := nstance.Event{
		Type: nstance.EventFilesApplied, Time: t.server.opts.Now().UTC(), Instance: s.id, Tenant: s.group.Tenant, Group: s.group.Group,
		Reason: hash, Error: trouble,
	}
	if !placed {
		e.Type = nstance.EventFilesFailed
	} else if lacks != "" {
		e.Error = wire.Text(lacks)
	}
	t.journal(e)
}
