package backup

import (
	"strings"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/layout"
)

// A part is some of the objects of a storage.
type part struct {
	prefix string
	has    func(key string) bool
}

// contents are the prefixes of what other objects name by digest.
var contents = []string{"definition/", "fetched/", layout.BootstrapPrefix}

// parts returns all objects, in the order in which they are read: the catalogue of keys, the
// rest, and what the rest names.
func parts() []part {
	every := func(string) bool { return true }
	out := []part{
		{layout.ClusterLeaseKey, func(key string) bool { return key == layout.ClusterLeaseKey }},
		{"", func(key string) bool {
			return key != layout.ClusterLeaseKey && !strings.HasPrefix(key, probePrefix) && !hasAnyPrefix(key, contents)
		}},
	}
	for _, prefix := range contents {
		out = append(out, part{prefix, every})
	}
	return out
}

const (
	probePrefix = "probe/" // begins the keys that storage.Probe writes and removes
	leasePrefix = "lease/" // those of the shards' leases and of the catalogue of keys
)

func hasAnyPrefix(key string, prefixes []string) bool {
	for _, prefix := range prefixes {
		if strings.HasPrefix(key, prefix) {
			return true
		}
	}
	return false
}

// grants reports whether an object is what operators and nonces are accepted by: their records,
// the marks of used nonces, and the keys that sign nonces.
func grants(key string) bool {
	name, secret := strings.CutPrefix(key, layout.SecretKey(""))
	return strings.HasPrefix(key, layout.OperatorPrefix) || strings.HasPrefix(key, layout.NonceKey("")) ||
		secret && strings.HasPrefix(name, keyring.Nonces) && strings.HasSuffix(name, ".key")
}

// shardOf returns the shard whose leader writes an object with its epoch; empty: none does.
func shardOf(key string) nstance.ShardID {
	folder, rest, _ := strings.Cut(key, "/")
	name, _, below := strings.Cut(rest, "/")
	if !below {
		name, _, _ = strings.Cut(name, ".")
	}
	shard := nstance.ShardID(name)
	switch {
	case key == layout.ClusterLeaseKey:
		return ""
	case folder == "instance" && below, folder == "lease":
		return shard
	}
	for _, known := range layout.ShardKeys(shard) {
		if key == known {
			return shard
		}
	}
	return ""
}
