package records

import (
	"context"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
)

// Shards returns the shards that have instance records in a store.
func Shards(ctx context.Context, s storage.Store) ([]nstance.ShardID, error) {
	var shards []nstance.ShardID
	for name, err := range storage.Folders(ctx, s, "instance/") {
		if err != nil {
			return nil, err
		}
		shards = append(shards, nstance.ShardID(name))
	}
	return shards, nil
}
