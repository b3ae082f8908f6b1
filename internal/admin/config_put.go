package admin

import (
	"bytes"
	"errors"

	"github.com/spf13/cobra"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/storage"
)

// ConfigPut is what config put has done.
type ConfigPut struct {
	Key     string            `json:"key"`
	Cluster nstance.ClusterID `json:"cluster"`
	Shard   nstance.ShardID   `json:"shard"`
	Changed bool              `json:"changed"`
	DryRun  bool              `json:"dry_run"`
}

func configPutCommand(open openStore) *cobra.Command {
	cmd := &cobra.Command{
		Use: "put FILE", Short: "Put a configuration into storage, where servers read it",
		Long: "Put a configuration into storage, for nstance-server run --storage URL --shard NAME. It goes to\nconfig/SHARD.jsonc, of the shard that it names. An invalid one is refused. A server that\nruns reads it with config refresh, and treats it as any other proposal.",
		Args: arguments("file"),
	}
	var (
		at     storageAccess
		dryRun bool
	)
	at.flags(cmd, open)
	dryRunFlag(cmd, &dryRun)
	out := newOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		conf, data, err := readConfiguration(args[0])
		if err != nil {
			return err
		}
		if err := at.check(); err != nil {
			return err
		}
		if err := at.belongs(cmd.Context(), conf.Cluster.ID); err != nil {
			return err
		}
		store, err := at.openUnless(cmd.Context(), dryRun)
		if err != nil {
			return err
		}
		done := ConfigPut{Key: layout.ConfigKey(conf.Shard.ID), Cluster: conf.Cluster.ID, Shard: conf.Shard.ID, DryRun: dryRun}
		obj, err := store.Get(cmd.Context(), done.Key)
		absent := errors.Is(err, nstance.NotFound)
		if err != nil && !absent {
			return err
		}
		if done.Changed = absent || !bytes.Equal(obj.Data, data); done.Changed && !dryRun {
			put := func() (storage.Version, error) { return store.PutIfMatch(cmd.Context(), done.Key, data, obj.Version) }
			if absent {
				put = func() (storage.Version, error) { return store.PutIfAbsent(cmd.Context(), done.Key, data) }
			}
			if _, err := put(); err != nil {
				return err
			}
		}
		return out.print(done, func(t *table) {
			switch {
			case !done.Changed:
				t.say("%s: nothing was changed", done.Key)
			case dryRun:
				t.say("%s would be written", done.Key)
			default:
				t.say("%s written: start a server with --shard %s, or have a running one read it with nstance-admin config refresh", done.Key, done.Shard)
			}
		})
	}
	return cmd
}
