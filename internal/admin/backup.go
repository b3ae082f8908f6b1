package admin

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/backup"
)

// Backup is what backup has done.
type Backup struct {
	File string `json:"file"`
	backup.Manifest
}

// Restored is what restore has done.
type Restored struct {
	backup.Result
	InPlace bool `json:"in_place"`
	DryRun  bool `json:"dry_run"`
}

func backupCommand(open openStore) *cobra.Command {
	cmd := &cobra.Command{
		Use: "backup FILE", Short: "Copy the cluster's storage into a file, while servers run",
		Long: "Copy the cluster's storage into a file, while servers run. Private keys in it stay sealed with the secret key,\n" +
			"which is not in the file. The file appears when it is complete.",
		Args: arguments("FILE"),
	}
	var at storageAccess
	at.flags(cmd, open)
	out := newOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		done := Backup{File: args[0]}
		store, err := at.read(cmd.Context())
		if err != nil {
			return err
		}
		if err := stderrOf(cmd).slow("copying storage", func() (err error) {
			return writeNew(args[0], func(w io.Writer) error {
				done.Manifest, err = backup.Write(cmd.Context(), store, w, time.Now)
				return err
			})
		}); err != nil {
			return err
		}
		return out.print(done, func(t *table) {
			t.say("%s: %d objects, %d bytes, of cluster %s", done.File, done.Objects, done.Bytes, done.Cluster)
		})
	}
	return cmd
}

// writeNew writes a file beside its place, and moves it there when it is complete. The name is
// taken before: of two backups to one file the second fails.
func writeNew(path string, write func(io.Writer) error) error {
	taken, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	switch {
	case errors.Is(err, fs.ErrExist):
		return fault(nstance.Conflict, nil, "name another one", path+" exists")
	case err != nil:
		return nstance.FieldError("FILE", "name one in a folder that can be written", "%v", err)
	}
	if err = taken.Close(); err == nil {
		err = writeInPlaceOf(path, write)
	}
	if err != nil {
		_ = os.Remove(path)
		return err
	}
	folder, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

func writeInPlaceOf(path string, write func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return nstance.FieldError("FILE", "name one in a folder that can be written", "%v", err)
	}
	defer os.Remove(f.Name()) // nothing, once it was moved
	err = write(f)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	return err
}

func restoreCommand(open openStore) *cobra.Command {
	cmd := &cobra.Command{
		Use: "restore (FILE | --in-place)", Short: "Write a backup into empty storage, or make a copy storage of its own",
		Long: "Write a backup into empty storage; or, with --in-place, make storage that was copied or set back by other means\n" +
			"what a restore makes of a backup. Stop every server of the original first.\n\n" +
			"The restored storage accepts no operator, no administrator and no nonce of before, because it does not know which\n" +
			"were revoked or used since: they register again with new nonces. With --keep-operators all are accepted as they\n" +
			"were, which is right if no server has run since the copy was made, as when storage is moved.\n\n" +
			"Machines that were made since the copy are kept until they are adopted or deleted: nstance-admin orphan.",
		Args: cobra.MaximumNArgs(1),
	}
	var (
		at           storageAccess
		o            backup.Options
		inPlace, yes bool
	)
	at.flags(cmd, open)
	cmd.Flags().BoolVar(&inPlace, "in-place", false, "the storage holds the copy already")
	cmd.Flags().BoolVar(&o.KeepGrants, "keep-operators", false, "accept operators, administrators and nonces as they were copied")
	yesFlag(cmd, &yes)
	dryRunFlag(cmd, &o.DryRun)
	out := newOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if inPlace == (len(args) == 1) {
			return nstance.FieldError("FILE", "name a backup, or use --in-place for storage that holds the copy already", "one of the two must be given")
		}
		if err := confirm(cmd, yes || o.DryRun, "every server of the original must be stopped"); err != nil {
			return err
		}
		done := Restored{InPlace: inPlace, DryRun: o.DryRun}
		if err := stderrOf(cmd).slow("restoring storage", func() (err error) {
			done.Result, err = restore(cmd.Context(), &at, args, o)
			return err
		}); err != nil {
			return err
		}
		return out.print(done, func(t *table) { writeRestored(t, done) })
	}
	return cmd
}

// restore writes the backup that args name, or without one replaces the storage.
func restore(ctx context.Context, at *storageAccess, args []string, o backup.Options) (backup.Result, error) {
	store, err := at.openUnless(ctx, o.DryRun)
	if err != nil {
		return backup.Result{}, err
	}
	if len(args) == 0 {
		return backup.Replace(ctx, store, o)
	}
	f, err := os.Open(args[0])
	if err != nil {
		return backup.Result{}, nstance.FieldError("FILE", "name a backup that can be read", "%v", err)
	}
	defer f.Close()
	return backup.Restore(ctx, f, store, o)
}

func writeRestored(t *table, done Restored) {
	what := "restored"
	if done.DryRun {
		what = "nothing was changed; it would be restored"
	}
	t.say("%s: %d objects", what, done.Objects)
	for _, shard := range slices.Sorted(maps.Keys(done.Shards)) {
		t.say("shard %s: its next leader begins term %d", shard, done.Shards[shard]+1)
	}
	if done.Operators > 0 {
		t.say("%s must register again, with new nonces: nstance-admin cluster nonce", plural(done.Operators, "operator or administrator"))
	}
}
