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
	"github.com/nstance-go/nstance/internal/vault"
	"github.com/nstance-go/nstance/registration"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/lease"
	"github.com/nstance-go/nstance/storage/secret"
)

// A Founding is what cluster init prints.
type Founding struct {
	Cluster nstance.ClusterID `json:"cluster"`
	Made    []string          `json:"made"`           // objects in storage that were made, or would be; none: all were there
	Since   time.Time         `json:"since,omitzero"` // if none were made: when the oldest of the keys was
	Keys    []Key             `json:"keys"`           // as they are now; none in a dry run that would make some
	DryRun  bool              `json:"dry_run"`
}

// founding is what cluster init is asked for.
type founding struct {
	depot
	cluster string
	shards  []string
	dryRun  bool
}

func (p *program) initCommand() *cobra.Command {
	var f founding
	cmd := &cobra.Command{
		Use: "init --storage URL --cluster ID", Short: "Make the cluster's authorities, keys and shards in storage",
		Long: "Make the cluster's authorities and keys in storage, after a check that it honours conditional writes, and a\n" +
			"released lease for each --shard, so that its first server leads at once and not after a minute. What is there\n" +
			"already is not changed. The first server, and cluster nonce, make the keys too. A storage of another cluster is\n" +
			"code 6.",
		Args: arguments(),
	}
	f.flags(p, cmd)
	f.keyFlags(cmd, "")
	cmd.Flags().StringVar(&f.cluster, "cluster", "", "ID of the cluster")
	cmd.Flags().StringSliceVar(&f.shards, "shard", nil, "ID of a shard that no server has led yet; may be repeated")
	dryRunFlag(cmd, &f.dryRun)
	out := p.output(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		done, err := p.initialize(cmd.Context(), &f)
		if err != nil {
			return err
		}
		return out.print(done, func(t *table) { t.founding(done) })
	}
	return cmd
}

func (p *program) initialize(ctx context.Context, f *founding) (Founding, error) {
	id := nstance.ClusterID(f.cluster)
	err := errors.Join(f.check(), id.Validate("--cluster"))
	for _, shard := range f.shards {
		err = errors.Join(err, nstance.ShardID(shard).Validate("--shard"))
	}
	if err != nil {
		return Founding{}, err
	}
	box, err := f.keys.Box(p.getenv)
	if err != nil {
		return Founding{}, err
	}
	var d *draft
	err = p.stderr.slow("looking for keys in storage", func() (err error) {
		if err = f.belongs(ctx, id); err == nil {
			d, err = p.rehearse(ctx, f.depot, box)
		}
		return err
	})
	if err == nil && len(d.made) > 0 && !f.dryRun {
		d, err = p.make(ctx, f.depot, box)
	}
	if err == nil {
		err = p.prepareShards(ctx, f, d)
	}
	if err != nil {
		return Founding{}, err
	}
	return d.founding(id, f.dryRun), nil
}

// prepareShards writes a released lease for each new shard.
func (p *program) prepareShards(ctx context.Context, f *founding, d *draft) error {
	if len(f.shards) == 0 {
		return nil
	}
	return p.stderr.slow("preparing shards in storage", func() error {
		open := f.open
		if f.dryRun {
			open = f.readOrNothing
		}
		store, err := open(ctx)
		for i := 0; err == nil && i < len(f.shards); i++ {
			prepare := lease.Prepare
			if f.dryRun {
				prepare = lease.Preparable
			}
			shard := nstance.ShardID(f.shards[i])
			var fresh bool
			fresh, err = prepare(ctx, store, shard)
			if fresh && err == nil {
				d.leases = append(d.leases, storage.LeaseKey(shard))
			}
		}
		return err
	})
}

// make does what was rehearsed.
func (p *program) make(ctx context.Context, at depot, box *secret.Box) (d *draft, err error) {
	err = p.stderr.slow("making keys in storage", func() error {
		store, err := at.open(ctx)
		if err == nil {
			d, err = p.establish(ctx, store, box, true)
		}
		return err
	})
	return d, err
}

// belongs fails with Conflict if the storage is another cluster's, as far as
// configurations in it tell.
func (d *depot) belongs(ctx context.Context, id nstance.ClusterID) error {
	is, shard, err := d.clusterIn(ctx, id)
	if err != nil || is == "" {
		return err
	}
	return fault(nstance.Conflict, nil, "name that cluster, or another storage",
		fmt.Sprintf("this storage is of cluster %s, as the configuration of shard %s says", is, shard))
}

// clusterIn returns a cluster, other than the given one, that the storage is of,
// and the shard whose configuration says so; empty: none does.
func (d *depot) clusterIn(ctx context.Context, other nstance.ClusterID) (nstance.ClusterID, nstance.ShardID, error) {
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
		if errors.Is(err, nstance.NotFound) || errors.Is(err, nstance.Invalid) { // it does not tell
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

func (t *table) founding(f Founding) {
	for _, key := range f.Made {
		if f.DryRun {
			t.say("%s would be made", key)
		} else {
			t.say("%s made", key)
		}
	}
	switch {
	case len(f.Made) == 0:
		t.say("cluster %s: authorities and keys are already there since %s, nothing was changed", f.Cluster, stamp(f.Since))
	case f.DryRun:
		return
	default:
		t.say("cluster %s: authorities and keys are there now", f.Cluster)
	}
	t.say("")
	t.keys(f.Keys)
}

// A draft is a vault that notes what is made in it. It is for one goroutine.
type draft struct {
	registration.Vault
	ring  *registration.Keyring
	tried map[string][]byte // what was to be stored, by name
	made  []string          // keys in storage, in the order in which they were made

	leases []string // of new shards
}

// rehearse finds out what establish would make, and changes nothing.
func (p *program) rehearse(ctx context.Context, at depot, box *secret.Box) (*draft, error) {
	store, err := at.readOrNothing(ctx)
	if err != nil {
		return nil, err
	}
	return p.load(ctx, newDryVault(vault.New(store, box)))
}

// establish makes the cluster's authorities and keys as far as they are missing.
// A store that has none yet is put to the test first, as servers do at start.
func (p *program) establish(ctx context.Context, store storage.Store, box *secret.Box, probe bool) (*draft, error) {
	if probe {
		if err := storage.Probe(ctx, store); err != nil {
			return nil, err
		}
	}
	return p.load(ctx, vault.New(store, box))
}

func (p *program) load(ctx context.Context, v registration.Vault) (_ *draft, err error) {
	d := &draft{Vault: v, tried: map[string][]byte{}}
	d.ring, err = registration.OpenKeyring(ctx, d, p.now)
	return d, err
}

// founding says what has been made.
func (d *draft) founding(id nstance.ClusterID, dryRun bool) Founding {
	f := Founding{Cluster: id, Made: slices.Concat([]string{}, d.made, d.leases), Keys: []Key{}, DryRun: dryRun}
	if dryRun && len(d.made) > 0 {
		return f // the rehearsal's keys are nobody's
	}
	f.Keys = storedKeys(d.ring.Set)
	if len(d.made) == 0 {
		f.Since = slices.MinFunc(f.Keys, func(a, b Key) int { return a.CreatedAt.Compare(b.CreatedAt) }).CreatedAt
	}
	return f
}

// Get implements registration.Vault. Who has tried to store something looks at
// it next: what is found then is his own only if it is the same.
func (d *draft) Get(ctx context.Context, name string) ([]byte, error) {
	data, err := d.Vault.Get(ctx, name)
	if own, tried := d.tried[name]; tried && err == nil && bytes.Equal(data, own) {
		d.note(vault.Key(name))
	}
	return data, err
}

func (d *draft) note(key string) {
	if !slices.Contains(d.made, key) {
		d.made = append(d.made, key)
	}
}

// PutIfAbsent implements registration.Vault.
func (d *draft) PutIfAbsent(ctx context.Context, name string, data []byte) error {
	d.tried[name] = data
	return d.Vault.PutIfAbsent(ctx, name, data)
}

// UpdateCatalogue implements registration.Vault.
func (d *draft) UpdateCatalogue(ctx context.Context, fn func(*registration.Catalogue) error) (registration.Catalogue, error) {
	changed := false
	c, err := d.Vault.UpdateCatalogue(ctx, func(c *registration.Catalogue) error {
		before := *c
		err := fn(c)
		changed = err == nil && !reflect.DeepEqual(before, *c)
		return err
	})
	if err == nil && changed {
		d.note(storage.ClusterLeaseKey)
	}
	return c, err
}
