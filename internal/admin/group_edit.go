package admin

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/duration"
	"github.com/nstance-go/nstance/internal/wire"
)

// A groupForm holds the flags that describe a group.
type groupForm struct {
	flags *pflag.FlagSet // those about the group, which know whether they were said

	tenant, template, pool, args, surge string
	bootstrapFile, owner                string
	size                                int32
	types, balancers, vars              []string
	drain, ready                        time.Duration
	halt                                int32
	protect, dryRun, yes                bool

	market, price, fallback, base string
	fallbackAfter, returnAfter    time.Duration
	spreadBy, maxShare, onReclaim string
	onRebalance, onMaintenance    string
	onDrainTimeout                string
	order                         string
	warmSize                      int32
	warmMode                      string
	warmAge                       time.Duration
	warmOnce                      bool
	fallbackReclaims              int32
	fallbackWindow                time.Duration
}

func newGroupForm(cmd *cobra.Command) *groupForm {
	f := &groupForm{flags: pflag.NewFlagSet("", pflag.ContinueOnError)}
	f.flags.StringVar(&f.template, "template", "", "template of the configuration that it is made from")
	f.flags.Int32Var(&f.size, "size", 0, "desired number of members")
	f.flags.StringSliceVar(&f.types, "instance-type", nil, "machine type; several in order of preference")
	f.flags.StringVar(&f.pool, "subnet-pool", "", "subnet pool")
	f.flags.StringArrayVar(&f.vars, "var", nil, "variable, as name=value; may be repeated")
	f.flags.StringVar(&f.args, "args", "", "arguments of the provider, a JSON object, or @FILE that holds one")
	f.flags.StringSliceVar(&f.balancers, "load-balancer", nil, "load balancer of the configuration; may be repeated")
	f.flags.Var(duration.NewFlag(&f.drain, 0), "drain-timeout", "longest drain of a member; 0 deletes without one")
	f.flags.StringVar(&f.surge, "max-surge", "", "spare members while replacing, a count or a percentage")
	f.flags.Var(duration.NewFlag(&f.ready, 0), "min-ready", "how long a member must be healthy before it counts as ready")
	f.flags.Int32Var(&f.halt, "halt-after", 0, "failed replacements in a row that stop a rollout; 0 means never")
	f.flags.StringVar(&f.market, "market", "", "how capacity is bought: on-demand or spot")
	f.flags.StringVar(&f.price, "max-price", "", "with --market spot: highest price an hour, a decimal in the cloud's currency")
	f.flags.StringVar(&f.fallback, "fallback", "", "with --market spot: market to use while spot is sold out: on-demand (default none)")
	f.flags.Var(duration.NewFlag(&f.fallbackAfter, 0), "fallback-after", "with --fallback: how long spot must be sold out first")
	f.flags.Int32Var(&f.fallbackReclaims, "fallback-reclaims", 0, "with --fallback: reclaims within --fallback-window, from which on it is used")
	f.flags.Var(duration.NewFlag(&f.fallbackWindow, 0), "fallback-window", "with --fallback-reclaims: within which time")
	f.flags.Var(duration.NewFlag(&f.returnAfter, 0), "return-after", "with --fallback: how long after a fallback a member returns to spot (default 30m)")
	f.flags.StringVar(&f.base, "on-demand-base", "", "with --market spot: members that are on-demand in any case, a count or a percentage")
	f.flags.StringVar(&f.maxShare, "max-share", "", "members in one place, as far as there is capacity elsewhere, a count or a percentage; '' for no bound")
	f.flags.StringVar(&f.onRebalance, "on-rebalance", "", "what a recommendation to rebalance does: ignore; replace the machine; or cordon, which replaces it and lets its work end by itself (default ignore)")
	f.flags.StringVar(&f.onMaintenance, "on-maintenance", "", "what planned maintenance does that ends or restarts a machine: ignore, or replace it (default replace)")
	f.flags.StringVar(&f.onReclaim, "on-reclaim", "", "what is done with the work on a member that is reclaimed: drain, or cordon to let it end by itself (default drain)")
	f.flags.StringVar(&f.onDrainTimeout, "on-drain-timeout", "", "what is done with a member that is not empty in time, in a drain for a rollout, a surplus or a request: delete, or wait without limit (default delete)")
	f.flags.StringVar(&f.order, "order", "", "which of the permitted shapes with capacity a new member has: listed, cheapest or steadiest (default listed)")
	f.flags.Int32Var(&f.warmSize, "warm-pool", 0, "stand-by machines, which are woken for members that are lost; 0 for none")
	f.flags.StringVar(&f.warmMode, "warm-mode", "", "with --warm-pool: how they wait: stopped, hibernated or running (default stopped)")
	f.flags.Var(duration.NewFlag(&f.warmAge, 0), "warm-max-age", "with --warm-pool: age from which they are made anew, one at a time")
	f.flags.BoolVar(&f.warmOnce, "warm-once", false, "with --warm-pool: one that was woken is deleted when it is not needed any more, and another one made")
	f.flags.StringVar(&f.spreadBy, "spread-by", "", "with --max-share: what counts as one place: pool, type, zone, subnet, market or host (default pool)")
	f.flags.StringVar(&f.bootstrapFile, "bootstrap-data", "", bootstrapDataUsage)
	f.flags.StringVar(&f.owner, "owner", "", "who alone may change the group through the API, such as a cluster's UID; '' ends that")
	f.flags.BoolVar(&f.protect, "protect", false, "refuse deletion of the group")
	cmd.Flags().AddFlagSet(f.flags)
	return f
}

// used reports whether any flag of the group is given.
func (f *groupForm) used() bool {
	used := f.tenant != ""
	f.flags.VisitAll(func(flag *pflag.Flag) { used = used || flag.Changed })
	return used
}

// said returns v if the flag is given, else nil.
func said[T any](f *groupForm, flag string, v T) *T {
	if !f.flags.Changed(flag) {
		return nil
	}
	return &v
}

func (f *groupForm) span(flag string, d time.Duration) *durationpb.Duration {
	if !f.flags.Changed(flag) {
		return nil
	}
	return durationpb.New(d)
}

func (f *groupForm) rollout() *apiv1.Rollout {
	if !f.flags.Changed("max-surge") && !f.flags.Changed("min-ready") && !f.flags.Changed("halt-after") {
		return nil
	}
	return &apiv1.Rollout{MaxSurge: f.surge, MinReady: f.span("min-ready", f.ready), HaltAfter: said(f, "halt-after", f.halt)}
}

// purchase returns the market settings, which are replaced as a whole.
func (f *groupForm) purchase() (*apiv1.Market, error) {
	if f.market == "" {
		for _, name := range []string{"max-price", "fallback", "fallback-after", "return-after", "on-demand-base", "fallback-reclaims", "fallback-window"} {
			if f.flags.Changed(name) {
				return nil, nstance.FieldError("--"+name, "add --market: it is replaced as a whole", "is given alone")
			}
		}
		return nil, nil
	}
	m := &apiv1.Market{
		Type: f.market, MaxPrice: f.price, Fallback: f.fallback, FallbackAfter: f.span("fallback-after", f.fallbackAfter),
		ReturnAfter: f.span("return-after", f.returnAfter), OnDemandBase: f.base,
	}
	if f.flags.Changed("fallback-reclaims") || f.flags.Changed("fallback-window") {
		m.FallbackWhen = &apiv1.ReclaimLimit{Reclaims: f.fallbackReclaims, Window: durationpb.New(f.fallbackWindow)}
	}
	if m.GetFallback() == "none" {
		m.Fallback = ""
	}
	return m, nil
}

// parts returns what is replaced as a whole.
func (f *groupForm) parts() (market *apiv1.Market, bootstrap []byte, pool *apiv1.WarmPool, err error) {
	if market, err = f.purchase(); err == nil {
		bootstrap, err = bootstrapData(f.bootstrapFile)
	}
	if err == nil {
		pool, err = f.warmPool()
	}
	return market, bootstrap, pool, err
}

// spread returns what bounds the members in one place, which is replaced as a whole.
func (f *groupForm) spread() *apiv1.Spread {
	if !f.flags.Changed("max-share") && !f.flags.Changed("spread-by") {
		return nil
	}
	return &apiv1.Spread{By: f.spreadBy, MaxShare: f.maxShare}
}

// warmPool returns the stand-by machines, which are replaced as a whole.
func (f *groupForm) warmPool() (*apiv1.WarmPool, error) {
	if !f.flags.Changed("warm-pool") {
		for _, name := range []string{"warm-mode", "warm-max-age", "warm-once"} {
			if f.flags.Changed(name) {
				return nil, nstance.FieldError("--"+name, "add --warm-pool: it is replaced as a whole", "is given alone")
			}
		}
		return nil, nil
	}
	back := !f.warmOnce
	return &apiv1.WarmPool{Size: f.warmSize, Mode: f.warmMode, MaxAge: f.span("warm-max-age", f.warmAge), Return: &back}, nil
}

// variables takes name=value apart. An empty list is none.
func variables(list []string) (map[string]string, error) {
	out := map[string]string{}
	for _, v := range list {
		name, value, ok := strings.Cut(v, "=")
		if v == "" && len(list) == 1 {
			break
		}
		if !ok || name == "" {
			return nil, nstance.FieldError("--var", "write name=value", "%q is not name=value", v)
		}
		out[name] = value
	}
	return out, nil
}

// textOrFile returns text, or what is in the file that it names after an @.
func textOrFile(flag, text string) (string, error) {
	path, ok := strings.CutPrefix(text, "@")
	if !ok {
		return text, nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return "", nstance.FieldError(flag, "name a file that can be read", "%v", err)
	}
	return string(data), nil
}

func groupCreateCommand(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use: "create GROUP", Short: "Make a group from a template",
		Long: "Make a group from a template of the configuration. Missing settings are those of the template. A repeated\n" +
			"command changes nothing; if the group exists with other settings, the exit code is 6.",
		Args: arguments("GROUP"),
	}
	f := newGroupForm(cmd)
	cmd.Flags().StringVar(&f.tenant, "tenant", "", "make it for this tenant")
	dryRunFlag(cmd, &f.dryRun)
	r, out := newRemote(cmd, env), newOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		req, err := f.created(args[0])
		if err != nil {
			return err
		}
		return r.with(cmd.Context(), func(c *client) error {
			resp, err := c.CreateGroup(cmd.Context(), req)
			return out.result(document{resp}, err, func(t *table) { writeEdited(t, resp, "made", f.dryRun) })
		})
	}
	return cmd
}

func (f *groupForm) created(name string) (*apiv1.CreateGroupRequest, error) {
	vars, err := variables(f.vars)
	if err != nil {
		return nil, err
	}
	market, data, pool, err := f.parts()
	if err != nil {
		return nil, err
	}
	text, err := textOrFile("--args", f.args)
	return &apiv1.CreateGroupRequest{
		Group: name, Tenant: f.tenant, Template: f.template, Size: said(f, "size", f.size), InstanceTypes: f.types, SubnetPool: f.pool,
		Vars: vars, Args: text, LoadBalancers: f.balancers, DrainTimeout: f.span("drain-timeout", f.drain), Rollout: f.rollout(),
		Protect: f.protect, DryRun: f.dryRun, Market: market, BootstrapData: data, Spread: f.spread(), OnReclaim: f.onReclaim,
		OnRebalance: f.onRebalance, OnMaintenance: f.onMaintenance, OnDrainTimeout: f.onDrainTimeout, Order: f.order, WarmPool: pool, Owner: f.owner,
	}, err
}

const bootstrapDataUsage = "file with what {{.BootstrapData}} stands for in the user data, at most 64 KiB"

// bootstrapData reads the file of --bootstrap-data, if one is given.
func bootstrapData(file string) ([]byte, error) {
	if file == "" {
		return nil, nil
	}
	text, err := textOrFile("--bootstrap-data", "@"+file)
	return []byte(text), err
}

func groupUpdateCommand(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use: "update GROUP", Short: "Change a group",
		Long: "Change a group; missing settings stay. --var replaces all variables that were set this way (--var '' removes\n" +
			"them), --args '{}' the arguments. Of a group in the configuration only --size, --instance-type,\n" +
			"--var, --bootstrap-data and --owner can be changed. A group with an owner, such as a Kubernetes cluster, is\n" +
			"changed by administrators, and by operators that name its owner with --owner; --owner '' ends the ownership.\n" +
			"nstance-admin plan shows what a change would replace.",
		Args: arguments("GROUP"),
	}
	var first []string
	f := newGroupForm(cmd)
	cmd.Flags().StringSliceVar(&first, "remove-first", nil, "instance that goes before others when the group shrinks; may be repeated")
	tenantFlag(cmd, &f.tenant)
	yesFlag(cmd, &f.yes)
	dryRunFlag(cmd, &f.dryRun)
	r, out := newRemote(cmd, env), newOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		req, err := f.updated()
		if err != nil {
			return err
		}
		req.RemoveFirst = first
		return r.with(cmd.Context(), func(c *client) error {
			resp, err := updateGroup(cmd, c, f, req, args[0])
			return out.result(document{resp}, err, func(t *table) { writeEdited(t, resp, "changed", f.dryRun) })
		})
	}
	return cmd
}

func (f *groupForm) updated() (*apiv1.UpdateGroupRequest, error) {
	market, data, pool, err := f.parts()
	if err != nil {
		return nil, err
	}
	req := &apiv1.UpdateGroupRequest{
		WarmPool: pool,
		Size:     said(f, "size", f.size), Template: said(f, "template", f.template), SubnetPool: said(f, "subnet-pool", f.pool),
		DrainTimeout: f.span("drain-timeout", f.drain), Rollout: f.rollout(), Protect: said(f, "protect", f.protect), DryRun: f.dryRun, Market: market,
		BootstrapData: data, Spread: f.spread(), OnReclaim: f.onReclaim, OnRebalance: f.onRebalance, OnMaintenance: f.onMaintenance,
		OnDrainTimeout: f.onDrainTimeout, Order: f.order, Owner: f.owner, Release: f.flags.Changed("owner") && f.owner == "",
	}
	if f.flags.Changed("instance-type") {
		req.InstanceTypes = &apiv1.Strings{Values: f.types}
	}
	if f.flags.Changed("load-balancer") {
		req.LoadBalancers = &apiv1.Strings{Values: f.balancers}
	}
	if f.flags.Changed("var") {
		vars, err := variables(f.vars)
		if err != nil {
			return nil, err
		}
		req.Vars = &apiv1.Vars{Values: vars}
	}
	if f.flags.Changed("args") {
		text, err := textOrFile("--args", f.args)
		if err != nil {
			return nil, err
		}
		req.Args = &text
	}
	return req, nil
}

// updateGroup changes a group, and asks first if it is to have fewer members.
func updateGroup(cmd *cobra.Command, c *client, f *groupForm, req *apiv1.UpdateGroupRequest, name string) (*apiv1.UpdateGroupResponse, error) {
	ctx := cmd.Context()
	g, err := c.group(ctx, nstance.TenantID(f.tenant), name)
	if err != nil {
		return nil, err
	}
	req.Tenant, req.Group = g.GetTenant(), name
	if req.GetRelease() {
		req.Owner = g.GetOwner()
	}
	if req.Size != nil {
		if err := confirmFewer(cmd, g, f.size, f.yes || f.dryRun); err != nil {
			return nil, err
		}
	}
	return c.UpdateGroup(ctx, req)
}

func groupDeleteCommand(env environment) *cobra.Command {
	return groupChangeCommand(env, groupChange{
		use: "delete GROUP", short: "Delete a group, or its changes through the API", doneText: "is being deleted, or reset to the configuration",
		long: "Delete a group that was made through the API or is no longer configured: its members are drained and deleted,\n" +
			"then the group is removed. Instances made by request stay. For a group in the configuration, its changes through\n" +
			"the API are deleted. For a protected group the exit code is 6.",
		confirmation: func(g *apiv1.Group) string {
			if g.GetIsStatic() {
				return fmt.Sprintf("group %s returns to what the configuration says", wire.GroupKeyOf(g))
			}
			return fmt.Sprintf("deleting group %s drains and deletes %s", wire.GroupKeyOf(g), plural(int(g.GetReady()+g.GetBooting()), "instance"))
		},
		send: func(ctx context.Context, c *client, g *apiv1.Group, f groupChangeFlags) (groupAnswer, error) {
			return c.DeleteGroup(ctx, &apiv1.DeleteGroupRequest{Tenant: g.GetTenant(), Group: g.GetGroup(), DryRun: f.dryRun})
		},
	})
}

func writeEdited(t *table, answer groupAnswer, done string, dryRun bool) {
	g := answer.GetGroup()
	if unchanged(answer) {
		t.say("group %s is unchanged:", wire.GroupKeyOf(g))
	} else if dryRun {
		t.say("group %s would be %s:", wire.GroupKeyOf(g), done)
	} else {
		t.say("group %s is %s:", wire.GroupKeyOf(g), done)
	}
	writeGroup(t, g)
}

func groupGetCommand(env environment) *cobra.Command {
	var tenant string
	cmd := &cobra.Command{Use: "get GROUP", Short: "Show a group", Args: arguments("GROUP")}
	tenantFlag(cmd, &tenant)
	r, out := newRemote(cmd, env), newOutput(cmd)
	cmd.RunE = r.run(func(c *client, args []string) error {
		g, err := c.group(cmd.Context(), nstance.TenantID(tenant), args[0])
		return out.result(document{g}, err, func(t *table) { writeGroup(t, g) })
	})
	return cmd
}

// writeGroup writes everything about one group.
func writeGroup(t *table, g *apiv1.Group) {
	var vars []string
	for _, name := range slices.Sorted(maps.Keys(g.GetVars())) {
		vars = append(vars, name+"="+g.GetVars()[name])
	}
	t.fields([]field{
		{"Group", wire.GroupKeyOf(g).String()},
		{"Source", source(g)},
		{"Owner", g.GetOwner()},
		{"Template", g.GetTemplate()},
		{"Size", fmt.Sprintf("%d, of which %d ready, %d booting; %d leaving, %d stale, %d on demand, %d gone", g.GetSize(), g.GetReady(), g.GetBooting(), g.GetLeaving(), g.GetStale(), g.GetOnDemand(), g.GetGone())},
		{"Types", strings.Join(g.GetInstanceTypes(), ", ")},
		{"Subnet pool", g.GetSubnetPool()}, {"Market", marketText(g.GetMarket())},
		{"Members by market", markets(g)},
		{"Variables", strings.Join(vars, ", ")},
		{"Arguments", g.GetArgs()},
		{"Load balancers", strings.Join(g.GetLoadBalancers(), ", ")},
		{"Drain timeout", durationText(g.GetDrainTimeout())},
		{"Rollout", pace(g.GetRollout())},
		{"Spread", spreadText(g.GetSpread())},
		{"Order of shapes", g.GetOrder()},
		{"Warm pool", warmPoolText(g)},
		{"On reclaim", g.GetOnReclaim()},
		{"On rebalance", g.GetOnRebalance()},
		{"On maintenance", g.GetOnMaintenance()},
		{"On drain timeout", g.GetOnDrainTimeout()},
		{"Holds", holds(g.GetHolds())},
		{"Infra hash", g.GetInfraHash()},
	})
}

// durationText returns a duration, or "" for none.
func durationText(d *durationpb.Duration) string {
	if d == nil {
		return ""
	}
	return d.AsDuration().String()
}

func pace(r *apiv1.Rollout) string {
	if r == nil {
		return ""
	}
	return fmt.Sprintf("max surge %s, min ready %s, halt after %d", r.GetMaxSurge(), r.GetMinReady().AsDuration(), r.GetHaltAfter())
}

func spreadText(s *apiv1.Spread) string {
	if s == nil {
		return ""
	}
	return "at most " + s.GetMaxShare() + " in one " + s.GetBy()
}

func warmPoolText(g *apiv1.Group) string {
	p := g.GetWarmPool()
	if p == nil && g.GetStandby() == 0 {
		return ""
	}
	text := fmt.Sprintf("%d %s; there are %d, of which %d asleep", p.GetSize(), p.GetMode(), g.GetStandby(), g.GetParked())
	if n := len(g.GetClaims()); n > 0 {
		text += ", " + plural(n, "claim")
	}
	return text
}

func marketText(m *apiv1.Market) string {
	if m == nil {
		return ""
	}
	s := m.GetType()
	if m.GetMaxPrice() != "" {
		s += ", at most " + m.GetMaxPrice() + " an hour"
	}
	if m.GetFallback() != "" {
		s += ", " + m.GetFallback() + " while it is sold out"
		if d := durationText(m.GetFallbackAfter()); d != "" {
			s += " for " + d
		}
		if when := m.GetFallbackWhen(); when != nil {
			s += fmt.Sprintf(", or was reclaimed %d times within %s", when.GetReclaims(), durationText(when.GetWindow()))
		}
	}
	if d := durationText(m.GetReturnAfter()); d != "" {
		s += ", back to spot after " + d
	}
	if m.GetOnDemandBase() != "" {
		s += ", " + m.GetOnDemandBase() + " on-demand in any case"
	}
	return s
}

// markets formats in which markets a group's members are, and when one may return
// to spot.
func markets(g *apiv1.Group) string {
	s := fmt.Sprintf("%d spot, %d on-demand", g.GetSpotMarket(), g.GetOnDemandMarket())
	if at := g.GetReturnAt(); at != nil {
		s += ", back to spot from " + stampOf(at)
	}
	if g.GetFailedReturns() > 0 {
		s += fmt.Sprintf(" (%d attempts failed)", g.GetFailedReturns())
	}
	return s
}

// source formats where a group comes from, and whether it is being removed.
func source(g *apiv1.Group) string {
	s := "api"
	switch {
	case g.GetIsStatic() && g.GetHasOverlay():
		s = "config, changed"
	case g.GetIsStatic():
		s = "config"
	}
	if g.GetProtect() {
		s += ", protected"
	}
	if g.GetRemoving() {
		s += ", going"
	}
	return s
}
