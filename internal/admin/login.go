package admin

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/status"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/duration"
	"github.com/nstance-go/nstance/internal/operatorapi"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/wire"
)

// Default ports of a server.
const (
	portRegistration = "8992"
	portOperator     = "8993"
	portHTTP         = "8990"
)

// LoginOptions configure how an administrator gets a first certificate. Nonce, CA and
// Registration are required.
type LoginOptions struct {
	Nonce        string          // of kind admin, from nstance-admin cluster nonce
	CA           []byte          // PEM: the identity authority, from nstance-admin cluster nonce --ca-output
	Registration []string        // registration addresses, host or host:port; the first that answers serves
	Servers      []string        // operator API addresses; none: the hosts of Registration at the default port
	Shard        nstance.ShardID // required when the nonce is for any shard
	Timeout      time.Duration   // of each attempt; default 30s
	Role         nstance.Role    // of the nonce: admin, which is the default, or operator
	Replace      bool            // an identity of another cluster or shard may be replaced

	// Unreachable is called when no operator address answers: the identity is saved, and of no
	// use there. Nil: it is ignored.
	Unreachable func(servers []string, err error)
}

// Login exchanges a nonce for an identity and saves it in dir. It may be
// repeated: until it has succeeded the same nonce goes with the same key. It
// fails with Denied when the nonce is refused, Conflict when dir holds an
// identity for another shard, Invalid for anything wrong in opts, Unavailable when
// no address answers.
func Login(ctx context.Context, dir string, opts *LoginOptions) (Identity, error) {
	e, err := prepare(dir, opts)
	if err != nil {
		return Identity{}, err
	}
	if err := makeDir(dir); err != nil {
		return Identity{}, err
	}
	id := e.id
	if id.Key, err = nextKey(dir); err != nil {
		return Identity{}, err
	}
	cred, err := e.register(ctx, id.Key)
	if err != nil {
		return Identity{}, err
	}
	id.Servers = e.id.Servers // a standby may have named the leader
	if id.Chain, id.Roots = cred.Chain, cred.Roots; len(id.Roots) == 0 {
		return Identity{}, nstance.Errorf(nstance.Internal, "the server sent no authority to trust")
	}
	if _, err := holder(id.Key, id.Chain); err != nil {
		return Identity{}, err
	}
	id.Servers = e.collectAddresses(ctx, id)
	if err := forget(dir); err != nil {
		return Identity{}, err
	}
	return id, install(dir, id)
}

// Rehearse checks all that Login does before it uses the nonce, and that a server
// of the shard answers. It uses and writes nothing. It does not check what only the
// server knows, such as whether the nonce has been used. It fails like Login.
func Rehearse(ctx context.Context, dir string, opts *LoginOptions) (Identity, error) {
	e, err := prepare(dir, opts)
	if err != nil {
		return Identity{}, err
	}
	if !time.Now().Before(e.expires) {
		return Identity{}, fault(nstance.Denied, nil, "mint another one with nstance-admin cluster nonce", "the nonce expired at "+stamp(e.expires))
	}
	for _, addr := range e.Registration {
		if err = e.checkReachable(ctx, addr); nstance.CodeOf(err) != nstance.Unavailable {
			break
		}
	}
	return e.id, err
}

// A loginRequest is the checked input of Login and Rehearse.
type loginRequest struct {
	LoginOptions
	id      Identity // without key and certificate
	roots   *x509.CertPool
	expires time.Time // of the nonce
}

func prepare(dir string, opts *LoginOptions) (*loginRequest, error) {
	e := &loginRequest{}
	if opts != nil {
		e.LoginOptions = *opts
	}
	e.Role, e.Timeout = cmp.Or(e.Role, nstance.RoleAdmin), cmp.Or(e.Timeout, defaultTimeout)
	c, err := operatorapi.ReadNonce(e.Nonce, e.Role)
	if err != nil {
		return nil, err
	}
	if e.Shard = cmp.Or(e.Shard, c.Shard); e.Shard == "" {
		return nil, nstance.FieldError("shard", "name the shard with --shard", "the nonce is for any shard")
	}
	if c.Shard != "" && c.Shard != e.Shard {
		return nil, nstance.FieldError("shard", "mint a nonce for this shard", "the nonce is for shard %q, not %q", c.Shard, e.Shard)
	}
	if e.Registration, err = withPorts("registration", e.Registration, portRegistration); err != nil {
		return nil, err
	}
	if len(e.Servers) == 0 {
		e.Servers = hostsOf(e.Registration)
	}
	if e.Servers, err = withPorts("operator-addr", e.Servers, portOperator); err != nil {
		return nil, err
	}
	if e.roots, err = poolOf(e.CA); err != nil {
		return nil, err
	}
	e.id, e.expires = Identity{Servers: e.Servers, Cluster: c.Cluster, Shard: e.Shard}, c.Expiry
	return e, e.mayReplace(dir)
}

func poolOf(pem []byte) (*x509.CertPool, error) {
	certs, err := pki.ParseCertificates(pem)
	if err != nil {
		return nil, nstance.FieldError("ca", "use what cluster nonce --ca-output wrote", "%v", err)
	}
	pool := x509.NewCertPool()
	for _, c := range certs {
		pool.AddCert(c)
	}
	return pool, nil
}

// mayReplace protects an identity of another cluster or shard from being overwritten
// by mistake. One that cannot be read may be replaced.
func (e *loginRequest) mayReplace(dir string) error {
	old, err := LoadIdentity(dir)
	if readable := err == nil; !readable || e.Replace || old.Cluster == e.id.Cluster && old.Shard == e.id.Shard {
		return nil
	}
	return fault(nstance.Conflict, nil, "choose another directory with --identity, or replace it with --yes",
		fmt.Sprintf("%s holds an identity for shard %s of cluster %s", dir, old.Shard, old.Cluster))
}

// dialer returns the dialer of servers that the request trusts.
func (e *loginRequest) dialer() dialer {
	return dialer{tls: pki.ClientTLS(e.roots, nil, e.id.Shard, e.id.Cluster), timeout: e.Timeout}
}

// checkReachable returns nil if such a server answers at addr. Nothing is sent to it.
func (e *loginRequest) checkReachable(ctx context.Context, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, e.Timeout)
	defer cancel()
	cfg := e.dialer().tls
	cfg.NextProtos = []string{"h2"}
	conn, err := (&tls.Dialer{NetDialer: &net.Dialer{Timeout: operatorapi.DialTimeout}, Config: cfg}).DialContext(ctx, "tcp", addr)
	switch {
	case err == nil:
		_ = conn.Close()
		return nil
	case ctx.Err() != nil:
		return explain(addr, e.Timeout, status.FromContextError(ctx.Err()).Err())
	}
	return unreachable(addr, err, err.Error())
}

// register registers at the first address that leads. It follows the address that a
// standby names, once.
func (e *loginRequest) register(ctx context.Context, key ed25519.PrivateKey) (nstance.Credential, error) {
	csr, err := pki.NewCSR(key, "nstance-admin")
	if err != nil {
		return nstance.Credential{}, err
	}
	req := &apiv1.RegisterOperatorRequest{Nonce: strings.TrimSpace(e.Nonce), Csr: csr}
	var leader, by string
	for _, addr := range e.Registration {
		var cred nstance.Credential
		cred, err = registerAt(ctx, addr, e.dialer(), req)
		if nstance.CodeOf(err) != nstance.Unavailable {
			return cred, err
		}
		if s, ok := errors.AsType[*nstance.Error](err); ok && s.Leader != "" {
			e.id.Servers = appendNew(e.id.Servers, s.Leader)
			leader, by = s.LeaderRegistration, addr
		}
	}
	if leader == "" || slices.Contains(e.Registration, leader) {
		return nstance.Credential{}, err
	}
	cred, err := registerAt(ctx, leader, e.dialer(), req)
	if err != nil {
		err = fmt.Errorf("%s, which leads according to %s: %w", leader, by, err)
	}
	return cred, err
}

// collectAddresses returns the identity's addresses and those of the other servers
// that the leader knows. It reports when none of them answers.
func (e *loginRequest) collectAddresses(ctx context.Context, id Identity) []string {
	ctx, cancel := context.WithTimeout(ctx, operatorapi.DialTimeout)
	defer cancel()
	cfg, err := id.tls()
	if err != nil {
		return id.Servers
	}
	var failed error
	for _, addr := range id.Servers {
		s, err := shardStatus(ctx, addr, dialer{tls: cfg, timeout: e.Timeout})
		if err != nil {
			failed = fmt.Errorf("%s: %w", addr, err)
			continue
		}
		servers := appendNew(id.Servers, s.GetLeaderAddress())
		for _, b := range s.GetStandbys() {
			servers = appendNew(servers, b.GetAddress())
		}
		return servers
	}
	if e.Unreachable != nil {
		e.Unreachable(id.Servers, failed)
	}
	return id.Servers
}

func shardStatus(ctx context.Context, addr string, d dialer) (*apiv1.GetShardStatusResponse, error) {
	conn, err := d.open(addr)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	s, err := apiv1.NewOperatorServiceClient(conn).GetShardStatus(ctx, &apiv1.GetShardStatusRequest{})
	return s, err
}

func appendNew(list []string, addr string) []string {
	if addr == "" || slices.Contains(list, addr) {
		return list
	}
	return append(slices.Clone(list), addr)
}

func registerAt(ctx context.Context, addr string, d dialer, req *apiv1.RegisterOperatorRequest) (nstance.Credential, error) {
	conn, err := d.open(addr)
	if err != nil {
		return nstance.Credential{}, err
	}
	defer conn.Close()
	resp, err := apiv1.NewRegistrationServiceClient(conn).RegisterOperator(ctx, req)
	return wire.CredentialOf(resp.GetCredential()), err
}

// holder checks that a chain is for key and for an administrator or operator.
func holder(key ed25519.PrivateKey, chain [][]byte) (nstance.Identity, error) {
	pair, err := Identity{Key: key, Chain: chain}.pair()
	if err != nil {
		return nstance.Identity{}, fmt.Errorf("the server sent an unusable certificate: %w", err)
	}
	who, err := pki.IdentityOf(pair.Leaf)
	if err == nil && who.Role != nstance.RoleAdmin && who.Role != nstance.RoleOperator {
		err = nstance.Errorf(nstance.Denied, "the server sent a certificate of role %s", who.Role)
	}
	return who, err
}

// withPorts checks addresses and completes those without a port.
func withPorts(field string, addrs []string, port string) ([]string, error) {
	if len(addrs) == 0 {
		return nil, nstance.FieldError(field, "name it with --"+field, "there is no address")
	}
	var out []string
	for _, addr := range addrs {
		host, p, err := net.SplitHostPort(addr)
		if bare := strings.Trim(addr, "[]"); err != nil && (net.ParseIP(bare) != nil || !strings.Contains(bare, ":")) {
			host, p, err = bare, port, nil
		}
		if err == nil {
			_, err = strconv.ParseUint(p, 10, 16)
		}
		if err != nil || host == "" || strings.ContainsAny(host, "/ ") {
			return nil, nstance.FieldError(field, "use host or host:port", "%q is not an address", addr)
		}
		out = append(out, net.JoinHostPort(host, p))
	}
	return out, nil
}

func hostsOf(addrs []string) []string {
	var out []string
	for _, addr := range addrs {
		if host, _, err := net.SplitHostPort(addr); err == nil {
			out = append(out, host)
		}
	}
	return out
}

// LoginResult is what login prints.
type LoginResult struct {
	Identity string            `json:"identity"`          // the directory
	Subject  string            `json:"subject,omitempty"` // the server chooses it
	Cluster  nstance.ClusterID `json:"cluster"`
	Shard    nstance.ShardID   `json:"shard"`
	Servers  []string          `json:"servers"`
	NotAfter time.Time         `json:"not_after,omitzero"`
	DryRun   bool              `json:"dry_run"`
}

func loginCommand(env environment) *cobra.Command { return registerCommand(env, nstance.RoleAdmin) }

// registerCommand is login, or for an operator operator register.
func registerCommand(env environment, role nstance.Role) *cobra.Command {
	o := LoginOptions{Role: role}
	var nonce, ca, shard, dir string
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "login --nonce FILE|- --registration ADDR --ca FILE",
		Short: "Exchange a nonce of kind admin for a certificate",
		Long: "Exchange a nonce of kind admin for a certificate, which every other command uses with the\n" +
			"shard's server. It is valid for 24 hours and is renewed by any command that runs in its last third.",
		Args: arguments(),
	}
	if role == nstance.RoleOperator {
		cmd.Use = "register --nonce FILE|- --registration ADDR --ca FILE --identity DIR"
		cmd.Short = "Exchange a nonce of kind operator for a certificate of its tenant"
		cmd.Long = "Exchange a nonce of kind operator for a certificate of its tenant, for a program that is to act for the tenant,\n" +
			"or for nstance-admin itself: with that --identity it sees the tenant's groups and instances only. It lives 24\n" +
			"hours and is renewed by any command that shows it in its last third."
	}
	f := cmd.Flags()
	f.StringVar(&nonce, "nonce", "", "file that holds the nonce, - for standard input")
	f.StringVar(&ca, "ca", "", "file of the cluster's identity authority, PEM, from cluster nonce --ca-output")
	f.StringSliceVar(&o.Registration, "registration", nil, "registration address of a server, port 8992 by default; may be repeated")
	f.StringSliceVar(&o.Servers, "operator-addr", nil, "operator API address to save, by default each of those hosts at port 8993; may be repeated")
	f.StringVar(&shard, "shard", "", "shard, if the nonce is for any")
	f.Var(duration.NewFlag(&o.Timeout, defaultTimeout), "timeout", "how long an answer may take")
	f.BoolVarP(&o.Replace, "yes", "y", false, "replace an identity for another shard without asking")
	identityFlag(cmd, &dir)
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "check the nonce, and that a server of the shard answers, but do not use it")
	out := newOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if o.Nonce, err = readInput(cmd, "nonce", nonce, operatorapi.MaxNonce); err != nil {
			return err
		}
		pem, err := readInput(cmd, "ca", ca, 1<<20)
		if err != nil {
			return err
		}
		o.CA, o.Shard = []byte(pem), nstance.ShardID(shard)
		if role == nstance.RoleOperator && dir == "" {
			return nstance.FieldError("--identity", "name a directory for it", "is not given")
		}
		if dir, err = env.identityDir(dir); err != nil {
			return err
		}
		if dryRun {
			return rehearseLogin(cmd, dir, &o, out)
		}
		return login(cmd, dir, &o, out)
	}
	return cmd
}

func rehearseLogin(cmd *cobra.Command, dir string, o *LoginOptions, out *output) error {
	var id Identity
	err := stderrOf(cmd).slow("connecting to "+strings.Join(o.Registration, ", "), func() (err error) {
		id, err = Rehearse(cmd.Context(), dir, o)
		return err
	})
	if err != nil {
		return err
	}
	r := LoginResult{Identity: dir, Cluster: id.Cluster, Shard: id.Shard, Servers: id.Servers, DryRun: true}
	return out.print(r, func(t *table) {
		t.say("a server of shard %s of cluster %s answers; the nonce would be used, and the identity saved in %s", r.Shard, r.Cluster, r.Identity)
	})
}

func login(cmd *cobra.Command, dir string, o *LoginOptions, out *output) error {
	var id Identity
	o.Unreachable = func(servers []string, err error) {
		stderrOf(cmd).note("warning: the identity is saved, but no server answers at %s: name the operators' addresses with --operator-addr and log in again: %v", strings.Join(servers, ", "), err)
	}
	err := stderrOf(cmd).slow("registering at "+strings.Join(o.Registration, ", "), func() (err error) {
		id, err = Login(cmd.Context(), dir, o)
		return err
	})
	if err != nil {
		return err
	}
	who, err := holder(id.Key, id.Chain)
	if err != nil {
		return err
	}
	r := LoginResult{Identity: dir, Subject: who.Subject, Cluster: id.Cluster, Shard: id.Shard, Servers: id.Servers, NotAfter: who.NotAfter}
	return out.print(r, func(t *table) {
		t.say("logged in to shard %s of cluster %s as %s, certificate until %s", r.Shard, r.Cluster, r.Subject, stamp(r.NotAfter))
	})
}

// readInput returns what the file, or standard input for -, holds: at most limit bytes. A
// missing file is a mistake in the command line, not an absent object.
func readInput(cmd *cobra.Command, flag, path string, limit int64) (string, error) {
	in := cmd.InOrStdin()
	switch path {
	case "":
		return "", nstance.FieldError("--"+flag, "name the file", "is not given")
	case "-":
	default:
		f, err := os.Open(path)
		if err != nil {
			return "", nstance.FieldError("--"+flag, "name a file that can be read", "%v", err)
		}
		defer f.Close() // only read from
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = errors.New("it is too large")
	}
	if err != nil {
		return "", nstance.FieldError("--"+flag, "name the right file", "%s: %v", path, err)
	}
	return string(data), nil
}
