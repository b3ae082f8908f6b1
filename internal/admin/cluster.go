package admin

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/duration"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/validate"
	"github.com/nstance-go/nstance/internal/vault"
	"github.com/nstance-go/nstance/storage/secret"
)

func clusterCommand(env environment, open openStore) *cobra.Command {
	cmd := &cobra.Command{Use: "cluster", Short: "Nonces and keys of the whole cluster"}
	cmd.AddCommand(initCommand(env, open), clusterStatusCommand(open), nonceCommand(env, open), keysCommand(env), rotateCommand(env, open))
	return cmd
}

// minting is what cluster nonce is asked for.
type minting struct {
	storageAccess
	kind                   string
	cluster, shard, tenant string
	expiry                 time.Duration
	output, caOutput       string
	dryRun                 bool
}

func nonceCommand(env environment, open openStore) *cobra.Command {
	var m minting
	cmd := &cobra.Command{
		Use:   "nonce --storage URL",
		Short: "Mint a nonce for the registration of one operator or administrator",
		Long: "Mint a nonce for the registration of one operator or administrator. It is signed with the key in the\n" +
			"cluster's storage. A missing key is made, together with the cluster's authorities.",
		Args: arguments(),
	}
	f := cmd.Flags()
	m.flags(cmd, open)
	m.keyFlags(cmd, env, "")
	choice(cmd, &m.kind, "kind", "", "who registers with it", string(nstance.RoleOperator), string(nstance.RoleAdmin))
	f.StringVar(&m.cluster, "cluster", "", "ID of the cluster (default: what a shard's configuration in storage says)")
	f.StringVar(&m.shard, "shard", "", "only for this shard (default any)")
	f.StringVar(&m.tenant, "tenant", string(nstance.DefaultTenant), "tenant")
	f.Var(duration.NewFlag(&m.expiry, 3*time.Hour), "expiry", "validity")
	f.StringVar(&m.output, "output", "-", "file to write the nonce to, - for standard output")
	f.StringVar(&m.caOutput, "ca-output", "", "file to write the certificates of the identity authority to, for login --ca")
	dryRunFlag(cmd, &m.dryRun)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return mintNonce(cmd, &m) }
	return cmd
}

func mintNonce(cmd *cobra.Command, m *minting) error {
	ctx := cmd.Context()
	if err := m.place(ctx); err != nil {
		return err
	}
	claims, err := m.claims(time.Now())
	if err != nil {
		return err
	}
	box, err := m.box()
	if err != nil {
		return err
	}
	ring, err := openKeyring(cmd, m.storageAccess, box, m.dryRun)
	if err != nil {
		return err
	}
	if err := ring.Check(nstance.ClusterID(m.cluster)); err != nil {
		return err
	}
	if m.dryRun {
		stderrOf(cmd).note("a nonce of kind %s for tenant %s in cluster %s would be minted", claims.Kind, claims.Tenant, claims.Cluster)
		return nil
	}
	keys := ring.Keys()
	token, err := keys.Nonces.Mint("", claims)
	if err != nil {
		return err
	}
	if err := ring.UseUntil(ctx, keyring.Nonces, keys.Nonces.KeyID(), claims.Expiry); err != nil {
		stderrOf(cmd).note("warning: not noted in storage, so that a rotation of the nonce key may end this nonce early: %v", err)
	}
	if m.caOutput != "" {
		if err := deliver(cmd, "ca-output", m.caOutput, keys.Identity.CertPEM()); err != nil {
			return err
		}
	}
	if err := deliver(cmd, "output", m.output, []byte(token+"\n")); err != nil {
		return err
	}
	stderrOf(cmd).note("nonce of kind %s for tenant %s in cluster %s, good for one registration until %s",
		claims.Kind, claims.Tenant, claims.Cluster, claims.Expiry.UTC().Format(time.RFC3339))
	return nil
}

// place takes the cluster from the storage where it is not named, and refuses one
// that is not the storage's.
func (m *minting) place(ctx context.Context) error {
	if err := m.check(); err != nil {
		return err
	}
	if m.cluster != "" {
		if err := validate.Name("--cluster", m.cluster); err != nil {
			return err
		}
		return m.belongs(ctx, nstance.ClusterID(m.cluster))
	}
	is, _, err := m.clusterIn(ctx, "")
	if err == nil && is == "" {
		err = nstance.FieldError("--cluster", "name the cluster's ID", "is not given, and no configuration in this storage names it")
	}
	if err != nil {
		return err
	}
	m.cluster = string(is)
	return m.belongs(ctx, is)
}

func (m *minting) claims(now time.Time) (keyring.Claims, error) {
	c := keyring.Claims{
		Kind: nstance.Role(m.kind), Subject: m.cluster, Cluster: nstance.ClusterID(m.cluster), Shard: nstance.ShardID(m.shard),
		Tenant: nstance.TenantID(m.tenant), JTI: rand.Text(), NotBefore: now, Expiry: now.Add(m.expiry),
	}
	if err := errors.Join(validate.Name("--cluster", c.Cluster), validate.Name("--tenant", c.Tenant)); err != nil {
		return c, err
	}
	if c.Shard != "" {
		if err := validate.Shard("--shard", c.Shard); err != nil {
			return c, err
		}
	}
	if m.expiry < time.Second {
		return c, nstance.FieldError("--expiry", "use a second or more", "is %s", m.expiry)
	}
	return c, nil
}

// openKeyring returns the cluster's keys, and warns when it had to make them: that
// is rarely meant where a server has run before.
func openKeyring(cmd *cobra.Command, at storageAccess, box *secret.Box, dryRun bool) (*keyring.Keyring, error) {
	ctx := cmd.Context()
	var d *recordingVault
	err := stderrOf(cmd).slow("reading the keys in storage", func() (err error) {
		if d, err = previewKeys(ctx, at, box); err != nil || dryRun {
			return err
		}
		store, err := at.open(ctx)
		if err == nil {
			d, err = makeKeys(ctx, store, box, len(d.made) > 0)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if slices.Contains(d.made, vault.Key(keyring.VaultNonceKey)) {
		done := "have been"
		if dryRun {
			done = "would be"
		}
		stderrOf(cmd).note("there were no keys in this storage: new authorities and a new nonce key %s made", done)
	}
	return d.ring, nil
}

// deliver writes a result to a file that only its owner can read, or to
// standard output.
func deliver(cmd *cobra.Command, flag, path string, data []byte) error {
	if path != "-" {
		if err := pki.WriteFile(path, data); err != nil {
			return nstance.FieldError("--"+flag, "name a file in a folder that can be written", "%v", err)
		}
		return nil
	}
	return write(cmd.OutOrStdout(), data)
}
