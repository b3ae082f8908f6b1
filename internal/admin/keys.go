package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/registration"
)

// encryption is the key set that is not in storage: it seals the others there.
const encryption = "encryption"

// watchPause is how long to wait before a refused step is retried.
const watchPause = 10 * time.Second

// storedKeys are the keys as storage has them. Holders and LastUseEnds are unset:
// only a server knows what depends on a key.
type storedKeys []*apiv1.Key

// MarshalJSON implements json.Marshaler. Unset fields are left out.
func (keys storedKeys) MarshalJSON() ([]byte, error) {
	out := make([]json.RawMessage, len(keys))
	for i, k := range keys {
		data, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(k)
		if err != nil {
			return nil, err
		}
		out[i] = data
	}
	return json.Marshal(out)
}

// newStoredKeys returns the keys of all sets.
func newStoredKeys(set func(name string) keyring.KeySet) storedKeys {
	var out storedKeys
	for _, name := range []string{keyring.Identity, keyring.Workload, keyring.Nonces} {
		for _, k := range set(name).Keys {
			out = append(out, &apiv1.Key{
				Name: name, Id: k.ID, Phase: string(k.Phase), CreatedAt: wire.Time(k.CreatedAt), Since: wire.Time(k.Since),
				NotAfter: wire.Time(k.NotAfter), NextStepAt: wire.Time(k.NextStepAt()),
			})
		}
	}
	return out
}

func writeKeys(t *table, list []*apiv1.Key, holders func(*apiv1.Key) string) {
	t.row("NAME", "ID", "PHASE", "AGE", "SINCE", "HOLDERS", "NEXT STEP FROM", "EXPIRES")
	for _, k := range list {
		t.row(k.GetName(), k.GetId(), k.GetPhase(), t.age(k.GetCreatedAt()), t.age(k.GetSince()), holders(k),
			stampOf(k.GetNextStepAt()), stampOf(k.GetNotAfter()))
	}
}

// countHolders is for keys of a server.
func countHolders(k *apiv1.Key) string { return strconv.Itoa(int(k.GetHolders())) }

// unknownHolders is for keys of a storage.
func unknownHolders(*apiv1.Key) string { return "" }

func keysCommand(env environment) *cobra.Command {
	cmd := &cobra.Command{Use: "keys", Short: "List the cluster's keys and the state of their rotation", Args: arguments()}
	r, out := newRemote(cmd, env), newOutput(cmd)
	cmd.RunE = r.run(func(c *client, _ []string) error {
		resp, err := c.ListKeys(cmd.Context(), &apiv1.ListKeysRequest{})
		if err != nil {
			return err
		}
		list := resp.GetKeys()
		return out.print(documents(list), func(t *table) { writeKeys(t, list, countHolders) })
	})
	return cmd
}

// A rotation holds the flags of cluster rotate.
type rotation struct {
	cmd                       *cobra.Command
	r                         *remote
	out                       *output
	store                     storageAccess
	name, step                string
	watch, force, yes, dryRun bool
	pause                     time.Duration
}

func rotateCommand(env environment, open openStore) *cobra.Command {
	o := rotation{pause: watchPause}
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
		Args: arguments("NAME"), ValidArgs: []string{keyring.Identity, keyring.Workload, keyring.Nonces, encryption},
	}
	o.cmd, o.r, o.out = cmd, newRemote(cmd, env), newOutput(cmd)
	o.store.flags(cmd, open)
	o.store.keyFlags(cmd, env, "encryption: ")
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
		if err := o.confirm(); err != nil {
			return err
		}
		keys, err := o.run(cmd.Context())
		return o.out.result(documents(keys), err, func(t *table) { writeKeys(t, keys, countHolders) })
	}
	return cmd
}

func (o *rotation) check() error {
	switch {
	case o.name != keyring.Identity && o.name != keyring.Workload && o.name != keyring.Nonces:
		return nstance.FieldError("NAME", "use identity, workload, nonce or encryption", "%q is not known", o.name)
	case (o.step == "") == !o.watch:
		return nstance.FieldError("--step", "name a step, or use --watch for all of them", "one of the two must be given")
	case o.watch && (o.dryRun || o.force):
		return nstance.FieldError("--watch", "take single steps", "cannot be combined with --dry-run or --force")
	}
	return nil
}

func (o *rotation) confirm() error {
	var what string
	switch {
	case o.watch:
		what = fmt.Sprintf("rotating the %s key replaces it for good once nothing depends on it", o.name)
	case o.step == string(keyring.StepFinish) && o.force:
		what = fmt.Sprintf("finishing by force ends whatever depends on the retired %s key: machines are replaced, operators must register again", o.name)
	case o.step == string(keyring.StepFinish):
		what = fmt.Sprintf("finishing destroys the retired %s key", o.name)
	default:
		return nil
	}
	return confirm(o.cmd, o.yes || o.dryRun, what)
}

func (o *rotation) run(ctx context.Context) ([]*apiv1.Key, error) {
	if o.watch {
		return o.follow(ctx)
	}
	return o.takeStep(ctx, o.step)
}

// takeStep takes one step. Once another key signs, this administrator's own
// certificate is renewed, so that it does not hold up the rest.
func (o *rotation) takeStep(ctx context.Context, step string) (keys []*apiv1.Key, err error) {
	err = o.r.with(ctx, func(c *client) error {
		resp, err := c.RotateKey(ctx, &apiv1.RotateKeyRequest{Name: o.name, Step: step, Force: o.force, DryRun: o.dryRun})
		if err != nil {
			return err
		}
		keys = resp.GetKeys()
		if o.name == keyring.Identity && step == string(keyring.StepActivate) && !o.dryRun {
			o.r.renewSigned(ctx, c)
		}
		return nil
	})
	return keys, err
}

// follow takes all remaining steps, until the rotation is over.
func (o *rotation) follow(ctx context.Context) (keys []*apiv1.Key, err error) {
	last := ""
	say := func(format string, args ...any) {
		if line := fmt.Sprintf(format, args...); line != last {
			last = line
			o.r.stderr.note("%s", line)
		}
	}
	for began := false; ; {
		if keys, err = o.list(ctx); err == nil {
			step := nextStep(keys)
			if began && step == keyring.StepBegin {
				return keys, nil
			}
			began = began || step != keyring.StepBegin // there is one under way
			if _, err = o.takeStep(ctx, string(step)); err == nil {
				began = true
				say("%s of the %s key is done", step, o.name)
				continue
			}
		}
		switch nstance.CodeOf(err) {
		case nstance.Conflict, nstance.Unavailable, nstance.Throttled: // not yet, or no leader at the moment
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
func (o *rotation) list(ctx context.Context) (keys []*apiv1.Key, err error) {
	err = o.r.with(ctx, func(c *client) error {
		resp, err := c.ListKeys(ctx, &apiv1.ListKeysRequest{})
		keys = slices.DeleteFunc(resp.GetKeys(), func(k *apiv1.Key) bool { return k.GetName() != o.name })
		return err
	})
	return keys, err
}

// nextStep returns the step that takes a rotation further.
func nextStep(keys []*apiv1.Key) keyring.Step {
	step := keyring.StepBegin
	for _, k := range keys {
		switch keyring.Phase(k.GetPhase()) {
		case keyring.PhaseNext:
			return keyring.StepActivate
		case keyring.PhaseRetired:
			step = keyring.StepFinish
		case keyring.PhaseCurrent:
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
		if id, err = renew(ctx, c, dir, time.Now); err == nil {
			err = r.useIdentity(ctx, c.addr, id)
		}
	}
	if err != nil {
		r.stderr.note("warning: this certificate was signed with the old key and has not been renewed: %v", err)
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

// The states of an operator or administrator.
const (
	operatorGood       = "good"
	operatorExpired    = "expired" // it needs a new nonce
	operatorRevoked    = "revoked"
	operatorUnreadable = "unreadable"
)

func operatorState(o *apiv1.Operator, now time.Time) string {
	switch {
	case o.GetError() != "":
		return operatorUnreadable
	case o.GetRevokedAt() != nil:
		return operatorRevoked
	case !now.Before(wire.TimeOf(o.GetNotAfter())):
		return operatorExpired
	}
	return operatorGood
}

// storedOperatorState is operatorState of a record in storage.
func storedOperatorState(key string, data []byte, now time.Time) string {
	var rec struct {
		Operator *registration.OperatorRegistration `json:"operator"`
	}
	if records.Readable(key, data) != nil || json.Unmarshal(data, &rec) != nil || rec.Operator == nil {
		return operatorUnreadable
	}
	switch c := cmp.Or(rec.Operator.Pending, rec.Operator.Current); {
	case rec.Operator.Revoked:
		return operatorRevoked
	case c == nil || !now.Before(c.NotAfter):
		return operatorExpired
	}
	return operatorGood
}

func operatorCommand(env environment) *cobra.Command {
	cmd := &cobra.Command{Use: "operator", Short: "Operators and administrators who have registered"}
	cmd.AddCommand(registerCommand(env, nstance.RoleOperator), operatorListCommand(env), operatorRevokeCommand(env))
	return cmd
}

func operatorListCommand(env environment) *cobra.Command {
	var all bool
	cmd := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List registered operators and administrators", Args: arguments()}
	cmd.Flags().BoolVar(&all, "all", false, "also those whose certificate has expired")
	r, out := newRemote(cmd, env), newOutput(cmd)
	cmd.RunE = r.run(func(c *client, _ []string) error {
		list, err := c.operators(cmd.Context())
		list = slices.DeleteFunc(list, func(o *apiv1.Operator) bool { return !all && operatorState(o, time.Now()) == operatorExpired })
		return out.result(documents(list), err, func(t *table) { writeOperators(t, list) })
	})
	return cmd
}

func (c *client) operators(ctx context.Context) ([]*apiv1.Operator, error) {
	return allPages(func(page string) (*apiv1.ListOperatorsResponse, error) {
		return c.ListOperators(ctx, &apiv1.ListOperatorsRequest{Page: page})
	}, (*apiv1.ListOperatorsResponse).GetOperators)
}

func writeOperators(t *table, list []*apiv1.Operator) {
	if len(list) == 0 {
		t.say("no operators")
		return
	}
	t.row("ID", "TENANT", "ROLE", "STATUS", "REGISTERED", "CERTIFICATE UNTIL", "DETAILS")
	for _, o := range list {
		t.row(o.GetId(), o.GetTenant(), o.GetRole(), operatorState(o, t.now), t.age(o.GetRegisteredAt()), stampOf(o.GetNotAfter()),
			o.GetRevokedReason()+o.GetError())
	}
}

func operatorRevokeCommand(env environment) *cobra.Command {
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
	r, out := newRemote(cmd, env), newOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := confirm(cmd, yes || dryRun, fmt.Sprintf("revoking %s ends its access for good", args[0])); err != nil {
			return err
		}
		return r.with(cmd.Context(), func(c *client) error {
			resp, err := c.RevokeOperator(cmd.Context(), &apiv1.RevokeOperatorRequest{Id: args[0], Tenant: tenant, Reason: reason, DryRun: dryRun})
			return out.result(document{resp}, err, func(t *table) {
				if dryRun {
					t.say("%s would be revoked", args[0])
					return
				}
				t.say("%s is revoked", args[0])
			})
		})
	}
	return cmd
}
