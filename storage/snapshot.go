package storage

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
)

// A shard's snapshot is what a new leader starts from: all records as of one
// moment in one object, so that it reads that and what has changed since, and
// not every record by itself. It is a cache. Nothing in it is believed unless
// the listing shows the same key with the same version; a snapshot that is
// damaged, of another shard or newer than its reader is worth nothing, and a
// missing one costs time only.
//
// The object is gzip over lines of JSON: a snapshotHead, then a snapshotLine
// for each record.

// maxSnapshot bounds what a snapshot may unpack to, in bytes.
const maxSnapshot = 512 << 20

// snapshotHead is a snapshot's first line.
type snapshotHead struct {
	Header
	Shard    nstance.ShardID `json:"shard"`
	Records  int             `json:"records"`  // lines that follow
	Contents string          `json:"contents"` // digest of their keys and versions: equal ones need no new snapshot
}

// snapshotLine is one record.
type snapshotLine struct {
	Key     string          `json:"key"`
	Version Version         `json:"version"`
	Record  json.RawMessage `json:"record"`
}

// snapshots is what is known of the object. Its fields need the turn.
type snapshots struct {
	turn     chan struct{}
	known    bool // whether the rest is what stands there
	version  Version
	epoch    uint64
	contents string
}

func (s *snapshots) take(ctx context.Context) error {
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return nstance.Errorf(nstance.Unavailable, "wait for the snapshot: %w", ctx.Err())
	}
}

func (s *snapshots) give() { <-s.turn }

// SaveSnapshot stores what memory holds as the shard's snapshot, so that the
// next leader need not read every record, and reports whether it did: where
// nothing has changed since the last one, nothing is written. Records that are
// in doubt are left out. Fails with Unavailable when the term is over, Conflict
// when another writer was faster, Invalid when the shard is too large for one
// object, and otherwise as storage says; after any of them it may be repeated.
func (r *Records) SaveSnapshot(ctx context.Context) (saved bool, err error) {
	s := &r.snap
	if err := s.take(ctx); err != nil {
		return false, err
	}
	defer s.give()
	all := r.certain()
	contents := contentsOf(all)
	if !s.known {
		if err := r.lookAtSnapshot(ctx); err != nil {
			return false, err
		}
	}
	if s.contents == contents {
		return false, nil
	}
	if err := r.writeSnapshot(ctx, all, contents); err != nil {
		s.known = false // read before the next attempt: it may have landed
		return false, err
	}
	r.blameSnapshot(nil)
	return true, nil
}

// SnapshotTrouble returns what was wrong with the snapshot that Load found, nil
// once there is a good one. It slows the next takeover down and endangers
// nothing.
func (r *Records) SnapshotTrouble() error {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.snapTrouble
}

func (r *Records) blameSnapshot(err error) {
	if err != nil {
		r.log.Warn("snapshot not used, records are read one by one", "shard", r.shard, "code", nstance.CodeOf(err), "err", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.snapTrouble = err
}

// pinned is a record with its key.
type pinned struct {
	key string
	*held[Instance]
}

// certain returns the records that are known to be as memory has them, in the
// order of their keys.
func (r *Records) certain() []pinned {
	var all []pinned
	for _, e := range r.entries() {
		if h := e.now.Load(); h != nil && !e.doubt.Load() {
			all = append(all, pinned{e.key, h})
		}
	}
	slices.SortFunc(all, func(a, b pinned) int { return cmp.Compare(a.key, b.key) })
	return all
}

func contentsOf(all []pinned) string {
	sum := sha256.New()
	for _, p := range all {
		_, _ = io.WriteString(sum, p.key+" "+string(p.version)+"\n") // a hash takes everything
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// lookAtSnapshot learns what stands there. What cannot be understood may be
// replaced: it is a cache.
func (r *Records) lookAtSnapshot(ctx context.Context) error {
	obj, err := r.store.Get(ctx, SnapshotKey(r.shard))
	if errors.Is(err, nstance.NotFound) {
		obj, err = Object{}, nil
	}
	if err != nil {
		return err
	}
	r.snap.saw(obj.Version, snapshotHead{})
	if pages, err := openSnapshot(r.shard, obj.Data); err == nil {
		r.snap.saw(obj.Version, pages.head)
	}
	return nil
}

func (s *snapshots) saw(v Version, head snapshotHead) {
	s.known, s.version, s.epoch, s.contents = true, v, head.Epoch, head.Contents
}

func (r *Records) writeSnapshot(ctx context.Context, all []pinned, contents string) error {
	s, key := &r.snap, SnapshotKey(r.shard)
	if err := r.fence.allow(key, s.epoch); err != nil {
		return err
	}
	head := snapshotHead{NewHeader(max(s.epoch, r.fence.epoch)), r.shard, len(all), contents}
	data, err := packSnapshot(head, all)
	if err != nil {
		return err
	}
	var v Version
	if s.version == "" {
		v, err = r.store.PutIfAbsent(ctx, key, data)
	} else {
		v, err = r.store.PutIfMatch(ctx, key, data, s.version)
	}
	if err == nil {
		s.saw(v, head)
	}
	return err
}

func packSnapshot(head snapshotHead, all []pinned) ([]byte, error) {
	var out bytes.Buffer
	zip, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	if err != nil {
		return nil, nstance.Errorf(nstance.Internal, "pack the snapshot: %w", err)
	}
	lines := json.NewEncoder(zip)
	lines.SetEscapeHTML(false)
	err = lines.Encode(head)
	for _, p := range all {
		if err != nil {
			break
		}
		var body []byte
		if body, err = Encode(p.value, p.unknown); err == nil {
			err = lines.Encode(snapshotLine{p.key, p.version, body})
		}
	}
	if err = errors.Join(err, zip.Close()); err != nil {
		return nil, nstance.Errorf(nstance.Internal, "pack the snapshot: %w", err)
	}
	return out.Bytes(), nil
}

// A snapshot is one that was found: its head and the lines of its records.
type snapshot struct {
	head  snapshotHead
	lines [][]byte
}

// openSnapshot unpacks data as far as its head says what it is.
func openSnapshot(shard nstance.ShardID, data []byte) (snapshot, error) {
	var s snapshot
	key := SnapshotKey(shard)
	zip, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return s, unreadable(key, "%w", err)
	}
	text, err := io.ReadAll(bufio.NewReader(io.LimitReader(zip, maxSnapshot+1)))
	if err == nil && len(text) > maxSnapshot {
		err = errors.New("it unpacks to too much")
	}
	if err != nil {
		return s, unreadable(key, "%w", err)
	}
	first, rest, _ := bytes.Cut(text, []byte("\n"))
	if s.head, _, err = Decode[snapshotHead](key, first); err != nil {
		return s, err
	}
	if s.head.Shard != shard {
		return s, unreadable(key, "it is of shard %q", s.head.Shard)
	}
	s.lines = slices.Collect(bytes.Lines(rest))
	if len(s.lines) != s.head.Records {
		return s, unreadable(key, "it has %d records, and %d are promised", len(s.lines), s.head.Records)
	}
	return s, nil
}
