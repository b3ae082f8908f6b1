package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/vault"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/blob"
	"github.com/nstance-go/nstance/storage/secret"
)

// depot is where secrets are: a cluster's storage and the key that seals them.
type depot struct {
	url  string
	keys vault.KeySource
}

func (p *program) secretCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "secret", Short: "Secrets that become files on machines, in the cluster's storage",
		Long: "Secrets that become files on machines, in the cluster's storage. Servers read them again every\n" +
			"shard.file_refresh, and send what has changed.",
	}
	cmd.AddCommand(p.secretPutCommand(), p.secretListCommand(), p.secretDeleteCommand())
	return cmd
}

func depotFlags(cmd *cobra.Command, d *depot, sealing bool) {
	cmd.Flags().StringVar(&d.url, "storage", "", "URL of the cluster's storage, such as file:///var/lib/nstance or s3://bucket?region=eu-west-1")
	if sealing {
		choice(cmd, &d.keys.Provider, "key-provider", "", "where the secret key is that seals private keys in storage", vault.KeysInEnv, vault.KeysInFile, vault.NoKeys)
		cmd.Flags().StringVar(&d.keys.Source, "key-source", "", "name of the variable (default "+vault.KeyVariable+"), or path of the file")
	}
}

func (d *depot) open(ctx context.Context) (storage.Store, error) {
	switch {
	case d.url == "":
		return nil, nstance.FieldError("--storage", "use file:///absolute/directory or s3://bucket", "is not given")
	case strings.HasPrefix(d.url, "mem:"):
		return nil, nstance.FieldError("--storage", "use file:///absolute/directory", "what is in memory only is gone when this command ends")
	}
	return blob.Open(ctx, d.url)
}

func secretArgument(cmd *cobra.Command, args []string) error {
	if err := cobra.ExactArgs(1)(cmd, args); err != nil {
		return misused(cmd, err)
	}
	return nstance.ValidateSecretName("NAME", args[0])
}

func (p *program) secretPutCommand() *cobra.Command {
	var d depot
	cmd := &cobra.Command{
		Use: "put NAME --storage URL", Short: "Store a secret that standard input holds, in place of one of that name",
		Long: "Store a secret that standard input holds, in place of one of that name. It is sealed with the key that the\n" +
			"cluster's own keys are sealed with. It is stored as it comes: mind a line break at its end.",
		Args: secretArgument,
	}
	depotFlags(cmd, &d, true)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		data, err := io.ReadAll(io.LimitReader(p.stdin, nstance.MaxFileSize+1))
		switch {
		case err != nil:
			return nstance.Errorf(nstance.Internal, "standard input: %w", err)
		case len(data) == 0:
			return nstance.FieldError("standard input", "pipe the secret into the command", "is empty")
		case len(data) > nstance.MaxFileSize:
			return nstance.FieldError("standard input", "store less", "has more than %d bytes", nstance.MaxFileSize)
		}
		return p.putSecret(cmd.Context(), &d, args[0], data)
	}
	return cmd
}

func (p *program) putSecret(ctx context.Context, d *depot, name string, data []byte) error {
	box, err := d.keys.Box(p.getenv)
	if err != nil {
		return err
	}
	store, err := d.open(ctx)
	if err != nil {
		return err
	}
	if err := checkSealing(ctx, store, box); err != nil {
		return err
	}
	if box != nil {
		if data, err = box.Seal(name, data); err != nil {
			return err
		}
	}
	key, done := storage.SecretKey(name), "stored"
	err = p.stderr.slow("storing the secret", func() error {
		old, err := store.Get(ctx, key)
		switch {
		case err == nil:
			done = "replaced"
			_, err = store.PutIfMatch(ctx, key, data, old.Version)
		case errors.Is(err, nstance.NotFound):
			_, err = store.PutIfAbsent(ctx, key, data)
		}
		return err
	})
	if err == nil {
		p.stderr.note("secret %s %s", name, done)
	}
	return err
}

// checkSealing fails unless servers, which seal as the nonce key is sealed, will
// be able to open what box seals.
func checkSealing(ctx context.Context, store storage.Store, box *secret.Box) error {
	const own = "nonce.key"
	obj, err := store.Get(ctx, storage.SecretKey(own))
	if errors.Is(err, nstance.NotFound) {
		return nil // a cluster that has never run
	}
	if err != nil {
		return err
	}
	if box != nil {
		_, err = box.Open(own, obj.Data)
		return err
	}
	if _, err := secret.Plain().Open(own, obj.Data); errors.Is(err, nstance.Denied) {
		return nstance.FieldError("--key-provider", "use the secret key of the servers", "none is said, but this cluster's keys are sealed")
	}
	return nil
}

func (p *program) secretListCommand() *cobra.Command {
	var d depot
	cmd := &cobra.Command{Use: "list --storage URL", Aliases: []string{"ls"}, Short: "List the names of secrets", Args: arguments()}
	depotFlags(cmd, &d, false)
	out := p.output(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		store, err := d.open(cmd.Context())
		if err != nil {
			return err
		}
		names := []string{}
		prefix := storage.SecretKey("")
		for e, err := range store.List(cmd.Context(), prefix, "") {
			if err != nil {
				return err
			}
			if name := strings.TrimPrefix(e.Key, prefix); nstance.ValidateSecretName("", name) == nil {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		return out.print(names, func(t *table) {
			if len(names) == 0 {
				t.say("no secrets")
				return
			}
			t.row("NAME")
			for _, name := range names {
				t.row(name)
			}
		})
	}
	return cmd
}

func (p *program) secretDeleteCommand() *cobra.Command {
	var d depot
	var yes bool
	cmd := &cobra.Command{
		Use: "delete NAME --storage URL", Short: "Delete a secret",
		Long: "Delete a secret. Machines that have a file of it keep that file; new ones do not get it.",
		Args: secretArgument,
	}
	depotFlags(cmd, &d, false)
	yesFlag(cmd, &yes)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, key := cmd.Context(), storage.SecretKey(args[0])
		store, err := d.open(ctx)
		if err != nil {
			return err
		}
		obj, err := store.Get(ctx, key)
		if err != nil {
			return err
		}
		if err := p.confirm(ctx, yes, fmt.Sprintf("This deletes the secret %s", args[0])); err != nil {
			return err
		}
		if err := store.DeleteIfMatch(ctx, key, obj.Version); err != nil && !errors.Is(err, nstance.NotFound) {
			return err
		}
		p.stderr.note("secret %s deleted", args[0])
		return nil
	}
	return cmd
}
