package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/registration"
	"github.com/nstance-go/nstance/storage"
)

// encryption is the key set that is not in storage: it seals the others there.
const encryption = "encryption"

// watchPause is how long to wait before a refused step is retried.
const watchPause = 10 * time.Second

// A Key is a key of the cluster as cluster keys prints it.
type Key struct {
	Name        string    `json:"name"`  // identity, workload or nonce
	ID          string    `json:"id"`    // of the key
	Phase       string    `json:"phase"` // next, current or retired
	CreatedAt   time.Time `json:"created_at,omitzero"`
	Since       time.Time `json:"since,omitzero"`         // in this phase
	NotAfter    time.Time `json:"not_after,omitzero"`     // of an authority's certificate
	LastUseEnds time.Time `json:"last_use_ends,omitzero"` // when the last thing signed with it expires; absent: not known
	NextStepAt  time.Time `json:"next_step_at,omitzero"`  // when activate or finish is possible at the earliest
	Holders     *int      `json:"holders,omitempty"`      // what in this shard depends on it; absent: only the shard's server knows
}

func keyOf(w *apiv1.Key) Key {
	holders := int(w.GetHolders())
	return Key{
		Name: w.GetName(), ID: w.GetId(), Phase: w.GetPhase(), CreatedAt: wire.TimeOf(w.GetCreatedAt()), Since: wire.TimeOf(w.GetSince()),
		NotAfter: wire.TimeOf(w.GetNotAfter()), LastUseEnds: wire.TimeOf(w.GetLastUseEnds()), NextStepAt: wire.TimeOf(w.GetNextStepAt()),
		Holders: &holders,
	}
}

func keysOf(list []*apiv1.Key) []Key {
	out := []Key{}
	for _, k := range list {
		out = append(out, keyOf(k))
	}
	return out
}

// storedKeys returns the keys as storage has them, without what depends on each.
func storedKeys(set func(name string) registration.KeySet) []Key {
	out := []Key{}
	for _, name := range []string{registration.Identity, registration.Workload, registration.Nonces} {
		for _, k := range set(name).Keys {
			key := Key{Name: name, ID: k.ID, Phase: string(k.Phase), CreatedAt: k.CreatedAt, Since: k.Since, NotAfter: k.NotAfter}
			if key.NextStepAt = k.Since.Add(registration.Settle); k.UsedUntil.After(key.NextStepAt) {
				key.NextStepAt = k.UsedUntil
			}
			if k.Phase == registration.PhaseCurrent {
				key.NextStepAt = time.Time{}
			}
			out = append(out, key)
		}
	}
	return out
}

func (t *table) keys(list []Key) {
	t.row("NAME", "ID", "PHASE", "AGE", "SINCE", "HOLDERS", "NEXT STEP FROM", "EXPIRES")
	for _, k := range list {
		holders := ""
		if k.Holders != nil {
			holders = strconv.Itoa(*k.Holders)
		}
		t.row(k.Name, k.ID, k.Phase, t.age(k.CreatedAt), t.age(k.Since), holders, stamp(k.NextStepAt), stamp(k.NotAfter))
	}
}

func (p *program) keysCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "keys", Short: "List the cluster's keys and the state of their rotation", Args: arguments()}
	r, out := p.remote(cmd), p.output(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return r.with(cmd.Context(), func(c *client) error {
			resp, err := c.ListKeys(cmd.Context(), &apiv1.ListKeysRequest{})
			if err != nil {
				return err
			}
			list := keysOf(resp.GetKeys())
			return out.print(list, func(t *table) { t.keys(list) })
		})
	}
	return cmd
}

// A rotation holds the flags of cluster rotate.
type rotation struct {
	p                         *program
	r                         *remote
	out                       *output
	store                     storageAccess
	name, step                string
	watch, force, yes, dryRun bool
	pause                     time.Duration
}

func (p *program) rotateCommand() *cobra.Command {
	o := rotation{p: p, pause: watchPause}
	cmd := &cobra.Command{
		Use:   "rotate identity|workload|nonce|encryption (--step STEP | --watch)",
		Short: "Replace a key of the cluster, with overlap",
		Long: "Replace a key of the cluster, with overlap. The steps are:\n\n" +
			"  begin      a next key is made, which all clients and servers trust and which signs nothing yet\n" +
			"  activate   the next key signs, the current one is retired and still trusted; 5 minutes after begin\n" +
			"  finish     the retired key is destroyed; when nothing in any shard depends on it any more\n" +
			"  abort      the next key is destroyed; instead of activate\n\n" +
			"Each may be repeated. With --watch all of them are taken as soon as they are possible; it may be interrupted\n" +
			"and repeated. A server of any shard takes the steps of identity, workload and nonce.\n\n" +
			"encryption has no steps: objects in storage that are sealed with an older key are sealed again with the first one\n" +
			"of --key-source. Servers must have both keys before.",
		Args: arguments("NAME"), ValidArgs: []string{registration.Identity, registration.Workload, registration.Nonces, encryption},
	}
	o.r, o.out = p.remote(cmd), p.output(cmd)
	o.store.flags(p, cmd)
	o.store.keyFlags(cmd, "encryption: ")
	f := cmd.Flags()
	f.StringVar(&o.step, "step", "", "begin, activate, finish or abort")
	f.BoolVar(&o.watch, "watch", false, "take all steps, each as soon as it is possible")
	f.BoolVar(&o.force, "force", false, "finish although something depends on the retired key: it will be replaced, or must register again")
	yesFlag(cmd, &o.yes)
	dryRunFlag(cmd, &o.dryRun)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o.name = args[0]
		if o.name == encryption {
			return o.reseal(cmd.Context())
		}
		if err := o.check(); err != nil {
			return err
		}
		if err := o.confirm(cmd.Context()); err != nil {
			return err
		}
		keys, err := o.run(cmd.Context())
		if err != nil {
			return err
		}
		return o.out.print(keys, func(t *table) { t.keys(keys) })
	}
	return cmd
}

func (o *rotation) check() error {
	switch {
	case o.name != registration.Identity && o.name != registration.Workload && o.name != registration.Nonces:
		return nstance.FieldError("NAME", "use identity, workload, nonce or encryption", "%q is not known", o.name)
	case (o.step == "") == !o.watch:
		return nstance.FieldError("--step", "name a step, or use --watch for all of them", "one of the two must be given")
	case o.watch && (o.dryRun || o.force):
		return nstance.FieldError("--watch", "take single steps", "cannot be combined with --dry-run or --force")
	}
	return nil
}

func (o *rotation) confirm(ctx context.Context) error {
	var what string
	switch {
	case o.watch:
		what = fmt.Sprintf("rotating the %s key replaces it for good once nothing depends on it", o.name)
	case o.step == string(registration.StepFinish) && o.force:
		what = fmt.Sprintf("finishing by force ends whatever depends on the retired %s key: machines are replaced, operators must register again", o.name)
	case o.step == string(registration.StepFinish):
		what = fmt.Sprintf("finishing destroys the retired %s key", o.name)
	default:
		return nil
	}
	return o.p.confirm(ctx, o.yes || o.dryRun, what)
}

func (o *rotation) run(ctx context.Context) ([]Key, error) {
	if o.watch {
		return o.follow(ctx)
	}
	return o.takeStep(ctx, o.step)
}

// takeStep takes one step. Once another key signs, this administrator's own
// certificate is renewed, so that it does not hold up the rest.
func (o *rotation) takeStep(ctx context.Context, step string) (keys []Key, err error) {
	err = o.r.with(ctx, func(c *client) error {
		resp, err := c.RotateKey(ctx, &apiv1.RotateKeyRequest{Name: o.name, Step: step, Force: o.force, DryRun: o.dryRun})
		if err != nil {
			return err
		}
		keys = keysOf(resp.GetKeys())
		if o.name == registration.Identity && step == string(registration.StepActivate) && !o.dryRun {
			o.r.renewSigned(ctx, c)
		}
		return nil
	})
	return keys, err
}

// follow takes all remaining steps, until the rotation is over.
func (o *rotation) follow(ctx context.Context) (keys []Key, err error) {
	last := ""
	say := func(format string, args ...any) {
		if line := fmt.Sprintf(format, args...); line != last {
			last = line
			o.p.stderr.note("%s", line)
		}
	}
	for began := false; ; {
		if keys, err = o.list(ctx); err == nil {
			step := nextStep(keys)
			if began && step == registration.StepBegin {
				return keys, nil
			}
			if _, err = o.takeStep(ctx, string(step)); err == nil {
				began = true
				say("%s of the %s key is done", step, o.name)
				continue
			}
		}
		switch nstance.CodeOf(err) {
		case nstance.Conflict, nstance.Unavailable, nstance.Throttled: // not yet, or no leader at the moment
			began = began || errors.Is(err, nstance.Conflict) // there is one under way
			say("waiting: %v", err)
		default:
			return nil, err
		}
		if !sleep.For(ctx, o.pause) {
			return nil, fault(nstance.Unavailable, nil, "repeat it to go on", "interrupted, the rotation stays at this step")
		}
	}
}

// list returns the keys of the set.
func (o *rotation) list(ctx context.Context) (keys []Key, err error) {
	err = o.r.with(ctx, func(c *client) error {
		resp, err := c.ListKeys(ctx, &apiv1.ListKeysRequest{})
		for _, k := range keysOf(resp.GetKeys()) {
			if k.Name == o.name {
				keys = append(keys, k)
			}
		}
		return err
	})
	return keys, err
}

// nextStep returns the step that takes a rotation further.
func nextStep(keys []Key) registration.Step {
	step := registration.StepBegin
	for _, k := range keys {
		switch registration.Phase(k.Phase) {
		case registration.PhaseNext:
			return registration.StepActivate
		case registration.PhaseRetired:
			step = registration.StepFinish
		case registration.PhaseCurrent:
		}
	}
	return step
}

// renewSigned renews the administrator's certificate, and uses the new one once, so
// that the server records it as the one in use. A failure is only a warning.
func (r *remote) renewSigned(ctx context.Context, c *client) {
	dir, _, err := r.identity()
	if err == nil {
		var id Identity
		if id, err = renew(ctx, c, dir, r.p.now); err == nil {
			err = r.useIdentity(ctx, c.addr, id)
		}
	}
	if err != nil {
		r.p.stderr.note("warning: this certificate was signed with the old key and has not been renewed: %v", err)
	}
}

func (r *remote) useIdentity(ctx context.Context, addr string, id Identity) error {
	next, err := r.open(addr, id)
	if err != nil {
		return err
	}
	defer next.close()
	_, err = next.GetShardStatus(ctx, &apiv1.GetShardStatusRequest{})
	return err
}

// An Operator is a registered operator or administrator as operator list prints
// it.
type Operator struct {
	ID            string           `json:"id"`
	Tenant        nstance.TenantID `json:"tenant"`
	Role          nstance.Role     `json:"role,omitempty"`
	Hostname      string           `json:"hostname,omitempty"`
	RegisteredAt  time.Time        `json:"registered_at,omitzero"`
	NotAfter      time.Time        `json:"not_after,omitzero"` // of its certificate
	Issuer        string           `json:"issuer,omitempty"`   // ID of the key that signed that
	RevokedAt     time.Time        `json:"revoked_at,omitzero"`
	RevokedReason string           `json:"revoked_reason,omitempty"`
	Error         string           `json:"error,omitempty"` // why its record cannot be read
}

func operatorOf(w *apiv1.Operator) Operator {
	return Operator{
		ID: w.GetId(), Tenant: nstance.TenantID(w.GetTenant()), Role: nstance.Role(w.GetRole()), Hostname: w.GetHostname(),
		RegisteredAt: wire.TimeOf(w.GetRegisteredAt()), NotAfter: wire.TimeOf(w.GetNotAfter()), Issuer: w.GetIssuer(),
		RevokedAt: wire.TimeOf(w.GetRevokedAt()), RevokedReason: w.GetRevokedReason(), Error: w.GetError(),
	}
}

// registeredOperator returns an operator as its record in storage has it.
func registeredOperator(key string, data []byte) Operator {
	var rec struct {
		Operator *registration.OperatorRegistration `json:"operator"`
	}
	err := storage.Readable(key, data)
	if err == nil {
		err = json.Unmarshal(data, &rec)
	}
	if err == nil && rec.Operator == nil {
		err = nstance.Errorf(nstance.Invalid, "%s is not an operator's record", key)
	}
	if err != nil {
		return Operator{Error: err.Error()}
	}
	r := rec.Operator
	o := Operator{ID: r.Name, Tenant: r.Tenant, Role: r.Role, Hostname: r.Hostname, RegisteredAt: r.RegisteredAt, RevokedReason: r.RevokedReason}
	if c := cmp.Or(r.Pending, r.Current); c != nil {
		o.NotAfter, o.Issuer = c.NotAfter, c.Issuer
	}
	if r.Revoked {
		o.RevokedAt = r.RevokedAt
		if o.RevokedAt.IsZero() { // marked by hand
			o.RevokedAt = r.RegisteredAt
		}
	}
	return o
}

// status returns the operator's status in one word.
func (o Operator) status(now time.Time) string {
	switch {
	case o.Error != "":
		return "unreadable"
	case !o.RevokedAt.IsZero():
		return "revoked"
	case !now.Before(o.NotAfter):
		return "expired"
	}
	return "good"
}

func (p *program) operatorCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "operator", Short: "Operators and administrators who have registered"}
	cmd.AddCommand(p.registerCommand(nstance.RoleOperator), p.operatorListCommand(), p.operatorRevokeCommand())
	return cmd
}

func (p *program) operatorListCommand() *cobra.Command {
	var all bool
	cmd := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List registered operators and administrators", Args: arguments()}
	cmd.Flags().BoolVar(&all, "all", false, "also those whose certificate has expired")
	r, out := p.remote(cmd), p.output(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return r.with(cmd.Context(), func(c *client) error {
			list := []Operator{}
			err := eachPage(func(page string) (paged, error) {
				resp, err := c.ListOperators(cmd.Context(), &apiv1.ListOperatorsRequest{Page: page})
				for _, w := range resp.GetOperators() {
					if o := operatorOf(w); all || o.status(p.now()) != "expired" {
						list = append(list, o)
					}
				}
				return resp, err
			})
			if err != nil {
				return err
			}
			return out.print(list, func(t *table) { t.operators(list) })
		})
	}
	return cmd
}

func (t *table) operators(list []Operator) {
	if len(list) == 0 {
		t.say("no operators")
		return
	}
	t.row("ID", "TENANT", "ROLE", "STATUS", "REGISTERED", "CERTIFICATE UNTIL", "DETAILS")
	for _, o := range list {
		t.row(o.ID, string(o.Tenant), string(o.Role), o.status(t.now), t.age(o.RegisteredAt), stamp(o.NotAfter),
			strings.Join([]string{o.RevokedReason, o.Error}, ""))
	}
}

// A Revocation is what operator revoke prints.
type Revocation struct {
	ID     string `json:"id"`
	Tenant string `json:"tenant"`
	DryRun bool   `json:"dry_run"`
}

func (p *program) operatorRevokeCommand() *cobra.Command {
	var tenant, reason string
	var yes, dryRun bool
	cmd := &cobra.Command{
		Use: "revoke ID", Short: "Revoke an operator or administrator", Args: arguments("ID"),
		Long: "Revoke an operator or administrator: its calls at once, its watches at once where this shard's server\n" +
			"leads and within a minute elsewhere. It cannot be undone; registering again needs a new nonce.",
	}
	cmd.Flags().StringVar(&tenant, "tenant", "", "tenant of the operator (default that of this identity)")
	cmd.Flags().StringVar(&reason, "reason", "", "reason, for the record")
	yesFlag(cmd, &yes)
	dryRunFlag(cmd, &dryRun)
	r, out := p.remote(cmd), p.output(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := p.confirm(cmd.Context(), yes || dryRun, fmt.Sprintf("revoking %s ends its access for good", args[0])); err != nil {
			return err
		}
		return r.with(cmd.Context(), func(c *client) error {
			_, err := c.RevokeOperator(cmd.Context(), &apiv1.RevokeOperatorRequest{Id: args[0], Tenant: tenant, Reason: reason, DryRun: dryRun})
			if err != nil {
				return err
			}
			v := Revocation{args[0], tenant, dryRun}
			return out.print(v, func(t *table) {
				if dryRun {
					t.say("%s would be revoked", v.ID)
					return
				}
				t.say("%s is revoked", v.ID)
			})
		})
	}
	return cmd
}
