package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/duration"
	"github.com/nstance-go/nstance/internal/wire"
)

func poolCommand(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use: "pool", Short: "Pools of capacity: keep machines out of a zone, an instance type or a market",
		Long: "Keep machines out of a pool of capacity for a while. A pool is a zone, an instance type, a market, or several of\n" +
			"them together: zone=eu-central-1a type=m7i.large is that type in that zone alone.",
	}
	cmd.AddCommand(poolAvoidCommand(env), poolReleaseCommand(env), poolListCommand(env))
	return cmd
}

// poolWords are what the name of a pool is made of.
var poolWords = []string{"zone=", "type=", "market=spot", "market=on-demand"}

// poolArguments demands a pool.
func poolArguments(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return misused(cmd, errors.New("a pool is missing: name zone=ZONE, type=TYPE or market=MARKET, or several of them"))
	}
	if _, err := parsePool(args); err != nil {
		return misused(cmd, err)
	}
	return nil
}

// parsePool returns the pool that has all that words name.
func parsePool(words []string) (*apiv1.Pool, error) {
	out := &apiv1.Pool{}
	fields := map[string]*string{"zone": &out.Zone, "type": &out.InstanceType, "market": &out.Market}
	for _, word := range words {
		name, value, _ := strings.Cut(word, "=")
		field := fields[name]
		switch {
		case field == nil || value == "":
			return nil, fmt.Errorf("%q names no pool: use zone=ZONE, type=TYPE or market=MARKET", word)
		case *field != "":
			return nil, fmt.Errorf("%s is named twice, and no machine is in both: name one pool at a time", name)
		}
		*field = value
	}
	return out, nil
}

// poolName returns the words that name a pool.
func poolName(p *apiv1.Pool) string {
	var words []string
	for _, part := range []struct{ name, value string }{{"zone=", p.GetZone()}, {"type=", p.GetInstanceType()}, {"market=", p.GetMarket()}} {
		if part.value != "" {
			words = append(words, part.name+part.value)
		}
	}
	return strings.Join(words, " ")
}

func completePool(_ *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	free := slices.DeleteFunc(slices.Clone(poolWords), func(word string) bool {
		name, _, _ := strings.Cut(word, "=")
		return slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, name+"=") })
	})
	return beginning(free, begun), cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}

// A poolAvoidance holds the flags of the command.
type poolAvoidance struct {
	duration    time.Duration
	reason      string
	drain       bool
	yes, dryRun bool
}

func poolAvoidCommand(env environment) *cobra.Command {
	var f poolAvoidance
	cmd := &cobra.Command{
		Use: "avoid POOL...", Short: "Have no machine made in a pool for a while",
		Long: "Have no machine made in a pool for a while, durably, in any group: not even in place of a lost one. A group that\n" +
			"permits nothing else waits, and its hold says so. A spot group with a fallback gets on-demand machines at once if all\n" +
			"of its spot is avoided. With --drain, members that are there are replaced as in a rollout: few at a time, the\n" +
			"replacement first, and only where the group permits something else. For a pool that is avoided already, it replaces\n" +
			"duration, reason and --drain.",
		Args: poolArguments, ValidArgsFunction: completePool,
	}
	cmd.Flags().Var(duration.NewFlag(&f.duration, 0), "for", "how long, at most 30d")
	cmd.Flags().StringVar(&f.reason, "reason", "", "reason, shown in the status and in the holds of groups")
	cmd.Flags().BoolVar(&f.drain, "drain", false, "also replace the members that are there, as in a rollout")
	yesFlag(cmd, &f.yes)
	dryRunFlag(cmd, &f.dryRun)
	r, out := newRemote(cmd, env), newOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if f.duration <= 0 {
			return nstance.FieldError("--for", "say how long, such as 2h, at most 30d", "is missing")
		}
		return r.with(cmd.Context(), func(c *client) error {
			answer, err := avoidPool(cmd, c, args, f)
			return out.result(document{answer}, err, func(t *table) { writeAvoided(t, answer, f.dryRun) })
		})
	}
	return cmd
}

// avoidPool asks the server what would happen, the user whether it should, and has it
// happen.
func avoidPool(cmd *cobra.Command, c *client, words []string, f poolAvoidance) (*apiv1.AvoidPoolResponse, error) {
	ctx := cmd.Context()
	pool, err := parsePool(words)
	if err != nil {
		return nil, err
	}
	req := &apiv1.AvoidPoolRequest{Pool: pool, Duration: durationpb.New(f.duration), Reason: f.reason, Drain: f.drain, DryRun: true}
	preview, err := c.AvoidPool(ctx, req)
	if err != nil || f.dryRun {
		return preview, err
	}
	if err := confirm(cmd, f.yes || !f.drain, drainQuestion(preview, f.duration)); err != nil {
		return nil, err
	}
	req.DryRun = false
	return c.AvoidPool(ctx, req)
}

func drainQuestion(preview *apiv1.AvoidPoolResponse, d time.Duration) string {
	members, groups := 0, 0
	for _, g := range preview.GetGroups() {
		if g.GetReplaced() > 0 {
			members, groups = members+int(g.GetReplaced()), groups+1
		}
	}
	text := fmt.Sprintf("avoiding %s for %s replaces %s of %s, few at a time", poolName(preview.GetAvoided().GetPool()), d, plural(members, "member"), plural(groups, "group"))
	if n := preview.GetGroupsOmitted(); n > 0 {
		text += fmt.Sprintf(", and those of %d more groups", n)
	}
	return text
}

func writeAvoided(t *table, answer *apiv1.AvoidPoolResponse, dryRun bool) {
	a := answer.GetAvoided()
	switch until := stampOf(a.GetUntil()); {
	case dryRun:
		t.say("%s would be avoided until %s", poolName(a.GetPool()), until)
	case answer.GetUnchanged():
		t.say("%s is avoided already, until %s", poolName(a.GetPool()), until)
	default:
		t.say("%s is avoided until %s", poolName(a.GetPool()), until)
	}
	if len(answer.GetGroups()) == 0 {
		t.say("no group permits it, or has a member there")
	} else {
		writeImpacts(t, answer, a.GetDrain())
	}
	if n := answer.GetGroupsOmitted(); n > 0 {
		t.say("%d more groups are not shown: the answer is too large", n)
	}
	if unknown := answer.GetZoneUnknown(); len(unknown) > 0 {
		t.say("not avoided, because their zone is not known: subnets %s", strings.Join(unknown, ", "))
	}
}

// writeImpacts lists which groups lose which shapes.
func writeImpacts(t *table, answer *apiv1.AvoidPoolResponse, drain bool) {
	t.row("GROUP", "SHAPES LOST", "SHAPES LEFT", "MEMBERS THERE", "REPLACED")
	for _, g := range answer.GetGroups() {
		replaced, left := "", strconv.Itoa(int(g.GetLeft()))
		if drain {
			replaced = strconv.Itoa(int(g.GetReplaced()))
		}
		if g.GetLeft() == 0 {
			left = "none: creates wait, also of replacements"
		}
		t.row(wire.GroupKeyOf(g).String(), lostShapes(g.GetLost()), left, strconv.Itoa(int(g.GetMembers())), replaced)
	}
}

const shownShapes = 3 // of a group in one line

func lostShapes(list []*apiv1.ShapePlan) string {
	var out []string
	for _, s := range list[:min(shownShapes, len(list))] {
		words := slices.DeleteFunc([]string{s.GetInstanceType(), s.GetSubnet(), s.GetMarket()}, func(w string) bool { return w == "" })
		out = append(out, strings.Join(words, " "))
	}
	if more := len(list) - len(out); more > 0 {
		out = append(out, strconv.Itoa(more)+" more")
	}
	return strings.Join(out, ", ")
}

func poolReleaseCommand(env environment) *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use: "release POOL...", Short: "End the avoidance of a pool",
		Long: "End the avoidance of a pool, named as pool list names it. A zone that the cloud has shifted traffic away from\n" +
			"cannot be released: end the shift at the cloud.",
		Args: poolArguments, ValidArgsFunction: completeAvoided(env),
	}
	dryRunFlag(cmd, &dryRun)
	r, out := newRemote(cmd, env), newOutput(cmd)
	cmd.RunE = r.run(func(c *client, args []string) error {
		pool, err := parsePool(args)
		if err != nil {
			return err
		}
		answer, err := c.ReleasePool(cmd.Context(), &apiv1.ReleasePoolRequest{Pool: pool, DryRun: dryRun})
		return out.result(document{answer}, err, func(t *table) { writeReleased(t, pool, answer, dryRun) })
	})
	return cmd
}

func writeReleased(t *table, pool *apiv1.Pool, answer *apiv1.ReleasePoolResponse, dryRun bool) {
	switch {
	case answer.GetUnchanged():
		t.say("%s is not avoided: nothing to release", poolName(pool))
	case dryRun:
		t.say("%s would be released", poolName(pool))
	default:
		t.say("%s is released", poolName(pool))
	}
}

// completeAvoided offers the words of the pools that can be released.
func completeAvoided(env environment) cobra.CompletionFunc {
	return completeNames(env, func(c *client, ctx context.Context) (words []string, err error) {
		resp, err := c.ListAvoidedPools(ctx, &apiv1.ListAvoidedPoolsRequest{})
		for _, a := range resp.GetPools() {
			if !a.GetCloud() {
				words = append(words, strings.Fields(poolName(a.GetPool()))...)
			}
		}
		slices.Sort(words)
		return slices.Compact(words), err
	})
}

func poolListCommand(env environment) *cobra.Command {
	cmd := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List the pools that are avoided", Args: arguments()}
	r, out := newRemote(cmd, env), newOutput(cmd)
	cmd.RunE = r.run(func(c *client, _ []string) error {
		resp, err := c.ListAvoidedPools(cmd.Context(), &apiv1.ListAvoidedPoolsRequest{})
		return out.result(documents(resp.GetPools()), err, func(t *table) { writeAvoidedPools(t, resp.GetPools()) })
	})
	return cmd
}

func writeAvoidedPools(t *table, list []*apiv1.AvoidedPool) {
	if len(list) == 0 {
		t.say("no pool is avoided")
		return
	}
	t.row("POOL", "FOR", "UNTIL", "DRAIN", "BY", "REASON")
	for _, a := range list {
		by := a.GetBy()
		if a.GetCloud() {
			by = "the cloud"
		}
		t.row(poolName(a.GetPool()), t.age(a.GetSince()), stampOf(a.GetUntil()), yesNo(a.GetDrain()), by, a.GetReason())
	}
}
