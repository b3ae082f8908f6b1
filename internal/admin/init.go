package admin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/internal/validate"
	"github.com/nstance-go/nstance/internal/vault"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/lease"
	"github.com/nstance-go/nstance/storage/secret"
)

// A ClusterInit is what cluster init prints.
type ClusterInit struct {
	Cluster nstance.ClusterID `json:"cluster"`
	Made    []string          `json:"made"`           // objects in storage that were made, or would be; none: all were there
	Since   time.Time         `json:"since,omitzero"` // if none were made: when the oldest of the keys was
	Keys    storedKeys        `json:"keys"`           // as they are now; none in a dry run that would make some
	DryRun  bool              `json:"dry_run"`
}

// An initRequest holds the flags of cluster init.
type initRequest struct {
	storageAccess
	cluster string
	shards  []string
	dryRun  bool
}

func initCommand(env environment, open openStore) *cobra.Command {
	var f initRequest
	cmd := &cobra.Command{
		Use: "init --storage URL --cluster ID", Short: "Make the cluster's authorities, keys and shards in storage",
		Long: "Make the cluster's authorities and keys in storage, after a check that it honours conditional writes, and a\n" +
			"released lease for each --shard, so that its first server leads at once and not after a minute. Existing\n" +
			"objects are not changed. The first server and cluster nonce make missing keys too. If the storage belongs to\n" +
			"another cluster, the exit code is 6.",
		Args: arguments(),
	}
	f.flags(cmd, open)
	f.keyFlags(cmd, env, "")
	cmd.Flags().StringVar(&f.cluster, "cluster", "", "ID of the cluster")
	cmd.Flags().StringSliceVar(&f.shards, "shard", nil, "ID of a shard that no server has led yet; may be repeated")
	dryRunFlag(cmd, &f.dryRun)
	out := newOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		done, err := initCluster(cmd, &f)
		return out.result(done, err, func(t *table) { writeClusterInit(t, done) })
	}
	return cmd
}

func initCluster(cmd *cobra.Command, f *initRequest) (ClusterInit, error) {
	ctx := cmd.Context()
	id := nstance.ClusterID(f.cluster)
	err := errors.Join(f.check(), validate.Name("--cluster", id))
	for _, shard := range f.shards {
		err = errors.Join(err, validate.Shard("--shard", nstance.ShardID(shard)))
	}
	if err != nil {
		return ClusterInit{}, err
	}
	box, err := f.box()
	if err != nil {
		return ClusterInit{}, err
	}
	var d *recordingVault
	err = stderrOf(cmd).slow("looking for keys in storage", func() (err error) {
		if err = f.belongs(ctx, id); err == nil {
			d, err = previewKeys(ctx, f.storageAccess, box)
		}
		if err == nil {
			err = d.ring.Check(id)
		}
		return err
	})
	if err == nil && len(d.made) > 0 && !f.dryRun {
		err = stderrOf(cmd).slow("making keys in storage", func() error {
			store, err := f.open(ctx)
			if err == nil {
				d, err = makeKeys(ctx, store, box, true)
			}
			if err == nil {
				err = d.ring.Claim(ctx, id, "") // a server says where it is
			}
			return err
		})
	}
	if err == nil {
		err = prepareShards(cmd, f, d)
	}
	if err != nil {
		return ClusterInit{}, err
	}
	return d.initRequest(id, f.dryRun), nil
}

// prepareShards writes a released lease for each new shard.
func prepareShards(cmd *cobra.Command, f *initRequest, d *recordingVault) error {
	ctx := cmd.Context()
	if len(f.shards) == 0 {
		return nil
	}
	return stderrOf(cmd).slow("preparing shards in storage", func() error {
		store, err := f.openUnless(ctx, f.dryRun)
		for i := 0; err == nil && i < len(f.shards); i++ {
			prepare := lease.Prepare
			if f.dryRun {
				prepare = records.Preparable
			}
			shard := nstance.ShardID(f.shards[i])
			var fresh bool
			fresh, err = prepare(ctx, store, shard)
			if fresh && err == nil {
				d.leases = append(d.leases, layout.LeaseKey(shard))
			}
		}
		return err
	})
}

// belongs fails with Conflict if a configuration in the storage names another
// cluster.
func (d *storageAccess) belongs(ctx context.Context, id nstance.ClusterID) error {
	is, shard, err := d.clusterIn(ctx, id)
	if err != nil || is == "" {
		return err
	}
	return fault(nstance.Conflict, nil, "name that cluster, or another storage",
		fmt.Sprintf("this storage is of cluster %s, as the configuration of shard %s says", is, shard))
}

// clusterIn returns a cluster, other than the given one, that a configuration in the
// storage names, and its shard; empty: none.
func (d *storageAccess) clusterIn(ctx context.Context, other nstance.ClusterID) (nstance.ClusterID, nstance.ShardID, error) {
	store, err := d.readOrNothing(ctx)
	if err != nil {
		return "", "", err
	}
	shards, err := shardsIn(ctx, store)
	if err != nil {
		return "", "", err
	}
	for _, shard := range shards {
		conf, err := configOf(ctx, store, shard)
		if errors.Is(err, nstance.NotFound) || errors.Is(err, nstance.Invalid) { // it names no cluster
			continue
		}
		if err != nil {
			return "", "", err
		}
		if conf.Cluster.ID != other {
			return conf.Cluster.ID, shard, nil
		}
	}
	return "", "", nil
}

func writeClusterInit(t *table, f ClusterInit) {
	for _, key := range f.Made {
		if f.DryRun {
			t.say("%s would be made", key)
		} else {
			t.say("%s made", key)
		}
	}
	switch {
	case len(f.Made) == 0:
		t.say("cluster %s: authorities and keys exist since %s, nothing was changed", f.Cluster, stamp(f.Since))
	case f.DryRun:
		return
	default:
		t.say("cluster %s: authorities and keys are made", f.Cluster)
	}
	t.say("")
	writeKeys(t, f.Keys, unknownHolders)
}

// A recordingVault is a vault that records what is made in it. It is for one
// goroutine.
type recordingVault struct {
	keyring.Vault
	ring      *keyring.Keyring
	attempted map[string][]byte // by name
	made      []string          // keys in storage, in the order in which they were made

	leases []string // of new shards
}

// previewKeys finds out what makeKeys would make, and changes nothing.
func previewKeys(ctx context.Context, at storageAccess, box *secret.Box) (*recordingVault, error) {
	store, err := at.readOrNothing(ctx)
	if err != nil {
		return nil, err
	}
	return openRecording(ctx, newDryVault(vault.New(store, box)))
}

// makeKeys makes the cluster's missing authorities and keys. A store without any is
// probed first, as servers do at start.
func makeKeys(ctx context.Context, store storage.Store, box *secret.Box, probe bool) (*recordingVault, error) {
	if probe {
		if err := storage.Probe(ctx, store); err != nil {
			return nil, err
		}
	}
	return openRecording(ctx, vault.New(store, box))
}

func openRecording(ctx context.Context, v keyring.Vault) (_ *recordingVault, err error) {
	d := &recordingVault{Vault: v, attempted: map[string][]byte{}}
	d.ring, err = keyring.OpenKeyring(ctx, d, time.Now)
	return d, err
}

// initRequest returns what has been made.
func (d *recordingVault) initRequest(id nstance.ClusterID, dryRun bool) ClusterInit {
	f := ClusterInit{Cluster: id, Made: slices.Concat([]string{}, d.made, d.leases), DryRun: dryRun}
	if dryRun && len(d.made) > 0 {
		return f // the keys of a preview are not real
	}
	f.Keys = newStoredKeys(d.ring.Set)
	if len(d.made) == 0 {
		oldest := slices.MinFunc(f.Keys, func(a, b *apiv1.Key) int { return a.GetCreatedAt().AsTime().Compare(b.GetCreatedAt().AsTime()) })
		f.Since = wire.TimeOf(oldest.GetCreatedAt())
	}
	return f
}

// Get implements keyring.Vault. A writer reads back what it attempted to store:
// the stored object is its own only if the content is the same.
func (d *recordingVault) Get(ctx context.Context, name string) ([]byte, error) {
	data, err := d.Vault.Get(ctx, name)
	if own, attempted := d.attempted[name]; attempted && err == nil && bytes.Equal(data, own) {
		d.recordMade(vault.Key(name))
	}
	return data, err
}

func (d *recordingVault) recordMade(key string) {
	if !slices.Contains(d.made, key) {
		d.made = append(d.made, key)
	}
}

// PutIfAbsent implements keyring.Vault.
func (d *recordingVault) PutIfAbsent(ctx context.Context, name string, data []byte) error {
	d.attempted[name] = data
	return d.Vault.PutIfAbsent(ctx, name, data)
}

// UpdateCatalogue implements keyring.Vault.
func (d *recordingVault) UpdateCatalogue(ctx context.Context, fn func(*keyring.Catalogue) error) (keyring.Catalogue, error) {
	changed := false
	c, err := d.Vault.UpdateCatalogue(ctx, func(c *keyring.Catalogue) error {
		before := c.Sets
		err := fn(c)
		changed = err == nil && !reflect.DeepEqual(before, c.Sets)
		return err
	})
	if err == nil && changed {
		d.recordMade(layout.ClusterLeaseKey)
	}
	return c, err
}
