package records

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"slices"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/storage"
)

// A shard's snapshot is what a new leader starts from: all records as of one
// moment in one object, so that it reads that and what has changed since, and
// not each record. It is a cache. A record in it is used only if the listing
// shows the same key with the same version. A snapshot that is damaged, of
// another shard or newer than its reader is ignored, and a missing one costs
// time only.
//
// The object is gzip over lines of JSON: a snapshotHead, then a snapshotLine
// for each record.

// maxSnapshot bounds what a snapshot may unpack to, in bytes.
const maxSnapshot = 512 << 20

// snapshotHead is a snapshot's first line.
type snapshotHead struct {
	Header
	Shard    nstance.ShardID `json:"shard"`
	Records  int             `json:"records"`         // lines that follow
	Contents string          `json:"contents"`        // digest of their keys and versions: equal ones need no new snapshot
	Marks    []string        `json:"marks,omitempty"` // some of their keys, evenly apart: what lies between them is listed at the same time
}

// Marks are as far apart as one answer of an object store reaches, which may begin with the
// mark itself. There are few, since not every store can begin a listing elsewhere than at its
// first key (Azure's cannot).
const (
	pageKeys = 999
	maxMarks = 15
)

// snapshotLine is one record.
type snapshotLine struct {
	Key     string          `json:"key"`
	Version storage.Version `json:"version"`
	Record  json.RawMessage `json:"record"`
}

// snapshots is what is known of the snapshot object. Its fields need the lock.
type snapshots struct {
	lock     chan struct{}
	known    bool // the other fields are those of the stored object
	version  storage.Version
	epoch    uint64
	contents string // empty: it is of no use
}

func (s *snapshots) acquire(ctx context.Context) error {
	select {
	case s.lock <- struct{}{}:
		return nil
	case <-ctx.Done():
		return nstance.Errorf(nstance.Unavailable, "wait for the snapshot: %w", ctx.Err())
	}
}

func (s *snapshots) release() { <-s.lock }

// SaveSnapshot stores what memory holds as the shard's snapshot, so that the
// next leader need not read every record, and reports whether it did: without a
// change since the last usable one, nothing is written. Records that are in doubt are
// left out. Fails with Unavailable when the term is over, Conflict
// when another writer was faster, Invalid when the shard is too large for one
// object, and otherwise as storage says; after any of them it may be repeated.
func (r *Records) SaveSnapshot(ctx context.Context) (saved bool, err error) {
	s := &r.snap
	if err := s.acquire(ctx); err != nil {
		return false, err
	}
	defer s.release()
	all := r.confirmedRecords()
	contents := contentsOf(all)
	if !s.known {
		if err := r.readSnapshot(ctx); err != nil {
			return false, err
		}
	}
	if s.contents == contents {
		r.recordSnapshotProblem(nil)
		return false, nil
	}
	if err := r.writeSnapshot(ctx, all, contents); err != nil {
		s.known = false // read before the next attempt: it may have landed
		return false, err
	}
	r.recordSnapshotProblem(nil)
	return true, nil
}

// SnapshotProblem returns why Load did not use the snapshot, nil once one has been written, or
// read. It only slows the next takeover down.
func (r *Records) SnapshotProblem() error {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.snapshotProblem
}

func (r *Records) recordSnapshotProblem(err error) {
	if err != nil {
		r.log.Warn("snapshot not used, records are read one by one", "shard", r.shard, "code", nstance.CodeOf(err), "err", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.snapshotProblem = err
}

// A keyedRecord is a record with its key.
type keyedRecord struct {
	key string
	*held[Instance]
}

// confirmedRecords returns the records in memory that are not in doubt, in the
// order of their keys.
func (r *Records) confirmedRecords() []keyedRecord {
	var all []keyedRecord
	for _, e := range r.entries() {
		if h := e.current.Load(); h != nil && !e.inDoubt.Load() {
			all = append(all, keyedRecord{e.key, h})
		}
	}
	slices.SortFunc(all, func(a, b keyedRecord) int { return cmp.Compare(a.key, b.key) })
	return all
}

func contentsOf(all []keyedRecord) string {
	sum := sha256.New()
	for _, p := range all {
		_, _ = io.WriteString(sum, p.key+" "+string(p.version)+"\n") // a hash never fails
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// readSnapshot reads the stored snapshot. One that cannot be used may be replaced: it is a
// cache.
func (r *Records) readSnapshot(ctx context.Context) error {
	obj, err := r.store.Get(ctx, layout.SnapshotKey(r.shard))
	if errors.Is(err, nstance.NotFound) {
		obj, err = storage.Object{}, nil
	}
	if err != nil {
		return err
	}
	_, _ = r.usableSnapshot(ctx, obj, func([]string) {})
	return nil
}

func (s *snapshots) setKnown(v storage.Version, head snapshotHead) {
	s.known, s.version, s.epoch, s.contents = true, v, head.Epoch, head.Contents
}

func (r *Records) writeSnapshot(ctx context.Context, all []keyedRecord, contents string) error {
	s, key := &r.snap, layout.SnapshotKey(r.shard)
	if err := r.fence.allow(key, s.epoch); err != nil {
		return err
	}
	head := snapshotHead{NewHeader(max(s.epoch, r.fence.epoch)), r.shard, len(all), contents, marksOf(all)}
	data, err := packSnapshot(head, all)
	if err != nil {
		return err
	}
	var v storage.Version
	if s.version == "" {
		v, err = r.store.PutIfAbsent(ctx, key, data)
	} else {
		v, err = r.store.PutIfMatch(ctx, key, data, s.version)
	}
	if err == nil {
		s.setKnown(v, head)
	}
	return err
}

func marksOf(all []keyedRecord) (marks []string) {
	apart := max(pageKeys, len(all)/(maxMarks+1)+1)
	for i := apart - 1; i < len(all); i += apart {
		marks = append(marks, all[i].key)
	}
	return marks
}

func packSnapshot(head snapshotHead, all []keyedRecord) ([]byte, error) {
	var out bytes.Buffer
	zip, _ := gzip.NewWriterLevel(&out, gzip.BestSpeed) // this level exists
	lines := json.NewEncoder(zip)
	lines.SetEscapeHTML(false)
	err := lines.Encode(head)
	for _, p := range all {
		body, bodyErr := Encode(p.value, p.unknown)
		err = errors.Join(err, bodyErr, lines.Encode(snapshotLine{p.key, p.version, body}))
	}
	if err := errors.Join(err, zip.Close()); err != nil {
		return nil, nstance.Errorf(nstance.Internal, "pack the snapshot: %w", err)
	}
	return out.Bytes(), nil
}

// A snapshotText is a snapshot that is being unpacked.
type snapshotText struct {
	head  snapshotHead
	key   string
	text  *io.LimitedReader
	lines *bufio.Reader
}

// openSnapshot decodes the head.
func openSnapshot(shard nstance.ShardID, data []byte) (t snapshotText, err error) {
	t.key = layout.SnapshotKey(shard)
	zip, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return t, unreadable(t.key, "%w", err)
	}
	t.text = &io.LimitedReader{R: zip, N: maxSnapshot}
	t.lines = bufio.NewReaderSize(t.text, 64<<10)
	first, err := t.lines.ReadBytes('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return t, unreadable(t.key, "%w", err)
	}
	if t.head, _, err = Decode[snapshotHead](t.key, first); err == nil && t.head.Shard != shard {
		err = unreadable(t.key, "it belongs to shard %q", t.head.Shard)
	}
	return t, err
}

// each calls use for the line of each record, which may keep it. It fails unless the
// snapshot is whole.
func (t snapshotText) each(use func(line []byte)) error {
	n := 0
	for {
		line, err := t.lines.ReadBytes('\n')
		if len(line) > 0 {
			n++
			use(line)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return unreadable(t.key, "%w", err)
		}
	}
	switch {
	case t.text.N == 0:
		return unreadable(t.key, "it is too large when unpacked")
	case n != t.head.Records:
		return unreadable(t.key, "it has %d records, its head says %d", n, t.head.Records)
	}
	return nil
}
