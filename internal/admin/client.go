package admin

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/duration"
	"github.com/nstance-go/nstance/internal/operatorapi"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/internal/wire"
)

// A remote holds the flags of commands that call a server.
type remote struct {
	env     environment
	stderr  *console
	dir     string
	servers []string
	timeout time.Duration
}

// newRemote adds the flags of such a command.
func newRemote(cmd *cobra.Command, env environment) *remote {
	r := &remote{env: env, stderr: stderrOf(cmd)}
	identityFlag(cmd, &r.dir)
	cmd.Flags().StringSliceVar(&r.servers, "server", nil, "operator API address instead of those of the identity, port 8993 by default; may be repeated")
	cmd.Flags().Var(duration.NewFlag(&r.timeout, defaultTimeout), "timeout", "how long an answer may take")
	return r
}

func identityFlag(cmd *cobra.Command, dir *string) {
	cmd.Flags().StringVar(dir, "identity", "", "directory of the identity (default $NSTANCE_ADMIN_DIR, or nstance in the user's configuration)")
}

// identityDir returns where the identity is.
func (env environment) identityDir(flag string) (string, error) {
	if flag != "" {
		return flag, nil
	}
	if dir := env("NSTANCE_ADMIN_DIR"); dir != "" {
		return dir, nil
	}
	base, err := os.UserConfigDir()
	if err != nil {
		return "", nstance.FieldError("--identity", "name the directory", "there is no user configuration: %v", err)
	}
	return filepath.Join(base, "nstance"), nil
}

// A client is a connection to the server that leads.
type client struct {
	apiv1.OperatorServiceClient
	conn *grpc.ClientConn
	addr string
	id   Identity
}

func (c *client) close() { _ = c.conn.Close() } // its error does not matter

// with runs fn with a client.
func (r *remote) with(ctx context.Context, fn func(c *client) error) error {
	c, err := r.connect(ctx)
	if err != nil {
		return err
	}
	defer c.close()
	return fn(c)
}

// withInstance runs fn with a client and the ID that arg stands for.
func (r *remote) withInstance(ctx context.Context, arg string, fn func(c *client, id nstance.InstanceID) error) error {
	return r.with(ctx, func(c *client) error {
		id, err := c.instanceID(ctx, arg)
		if err != nil {
			return err
		}
		return fn(c, id)
	})
}

// run returns what runs a command with a client.
func (r *remote) run(fn func(c *client, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		return r.with(cmd.Context(), func(c *client) error { return fn(c, args) })
	}
}

// runInstance is run for a command whose first argument is an instance.
func (r *remote) runInstance(fn func(c *client, id nstance.InstanceID) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error { return r.withInstance(cmd.Context(), args[0], fn) }
}

// connect finds the server that leads, and renews the certificate if two
// thirds of its life are over. A renewal that fails is no failure of the
// command, as long as the certificate is good.
func (r *remote) connect(ctx context.Context) (*client, error) {
	dir, id, err := r.identity()
	if err != nil {
		return nil, err
	}
	renewAt, end, err := id.life()
	if err != nil {
		return nil, err
	}
	if now := time.Now(); !now.Before(end) {
		return nil, fault(nstance.Denied, nil, "log in again with nstance-admin login",
			fmt.Sprintf("the certificate in %s expired at %s", dir, stamp(end)))
	}
	c, err := r.leader(ctx, id)
	if err != nil || time.Now().Before(renewAt) {
		return c, err
	}
	renewed, err := renew(ctx, c, dir, time.Now)
	if err != nil {
		r.stderr.note("warning: certificate not renewed, it ends at %s: %v", stamp(end), err)
		return c, nil
	}
	next, err := r.open(c.addr, renewed)
	if err != nil {
		return c, nil //nolint:nilerr // the connection at hand is good
	}
	c.close()
	return next, nil
}

func (r *remote) identity() (dir string, id Identity, err error) {
	if dir, err = r.env.identityDir(r.dir); err != nil {
		return "", id, err
	}
	if id, err = LoadIdentity(dir); err != nil {
		return "", id, err
	}
	if len(r.servers) > 0 {
		id.Servers = r.servers
	}
	id.Servers, err = withPorts("server", id.Servers, portOperator)
	return dir, id, err
}

func (r *remote) open(addr string, id Identity) (*client, error) {
	cfg, err := id.tls()
	if err != nil {
		return nil, err
	}
	conn, err := dialer{tls: cfg, timeout: r.timeout, stderr: r.stderr}.open(addr)
	if err != nil {
		return nil, err
	}
	return &client{apiv1.NewOperatorServiceClient(conn), conn, addr, id}, nil
}

// leader returns a client of the leader. A server that a standby names must have a
// certificate for the identity's shard too.
func (r *remote) leader(ctx context.Context, id Identity) (*client, error) {
	return operatorapi.Leader(ctx, id.Servers, func(ctx context.Context, addr string) (*client, error) { return r.leads(ctx, addr, id) })
}

// leads returns a client of the server at addr if it leads its shard.
func (r *remote) leads(ctx context.Context, addr string, id Identity) (*client, error) {
	c, err := r.open(addr, id)
	if err != nil {
		return nil, err
	}
	if _, err := c.GetShardStatus(ctx, &apiv1.GetShardStatusRequest{}); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// lockWait is how long to wait for another process that renews.
const lockWait = 5 * time.Second

// lock prevents other processes from renewing the identity in dir until unlock is
// called. It fails with Unavailable after lockWait.
func lock(ctx context.Context, dir string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(dir, fileLock), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fileError(err)
	}
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	for {
		got, err := tryLock(f)
		if err == nil && !got && ctx.Err() != nil {
			err = nstance.Errorf(nstance.Unavailable, "another process is renewing it")
		}
		if err != nil {
			_ = f.Close() // nothing was written
			return nil, err
		}
		if got {
			return func() { _ = f.Close() }, nil
		}
		sleep.For(ctx, 20*time.Millisecond)
	}
}

// renew exchanges c's certificate for its successor, and saves that. Of several
// processes at once one does it, and the others use its result.
func renew(ctx context.Context, c *client, dir string, now func() time.Time) (Identity, error) {
	unlock, err := lock(ctx, dir)
	if err != nil {
		return Identity{}, err
	}
	defer unlock()
	if id, done := renewedMeanwhile(dir, c.id, now()); done {
		return id, nil
	}
	key, err := nextKey(dir)
	if err == nil && key.Equal(c.id.Key) { // its certificate was installed, but for the last step
		if err = os.Rename(filepath.Join(dir, fileNextKey), filepath.Join(dir, fileKey)); err == nil {
			key, err = nextKey(dir)
		}
	}
	if err != nil {
		return Identity{}, err
	}
	csr, err := pki.NewCSR(key, "nstance-admin")
	if err != nil {
		return Identity{}, err
	}
	resp, err := c.RenewCertificate(ctx, &apiv1.OperatorServiceRenewCertificateRequest{Csr: csr})
	if err != nil {
		return Identity{}, err
	}
	id, cred := c.id, wire.CredentialOf(resp.GetCredential())
	id.Key, id.Chain, id.Roots = key, cred.Chain, cred.Roots
	if _, err := holder(id.Key, id.Chain); err != nil {
		return Identity{}, err
	}
	if err := id.validate(); err != nil {
		return Identity{}, err
	}
	return id, replaceCertificate(dir, id)
}

func renewedMeanwhile(dir string, mine Identity, now time.Time) (Identity, bool) {
	id, err := LoadIdentity(dir)
	if err != nil || slices.EqualFunc(id.Chain, mine.Chain, bytes.Equal) {
		return id, false
	}
	renewAt, _, err := id.life()
	return id, err == nil && now.Before(renewAt)
}
