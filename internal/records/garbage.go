package records

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"regexp"
	"strings"
	"time"

	"github.com/tailscale/hujson"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/storage"
)

const (
	// garbageAge is how long an object must have been unnamed, and unused by this
	// term, before it is deleted.
	garbageAge = time.Hour
	// maxDeletes bounds the deletions of one pass.
	maxDeletes = 200
	// deleteTimeout bounds one deletion. One without an answer may land until
	// lateDelete after it was sent: the object is not written before that.
	deleteTimeout = 20 * time.Second
	lateDelete    = time.Minute
)

// CollectGarbage deletes the definitions, fetched user data and bootstrap data of this
// shard that no document has named, and this term has not used, for an hour. It
// returns how many it deleted, by the first part of their keys. Any error ends
// the pass, and an object or record that cannot be read, or is of a newer
// format, keeps everything. Only the shard's leader calls it, every few minutes
// to half an hour, one call at a time. docs/design/014-cleaning.md
func (r *Records) CollectGarbage(ctx context.Context) (removed map[string]int, err error) {
	unnamed, err := r.findUnnamed(ctx)
	if err != nil {
		clear(r.contents.unnamedSince)
		return nil, err
	}
	removed = map[string]int{}
	for _, entry := range unnamed[:min(len(unnamed), maxDeletes)] {
		if !r.contents.startDelete(entry.Key) {
			continue
		}
		if err := r.deleteContent(ctx, entry); err != nil {
			return removed, err
		}
		delete(r.contents.unnamedSince, entry.Key) // if it is written again, its hour begins anew
		kind, _, _ := strings.Cut(entry.Key, "/")
		removed[kind+"/"]++
		r.log.Debug("unreferenced object deleted", "key", entry.Key)
	}
	return removed, nil
}

// findUnnamed returns the objects that were unnamed at each pass of the last hour.
// They are listed before the documents that may name them are read.
func (r *Records) findUnnamed(ctx context.Context) (due []storage.Entry, err error) {
	began := r.contents.elapsed()
	var stored []storage.Entry
	for _, prefix := range []string{layout.DefinitionPrefix(r.shard), layout.FetchedPrefix(r.shard), layout.BootstrapPrefix + string(r.shard) + "/"} {
		for entry, err := range r.store.List(ctx, prefix, "") {
			if err != nil {
				return nil, err
			}
			stored = append(stored, entry)
		}
	}
	if len(stored) == 0 {
		clear(r.contents.unnamedSince)
		return nil, nil
	}
	named, err := r.namedDigests(ctx)
	if err != nil {
		return nil, err
	}
	since := map[string]time.Duration{}
	for _, entry := range stored {
		digest := entry.Key[strings.LastIndexByte(entry.Key, '/')+1:]
		if named[digest] || !digestPattern.MatchString(digest) {
			continue
		}
		first, seen := r.contents.unnamedSince[entry.Key]
		if !seen {
			first = r.contents.elapsed()
		}
		since[entry.Key] = first
		if began-first >= garbageAge {
			due = append(due, entry)
		}
	}
	r.contents.unnamedSince = since
	return due, nil
}

// digestPattern matches a digest in any field, unknown ones included.
var digestPattern = regexp.MustCompile(`\b[0-9a-f]{64}\b`)

// namedDigests reads the documents that name definitions, fetched user data and bootstrap
// data:
// the shard's state, groups and resolved addresses, and its instance records as
// they are stored, including late writes of former leaders.
func (r *Records) namedDigests(ctx context.Context) (map[string]bool, error) {
	named := map[string]bool{}
	for _, key := range []string{layout.StateKey(r.shard), layout.GroupsKey(r.shard), layout.ResolvedKey(r.shard)} {
		obj, err := r.store.Get(ctx, key)
		if errors.Is(err, nstance.NotFound) {
			continue
		}
		if err == nil {
			err = checkDocument(key, obj.Data)
		}
		if err != nil {
			return nil, err
		}
		for _, digest := range digestPattern.FindAll(obj.Data, -1) {
			named[string(digest)] = true
		}
	}
	records := New(r.store, r.shard, &Options{Width: 8, Log: slog.New(slog.DiscardHandler)})
	list, problems, err := records.Load(ctx)
	if len(problems) > 0 {
		err = problems[0].Err
	}
	for i := 0; err == nil && i < len(list); i++ {
		err = Understood(list[i].Ref(r.shard).Key(), list[i].Format)
		named[list[i].Definition] = true
		if !list[i].Registered() { // its user data may be rendered again
			named[list[i].BootstrapData] = true
		}
	}
	return named, err
}

// checkDocument fails with Invalid when a document is damaged or of a newer format,
// minor ones included.
func checkDocument(key string, data []byte) error {
	data, err := hujson.Standardize(bytes.Clone(data))
	if err != nil {
		return unreadable(key, "%w", err)
	}
	var h Header
	if err := json.Unmarshal(data, &h); err != nil {
		return unreadable(key, "%w", err)
	}
	if h.Format == "" && strings.HasSuffix(key, ".jsonc") {
		return nil
	}
	return Understood(key, h.Format)
}

// deleteContent deletes one object. A missing object is success.
func (r *Records) deleteContent(ctx context.Context, entry storage.Entry) error {
	err := r.fence.allow(entry.Key, 0)
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, deleteTimeout)
		defer cancel()
		err = r.store.DeleteIfMatch(ctx, entry.Key, entry.Version)
		if err != nil && !errors.Is(err, nstance.NotFound) && !definite(err) {
			return err // the deletion may land: the object stays blocked
		}
	}
	r.contents.endDelete(entry.Key)
	if errors.Is(err, nstance.NotFound) {
		return nil
	}
	return err
}
