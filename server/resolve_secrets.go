package server

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
	"github.com/nstance-go/nstance/internal/vault"
	"github.com/nstance-go/nstance/server/config"
)

// markKey is the vault's name for the key of marks: 32 bytes, made once for the
// cluster. The ending keeps it from being a secret for machines.
const markKey = "mark.key"

// findSecrets reads the secrets that are tracked and marks what it found. A
// mark tells contents apart and, without the key, nothing about them: unlike
// versions of the source's own it stays when the same content is stored again
// or sealed with another key, and it may be in records.
func (v *resolver) findSecrets(ctx context.Context, conf *config.Config, all bool) bool {
	ok := true
	for _, name := range conf.TrackedSecrets() {
		v.mu.Lock()
		was := v.known.Secrets[name]
		looked := v.looked[name]
		v.mu.Unlock()
		if !all && was.Is != "" && time.Since(looked) < conf.Shard.FileRefresh*9/10 {
			continue
		}
		is, err := v.markOf(ctx, name)
		v.note("secret "+name, err)
		if ok = ok && err == nil; err != nil {
			continue
		}
		v.mu.Lock()
		v.looked[name] = time.Now()
		if was.Is != is { // else nothing is written
			v.known.Secrets = with(v.known.Secrets, name, found{is, v.t.server.opts.Now().UTC()})
		}
		v.mu.Unlock()
	}
	return ok
}

func (v *resolver) markOf(ctx context.Context, name string) (string, error) {
	ctx, cancel := v.t.bound(ctx)
	defer cancel()
	data, err := v.secrets.Get(ctx, name)
	if err != nil {
		return "", err
	}
	key, err := v.marking(ctx)
	if err != nil {
		return "", err
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(name + "\x00"))
	mac.Write(data)
	return hex.EncodeToString(mac.Sum(nil)[:16]), nil
}

// marking returns the key of marks, made now if there is none.
func (v *resolver) marking(ctx context.Context) ([]byte, error) {
	if v.key != nil {
		return v.key, nil
	}
	all := vault.New(v.t.server.store, v.t.server.opts.Secrets)
	key, err := all.Get(ctx, markKey)
	if errors.Is(err, nstance.NotFound) {
		if err := v.t.granted.Err(); err != nil {
			return nil, err
		}
		fresh := make([]byte, sha256.Size)
		rand.Read(fresh) // never fails: crypto/rand ends the process instead
		if err := all.PutIfAbsent(ctx, markKey, fresh); err != nil && !errors.Is(err, nstance.Conflict) && !errors.Is(err, nstance.Ambiguous) {
			return nil, err
		}
		key, err = all.Get(ctx, markKey) // whoever's it is
	}
	if err != nil {
		return nil, err
	}
	if len(key) != sha256.Size {
		return nil, nstance.Errorf(nstance.Invalid, "%s is no key: restore it from a backup", vault.Key(markKey))
	}
	v.key = key
	return key, nil
}

// mark puts the marks of tracked secrets into a definition. It needs the lock.
func (v *resolver) mark(d *nstance.Definition) error {
	if !slices.Contains(d.Track, nstance.TrackSecrets) {
		return nil
	}
	marks := map[string]string{}
	for _, f := range d.Files {
		if f.Kind != nstance.FileSecret {
			continue
		}
		is := v.known.Secrets[f.Secret].Is
		if is == "" {
			return v.unknown("secret "+f.Secret, "secret "+f.Secret)
		}
		marks[f.Secret] = is
	}
	d.Secrets = marks
	return nil
}
