package backup

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/storage"
)

// Replace makes a storage that was copied by other means, or was set back in its place, what
// Restore makes of an archive. It may be repeated until it succeeds: until then no server
// starts where operators are not kept. Fails with Conflict when a server leads one of its shards,
// which takes up to a minute to find out.
func Replace(ctx context.Context, s storage.Store, o Options) (Result, error) {
	keys, err := s.Get(ctx, layout.ClusterLeaseKey)
	if err != nil {
		return Result{}, err
	}
	c, err := parseCatalogue(keys.Data)
	if err != nil {
		return Result{}, err
	}
	found, err := survey(ctx, s)
	if err == nil {
		err = unled(ctx, s, found.epochs)
	}
	if err != nil || o.DryRun {
		return found.result(o), err
	}
	if !o.KeepGrants {
		err = dropGrants(ctx, s)
	}
	for shard, epoch := range found.next {
		if err == nil {
			err = raise(ctx, s, shard, epoch)
		}
	}
	if err != nil {
		return found.result(o), err
	}
	data, err := c.moved(storage.LocationOf(s), o.KeepGrants)
	if err == nil {
		_, err = s.PutIfMatch(ctx, layout.ClusterLeaseKey, data, keys.Version)
	}
	return found.result(o), err
}

// survey reads the objects of a storage that leaders have written.
func survey(ctx context.Context, s storage.Store) (*census, error) {
	found := newCensus()
	tasks, ctx := errgroup.WithContext(ctx)
	tasks.SetLimit(width)
	for entry, err := range s.List(ctx, "", "") {
		if err != nil {
			return found, errors.Join(err, tasks.Wait())
		}
		if shardOf(entry.Key) == "" {
			found.countKey(entry.Key)
			continue
		}
		tasks.Go(func() error {
			obj, err := s.Get(ctx, entry.Key)
			if errors.Is(err, nstance.NotFound) {
				return nil
			}
			if err != nil {
				return err
			}
			return found.count(obj)
		})
	}
	err := tasks.Wait()
	found.choose()
	return found, err
}

// unled fails with Conflict when a server renews the lease of a shard.
func unled(ctx context.Context, s storage.Store, shards map[nstance.ShardID]uint64) error {
	before, wait := map[nstance.ShardID]records.Lease{}, time.Duration(0)
	for shard := range shards {
		l, err := records.ReadLease(ctx, s, shard)
		if err != nil {
			return err
		}
		if before[shard] = l; l.Version != "" && !l.Released {
			wait = max(wait, l.TTL())
		}
	}
	if !sleep.For(ctx, wait) {
		return nstance.Errorf(nstance.Unavailable, "interrupted: %w", ctx.Err())
	}
	for shard, was := range before {
		is, err := records.ReadLease(ctx, s, shard)
		if err != nil {
			return err
		}
		if is.Version != was.Version {
			return &nstance.Error{Code: nstance.Conflict, Msg: "a server leads shard " + string(shard) + " from this storage, at " + is.Address, Remedy: "stop every server first"}
		}
	}
	return nil
}

// dropGrants deletes what operators and nonces are accepted by.
func dropGrants(ctx context.Context, s storage.Store) error {
	for _, prefix := range []string{layout.OperatorPrefix, layout.NonceKey(""), layout.SecretKey("")} {
		for entry, err := range s.List(ctx, prefix, "") {
			if err != nil {
				return err
			}
			if !grants(entry.Key) {
				continue
			}
			obj, err := s.Get(ctx, entry.Key)
			if err == nil {
				err = s.DeleteIfMatch(ctx, entry.Key, obj.Version)
			}
			if err != nil && !errors.Is(err, nstance.NotFound) {
				return err
			}
		}
	}
	return nil
}

// raise writes a released lease, so that the shard's next term is of a generation of its own.
func raise(ctx context.Context, s storage.Store, shard nstance.ShardID, epoch uint64) error {
	now, err := records.ReadLease(ctx, s, shard)
	if err != nil {
		return err
	}
	next := records.Lease{Header: records.NewHeader(epoch), Released: true}
	data, err := next.Encode()
	switch {
	case err != nil:
		return err
	case now.Version == "":
		_, err = s.PutIfAbsent(ctx, layout.LeaseKey(shard), data)
	default:
		_, err = s.PutIfMatch(ctx, layout.LeaseKey(shard), data, now.Version)
	}
	return err
}
