package groups

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
)

const (
	maxBootstrapData = 64 << 10 // bytes
	maxKnownData     = 64       // of bootstrap data kept in memory
)

// NameBootstrapData returns the name of bootstrap data, by which groups and instances
// refer to it; empty for none. Equal data has equal names, and without the cluster's key
// a name says nothing about the data. Nothing is stored. Fails with Invalid when it is
// too long.
func (g *Groups) NameBootstrapData(ctx context.Context, data []byte) (string, error) {
	if len(data) == 0 {
		return "", nil
	}
	if len(data) > maxBootstrapData {
		return "", nstance.FieldError("bootstrap_data", "use at most 65536 bytes, and fetch the rest at boot", "has %d bytes", len(data))
	}
	key, err := g.resolver.readMarkKey(ctx)
	if err != nil {
		return "", fmt.Errorf("bootstrap data: %w", err)
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte("bootstrap data\x00"))
	mac.Write(data)
	return hex.EncodeToString(mac.Sum(nil)), nil
}

// PutBootstrapData stores bootstrap data under its name, which a group or an instance
// must have within the hour. It may be repeated.
func (g *Groups) PutBootstrapData(ctx context.Context, name string, data []byte) error {
	sealed, err := g.Vault.Seal(layout.BootstrapKey(g.Shard, name), data)
	if err == nil {
		err = g.shard.Records().PutBootstrapData(ctx, name, sealed)
	}
	if err != nil {
		return fmt.Errorf("bootstrap data: %w", err)
	}
	g.rememberData(name, string(data))
	return nil
}

// BootstrapData returns what PutBootstrapData has stored; nothing for an empty name.
// Fails with Invalid when it is not stored, or cannot be opened: then no repetition
// helps.
func (g *Groups) BootstrapData(ctx context.Context, name string) (string, error) {
	if data, known := g.knownData(name); known || name == "" {
		return data, nil
	}
	sealed, err := g.shard.Records().SealedBootstrapData(ctx, name)
	switch {
	case errors.Is(err, nstance.NotFound):
		return "", nstance.FieldError("bootstrap_data", "give it again in a request for the group", "%s is not stored", layout.BootstrapKey(g.Shard, name))
	case err != nil:
		return "", fmt.Errorf("bootstrap data: %w", err)
	}
	data, err := g.Vault.Open(layout.BootstrapKey(g.Shard, name), sealed)
	if err != nil {
		return "", nstance.FieldError("bootstrap_data", "give the server the key that it is sealed with, or give the data again", "%v", err)
	}
	g.rememberData(name, string(data))
	return string(data), nil
}

func (g *Groups) knownData(name string) (string, bool) {
	g.dataMu.Lock()
	defer g.dataMu.Unlock()
	data, known := g.data[name]
	return data, known
}

func (g *Groups) rememberData(name, data string) {
	g.dataMu.Lock()
	defer g.dataMu.Unlock()
	if len(g.data) >= maxKnownData {
		clear(g.data)
	}
	g.data[name] = data
}
