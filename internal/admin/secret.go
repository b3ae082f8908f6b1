package admin

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/filelimit"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/internal/validate"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/secret"
)

func secretCommand(env environment, open openStore) *cobra.Command {
	cmd := &cobra.Command{
		Use: "secret", Short: "Secrets that become files on machines, in the cluster's storage",
		Long: "Secrets that become files on machines, in the cluster's storage. Servers read them again every\n" +
			"shard.file_refresh, and send what has changed.",
	}
	cmd.AddCommand(secretPutCommand(env, open), secretListCommand(open), secretDeleteCommand(open))
	return cmd
}

func secretArgument(cmd *cobra.Command, args []string) error {
	if err := cobra.ExactArgs(1)(cmd, args); err != nil {
		return misused(cmd, err)
	}
	return validate.SecretName("NAME", args[0])
}

// A SecretChange is what secret put and secret delete print.
type SecretChange struct {
	Name   string `json:"name"`
	Action string `json:"action"` // store, replace, delete, or none where the same is stored already
	DryRun bool   `json:"dry_run"`
}

func writeSecretChange(t *table, c SecretChange) {
	switch {
	case c.Action == "none":
		t.say("secret %s is unchanged", c.Name)
	case c.DryRun:
		t.say("secret %s: %s would be accepted", c.Name, c.Action)
	default:
		t.say("secret %s: %sd", c.Name, c.Action)
	}
}

func secretPutCommand(env environment, open openStore) *cobra.Command {
	var d storageAccess
	var yes, dryRun bool
	cmd := &cobra.Command{
		Use: "put NAME --storage URL", Short: "Store a secret from standard input",
		Long: "Store a secret from standard input. It asks before it replaces one of that name. The secret is sealed with the key\n" +
			"that seals the cluster's own keys. It is stored unchanged, including a line break at its end.",
		Args: secretArgument,
	}
	d.flags(cmd, open)
	d.keyFlags(cmd, env, "")
	yesFlag(cmd, &yes)
	dryRunFlag(cmd, &dryRun)
	out := newOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		data, err := secretInput(cmd)
		if err != nil {
			return err
		}
		w := &secretWrite{d: &d, name: args[0], plain: data}
		if err := stderrOf(cmd).slow("reading what is stored", func() error { return w.inspect(cmd.Context()) }); err != nil {
			return err
		}
		c := SecretChange{Name: w.name, Action: w.action(), DryRun: dryRun}
		if c.Action == "replace" {
			if err := confirm(cmd, yes || dryRun, "this replaces the secret "+w.name+" for good"); err != nil {
				return err
			}
		}
		if c.Action != "none" && !dryRun {
			if err := stderrOf(cmd).slow("storing the secret", func() error { return w.write(cmd.Context()) }); err != nil {
				return err
			}
		}
		return out.print(c, func(t *table) { writeSecretChange(t, c) })
	}
	return cmd
}

// secretInput returns what standard input holds.
func secretInput(cmd *cobra.Command) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), filelimit.Size+1))
	switch {
	case err != nil:
		return nil, nstance.Errorf(nstance.Internal, "standard input: %w", err)
	case len(data) == 0:
		return nil, nstance.FieldError("standard input", "pipe the secret into the command", "is empty")
	case len(data) > filelimit.Size:
		return nil, nstance.FieldError("standard input", "store less", "has more than %d bytes", filelimit.Size)
	}
	return data, nil
}

// A secretWrite stores one secret, or replaces it.
type secretWrite struct {
	d     *storageAccess
	name  string
	plain []byte

	box *secret.Box
	old storage.Object // without a key: there is none
}

// inspect reads the stored secret, and checks that servers could open the new one.
func (w *secretWrite) inspect(ctx context.Context) (err error) {
	if w.box, err = w.d.box(); err != nil {
		return err
	}
	store, err := w.d.readOrNothing(ctx)
	if err != nil {
		return err
	}
	if err := checkSealing(ctx, store, w.box); err != nil {
		return err
	}
	w.old, err = store.Get(ctx, layout.SecretKey(w.name))
	if errors.Is(err, nstance.NotFound) {
		return nil
	}
	return err
}

func (w *secretWrite) action() string {
	switch {
	case w.old.Key == "":
		return "store"
	case w.same():
		return "none"
	}
	return "replace"
}

// same reports whether storing the secret would change nothing.
func (w *secretWrite) same() bool {
	if w.box == nil {
		return bytes.Equal(w.old.Data, w.plain)
	}
	have, err := w.box.Open(w.name, w.old.Data)
	return err == nil && bytes.Equal(have, w.plain) && !w.box.Stale(w.old.Data)
}

// write fails with Conflict when another process has stored the secret since inspect.
func (w *secretWrite) write(ctx context.Context) (err error) {
	key, data := layout.SecretKey(w.name), w.plain
	if w.box != nil {
		if data, err = w.box.Seal(w.name, w.plain); err != nil {
			return err
		}
	}
	store, err := w.d.open(ctx)
	if err != nil {
		return err
	}
	if w.old.Key != "" {
		_, err = store.PutIfMatch(ctx, key, data, w.old.Version)
		return err
	}
	stored, err := records.PutOnce(ctx, store, key, data)
	if err == nil && !bytes.Equal(stored, data) {
		err = nstance.Errorf(nstance.Conflict, "secret %s was stored by another process in the meantime", w.name)
	}
	return err
}

// checkSealing fails unless servers, which seal as the nonce key is sealed, will
// be able to open what box seals.
func checkSealing(ctx context.Context, store storage.Store, box *secret.Box) error {
	const own = "nonce.key"
	obj, err := store.Get(ctx, layout.SecretKey(own))
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
	if _, sealed := secret.SealedWith(obj.Data); sealed {
		return nstance.FieldError("--key-provider", "use the secret key of the servers", "is none, but this cluster's keys are sealed")
	}
	return nil
}

func secretListCommand(open openStore) *cobra.Command {
	var d storageAccess
	cmd := &cobra.Command{Use: "list --storage URL", Aliases: []string{"ls"}, Short: "List the names of secrets", Args: arguments()}
	d.flags(cmd, open)
	out := newOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		names := []string{}
		err := stderrOf(cmd).slow("listing secrets", func() (err error) {
			names, err = d.secrets(cmd.Context())
			return err
		})
		return out.result(names, err, func(t *table) {
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

// secrets returns the names of the secrets of operators.
func (d *storageAccess) secrets(ctx context.Context) ([]string, error) {
	store, err := d.read(ctx)
	if err != nil {
		return nil, err
	}
	names := []string{}
	prefix := layout.SecretKey("")
	for e, err := range store.List(ctx, prefix, "") {
		if err != nil {
			return nil, err
		}
		if name := strings.TrimPrefix(e.Key, prefix); validate.SecretName("", name) == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

func secretDeleteCommand(open openStore) *cobra.Command {
	var d storageAccess
	var yes, dryRun bool
	cmd := &cobra.Command{
		Use: "delete NAME --storage URL", Short: "Delete a secret",
		Long: "Delete a secret. Machines that have a file of it keep that file; new ones do not get it.",
		Args: secretArgument,
	}
	d.flags(cmd, open)
	yesFlag(cmd, &yes)
	dryRunFlag(cmd, &dryRun)
	out := newOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		w := &secretWrite{d: &d, name: args[0]}
		if err := stderrOf(cmd).slow("reading what is stored", func() error { return w.lookUp(cmd.Context()) }); err != nil {
			return err
		}
		if err := confirm(cmd, yes || dryRun, "this deletes the secret "+w.name+" for good"); err != nil {
			return err
		}
		if !dryRun {
			if err := stderrOf(cmd).slow("deleting the secret", func() error { return w.remove(cmd.Context()) }); err != nil {
				return err
			}
		}
		c := SecretChange{Name: w.name, Action: "delete", DryRun: dryRun}
		return out.print(c, func(t *table) { writeSecretChange(t, c) })
	}
	return cmd
}

// lookUp reads the secret to be deleted.
func (w *secretWrite) lookUp(ctx context.Context) (err error) {
	store, err := w.d.readOrNothing(ctx)
	if err == nil {
		w.old, err = store.Get(ctx, layout.SecretKey(w.name))
	}
	if errors.Is(err, nstance.NotFound) {
		err = fault(nstance.NotFound, err, "see nstance-admin secret list", "no secret "+w.name)
	}
	return err
}

// remove fails with Conflict when another process has replaced it since lookUp.
func (w *secretWrite) remove(ctx context.Context) error {
	store, err := w.d.open(ctx)
	if err == nil {
		err = store.DeleteIfMatch(ctx, w.old.Key, w.old.Version)
	}
	if errors.Is(err, nstance.NotFound) {
		return nil // another process was faster
	}
	return err
}
