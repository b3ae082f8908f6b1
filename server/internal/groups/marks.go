package groups

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/internal/vault"
)

// markKey is the vault's name for the key of marks: 32 bytes, made once for the
// cluster. Files cannot name it: names of their secrets hold no dot.
const markKey = "mark.key"

// findSecrets reads the tracked secrets and marks their contents. A mark tells
// contents apart and, without the key, says nothing about them. Unlike versions of
// the source it stays when the same content is stored again or sealed with another
// key, and it may be in records.
func (r *resolver) findSecrets(conf *config.Config, all bool) (tasks []lookUp) {
	for _, name := range conf.TrackedSecrets() {
		r.mu.Lock()
		before, readAt := r.known.Secrets[name], r.markedAt[name]
		r.mu.Unlock()
		if !all && before.Is != "" && time.Since(readAt) < conf.Shard.FileRefresh*9/10 {
			continue
		}
		tasks = append(tasks, func(ctx context.Context) error {
			is, err := r.markOf(ctx, name)
			if r.setFailure("secret "+name, err); err != nil {
				return err
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			r.markedAt[name] = time.Now()
			if before.Is != is { // else nothing is written
				r.known.Secrets = with(r.known.Secrets, name, found{is, r.groups.Now().UTC()})
			}
			return nil
		})
	}
	return tasks
}

func (r *resolver) markOf(ctx context.Context, name string) (string, error) {
	ctx, cancel := r.groups.Bound(ctx)
	defer cancel()
	data, err := r.groups.Secrets.Get(ctx, name)
	if err != nil {
		return "", err
	}
	key, err := r.readMarkKey(ctx)
	if err != nil {
		return "", err
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(name + "\x00"))
	mac.Write(data)
	return hex.EncodeToString(mac.Sum(nil)[:16]), nil
}

// readMarkKey returns the key of marks, and makes it if there is none.
func (r *resolver) readMarkKey(ctx context.Context) ([]byte, error) {
	r.mu.Lock()
	known := r.markKey
	r.mu.Unlock()
	if known != nil {
		return known, nil
	}
	v := r.groups.Vault
	key, err := v.Get(ctx, markKey)
	if errors.Is(err, nstance.NotFound) {
		if err := r.groups.Check(); err != nil {
			return nil, err
		}
		fresh := make([]byte, sha256.Size)
		rand.Read(fresh) // never fails: crypto/rand ends the process instead
		if err := v.PutIfAbsent(ctx, markKey, fresh); err != nil && !errors.Is(err, nstance.Conflict) && !errors.Is(err, nstance.Ambiguous) {
			return nil, err
		}
		key, err = v.Get(ctx, markKey) // this one, or that of another server
	}
	if err != nil {
		return nil, err
	}
	if len(key) != sha256.Size {
		return nil, nstance.Errorf(nstance.Invalid, "%s is no key: restore it from a backup", vault.Key(markKey))
	}
	r.mu.Lock()
	r.markKey = key
	r.mu.Unlock()
	return key, nil
}

// fillMarks puts the marks of tracked secrets into a definition. It needs the lock.
func (r *resolver) fillMarks(d *nstance.Definition) error {
	if !slices.Contains(d.Track, nstance.TrackSecrets) {
		return nil
	}
	marks := map[string]string{}
	for _, f := range d.Files {
		if f.Kind != nstance.FileSecret {
			continue
		}
		is := r.known.Secrets[f.Secret].Is
		if is == "" {
			return r.unknown("secret "+f.Secret, "secret "+f.Secret)
		}
		marks[f.Secret] = is
	}
	d.Secrets = marks
	return nil
}
