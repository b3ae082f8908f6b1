package admin

import (
	"context"
	"errors"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/vault"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/secret"
)

// openStore opens the store that a URL names.
type openStore func(ctx context.Context, rawURL string) (storage.Store, error)

// storageAccess holds the flags of commands that read and write storage directly.
type storageAccess struct {
	opener openStore
	url    string
	env    environment     // for keys
	keys   vault.KeySource // what seals private keys and secrets there
}

// flags adds the flag of the storage's URL.
func (d *storageAccess) flags(cmd *cobra.Command, open openStore) {
	d.opener = open
	f := cmd.Flags()
	f.StringVar(&d.url, "storage", "", "URL of the cluster's storage, such as file:///var/lib/nstance or s3://bucket?region=eu-west-1, or the name of an S3 bucket; also --storage-bucket")
	f.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "storage-bucket" {
			name = "storage"
		}
		return pflag.NormalizedName(name)
	})
}

// keyFlags adds the flags of the keys that seal objects in storage.
func (d *storageAccess) keyFlags(cmd *cobra.Command, env environment, prefix string) {
	d.env = env
	choice(cmd, &d.keys.Provider, "key-provider", "", prefix+"where the secret keys are that seal private keys in storage", vault.KeysInEnv, vault.KeysInFile, vault.NoKeys)
	cmd.Flags().StringVar(&d.keys.Source, "key-source", "", prefix+"name of the variable (default "+vault.KeyVariable+"), or path of the file")
}

// box returns what opens and seals objects in storage; nil: they are not sealed.
func (d *storageAccess) box() (*secret.Box, error) { return d.keys.Box(d.env) }

// open returns the store, and makes a missing directory.
func (d *storageAccess) open(ctx context.Context) (storage.Store, error) {
	if err := d.check(); err != nil {
		return nil, err
	}
	return d.opener(ctx, d.url)
}

// read returns the store for reading only: writes fail, and nothing is made.
func (d *storageAccess) read(ctx context.Context) (storage.Store, error) {
	if err := d.check(); err != nil {
		return nil, err
	}
	if scheme, _, _ := strings.Cut(d.url, ":"); scheme == "file" || scheme == "mem" {
		return storage.OpenReadOnly(ctx, d.url)
	}
	store, err := d.opener(ctx, d.url)
	if err != nil {
		return nil, err
	}
	return storage.ReadOnly(store), nil
}

// openTo is open for a command that writes, else read.
func (d *storageAccess) openTo(ctx context.Context, write bool) (storage.Store, error) {
	if write {
		return d.open(ctx)
	}
	return d.read(ctx)
}

// readOrNothing is read, but treats a directory without a store as an empty one.
func (d *storageAccess) readOrNothing(ctx context.Context) (storage.Store, error) {
	store, err := d.read(ctx)
	if errors.Is(err, nstance.NotFound) {
		return storage.ReadOnly(storage.NewMemory()), nil
	}
	return store, err
}

// openUnless is open, or for a dry run readOrNothing.
func (d *storageAccess) openUnless(ctx context.Context, dryRun bool) (storage.Store, error) {
	if dryRun {
		return d.readOrNothing(ctx)
	}
	return d.open(ctx)
}

// bucketName is the name of a bucket without the scheme of a URL.
var bucketName = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)

// check completes the name of a bucket to a URL, and refuses what cannot be.
func (d *storageAccess) check() error {
	if bucketName.MatchString(d.url) {
		d.url = "s3://" + d.url
	}
	switch {
	case d.url == "":
		return nstance.FieldError("--storage", "use file:///absolute/directory or s3://bucket", "is not given")
	case strings.HasPrefix(d.url, "mem:"):
		return nstance.FieldError("--storage", "use file:///absolute/directory", "what is in memory only is gone when this command ends")
	}
	return nil
}
