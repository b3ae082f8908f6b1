package storage

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/tailscale/hujson"

	"github.com/nstance-go/nstance"
)

// naming begins the keys of the documents, one for each shard, that name
// contents: groups' states, groups' definitions, configurations that are in force
// or held, and what addresses stood for. Instance records do, too.
func naming() []string { return []string{"state/", "groups/", "accepted/", "resolved/"} }

// digestLen is the length of a digest, in hexadecimal characters.
const digestLen = 64

// references says of some digests whether anything in a store names them, of any
// shard. What looks like a digest is one, wherever it stands, so that a field
// which is new, or known to another version only, counts as well.
type references map[string]bool

// readReferences reads all that may name contents with these keys. Any doubt is
// an error: what cannot be read, of whatever shard, may name anything, and so may
// what a newer version has written.
func readReferences(ctx context.Context, s Store, keys []string) (references, error) {
	refs := references{}
	for _, key := range keys {
		refs[digestIn(key)] = false
	}
	for _, prefix := range naming() {
		if err := refs.documents(ctx, s, prefix); err != nil {
			return nil, err
		}
	}
	shards, err := Shards(ctx, s)
	if err != nil {
		return nil, err
	}
	for _, shard := range shards {
		if err := refs.records(ctx, s, shard); err != nil {
			return nil, err
		}
	}
	return refs, nil
}

func (r references) documents(ctx context.Context, s Store, prefix string) error {
	for entry, err := range s.List(ctx, prefix, "") {
		if err != nil {
			return err
		}
		obj, err := s.Get(ctx, entry.Key)
		if err == nil {
			err = r.document(entry.Key, obj.Data)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (r references) document(key string, data []byte) (err error) {
	if strings.HasSuffix(key, ".jsonc") {
		if data, err = hujson.Standardize(bytes.Clone(data)); err != nil {
			return unreadable(key, "%w", err)
		}
	}
	var h Header
	if err := json.Unmarshal(data, &h); err != nil {
		return unreadable(key, "%w", err)
	}
	if h.Format != "" || !strings.HasSuffix(key, ".jsonc") {
		if err := Understood(key, h.Format); err != nil {
			return err
		}
	}
	var doc any
	if err := json.Unmarshal(data, &doc); err != nil {
		return unreadable(key, "%w", err)
	}
	r.walk(doc)
	return nil
}

func (r references) walk(v any) {
	switch v := v.(type) {
	case string:
		r.text(v)
	case []any:
		for _, item := range v {
			r.walk(item)
		}
	case map[string]any:
		for name, item := range v {
			r.text(name)
			r.walk(item)
		}
	}
}

// text takes every run of hexadecimal digits that is long enough, in base64 too:
// so configurations are kept.
func (r references) text(s string) {
	r.scan(s)
	if raw, err := base64.StdEncoding.DecodeString(s); err == nil {
		r.scan(string(raw))
	}
}

func (r references) scan(s string) {
	run := 0
	for i := range len(s) {
		if run++; !strings.ContainsRune("0123456789abcdefABCDEF", rune(s[i])) {
			run = 0
		}
		if run < digestLen {
			continue
		}
		digest := strings.ToLower(s[i+1-digestLen : i+1])
		if _, asked := r[digest]; asked {
			r[digest] = true
		}
	}
}

// records takes what a shard's instances name. The records are read through the
// shard's snapshot, so that it costs a list and what has changed since.
func (r references) records(ctx context.Context, s Store, shard nstance.ShardID) error {
	list, problems, err := NewRecords(s, shard, &RecordsOptions{Width: 8}).Load(ctx)
	if err != nil {
		return err
	}
	if len(problems) > 0 {
		return problems[0].Err
	}
	for _, rec := range list {
		if err := Understood(rec.Ref(shard).Key(), rec.Format); err != nil {
			return err
		}
		r.text(rec.Definition)
	}
	return nil
}

// Understood returns nil if this program knows all that an object of that format
// may say, and else an Invalid error. Readers need less: they permit a newer
// minor format.
func Understood(key, format string) error {
	if err := checkFormat(key, format); err != nil {
		return err
	}
	if _, minor, _ := parseFormat(format); minor > formatMinor {
		return &nstance.Error{
			Code: nstance.Invalid, Remedy: "upgrade this program",
			Msg: fmt.Sprintf("%s: format %q is newer than %s: what it means is not all known", key, format, Format),
		}
	}
	return nil
}

// Shards returns the shards that have instance records in a store.
func Shards(ctx context.Context, s Store) ([]nstance.ShardID, error) {
	var shards []nstance.ShardID
	for name, err := range Folders(ctx, s, "instance/") {
		if err != nil {
			return nil, err
		}
		shards = append(shards, nstance.ShardID(name))
	}
	return shards, nil
}
