package admin_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
)

func (w *world) AvoidPool(_ context.Context, req *apiv1.AvoidPoolRequest) (*apiv1.AvoidPoolResponse, error) {
	now := time.Now()
	return &apiv1.AvoidPoolResponse{
		Avoided: &apiv1.AvoidedPool{
			Pool: req.GetPool(), Reason: req.GetReason(), Drain: req.GetDrain(), By: "eve", Since: wire.Time(now), Until: wire.Time(now.Add(req.GetDuration().AsDuration())),
		},
		Groups: []*apiv1.PoolImpact{
			{Tenant: "blue", Group: "db", Lost: []*apiv1.ShapePlan{{InstanceType: "m7i.large", Subnet: "s-a", Market: "on-demand"}}, Members: 1},
			{Tenant: "default", Group: "web", Lost: []*apiv1.ShapePlan{{InstanceType: "a"}, {InstanceType: "b"}, {InstanceType: "c"}, {InstanceType: "d"}}, Left: 2, Members: 3, Replaced: 3},
		},
		ZoneUnknown: []string{"s-x"}, GroupsOmitted: w.omitted,
	}, nil
}

func (*world) ReleasePool(_ context.Context, req *apiv1.ReleasePoolRequest) (*apiv1.ReleasePoolResponse, error) {
	return &apiv1.ReleasePoolResponse{Unchanged: req.GetPool().GetZone() == "z"}, nil
}

func (*world) ListAvoidedPools(context.Context, *apiv1.ListAvoidedPoolsRequest) (*apiv1.ListAvoidedPoolsResponse, error) {
	now := time.Now()
	return &apiv1.ListAvoidedPoolsResponse{Pools: []*apiv1.AvoidedPool{
		{
			Pool: &apiv1.Pool{Zone: "a", Market: "spot"}, Since: wire.Time(now.Add(-time.Hour - time.Minute)), Until: wire.Time(time.Date(2200, 1, 2, 3, 4, 5, 0, time.UTC)),
			Reason: "network trouble", By: "eve", Drain: true,
		},
		{Pool: &apiv1.Pool{Zone: "b"}, Reason: "autoshift", Cloud: true},
	}}, nil
}

func TestPools(t *testing.T) {
	t.Parallel()
	w := newWorld(t).populate()
	t.Run("avoid says which groups lose what", func(t *testing.T) {
		r := w.run("pool", "avoid", "zone=a", "type=m7i.large", "--for", "2h", "--reason", "network trouble")
		require.Zero(t, r.code, r.errors)
		require.Contains(t, r.out, "zone=a type=m7i.large is avoided until ")
		require.Regexp(t, `blue/db +m7i.large s-a on-demand +none: creates wait, also of replacements +1 +-\n`, r.out)
		require.Regexp(t, `default/web +a, b, c, 1 more +2 +3 +-\n`, r.out)
		require.Contains(t, r.out, "not avoided, because their zone is not known: subnets s-x")
		var sent []*apiv1.AvoidPoolRequest
		for _, m := range w.requests {
			if req, ok := m.(*apiv1.AvoidPoolRequest); ok {
				sent = append(sent, req)
			}
		}
		require.Len(t, sent, 2, "a dry run first")
		require.True(t, sent[0].GetDryRun())
		req := sent[1]
		require.False(t, req.GetDryRun())
		require.Equal(t, 2*time.Hour, req.GetDuration().AsDuration())
		require.Equal(t, "network trouble", req.GetReason())
		require.False(t, req.GetDrain())
	})
	t.Run("a drain asks, with the numbers", func(t *testing.T) {
		r := w.run("pool", "avoid", "market=spot", "--for", "2h", "--drain")
		require.Equal(t, 2, r.code)
		require.Contains(t, r.errors, "avoiding market=spot for 2h0m0s replaces 3 members of 1 group, few at a time")
		r = w.run("pool", "avoid", "market=spot", "--for", "2h", "--drain", "--yes")
		require.Zero(t, r.code, r.errors)
		require.Regexp(t, `default/web +a, b, c, 1 more +2 +3 +3\n`, r.out)
	})
	t.Run("a dry run", func(t *testing.T) {
		r := w.run("pool", "avoid", "zone=a", "--for", "30d", "--drain", "--dry-run")
		require.Zero(t, r.code, r.errors)
		require.Contains(t, r.out, "zone=a would be avoided until ")
		require.Contains(t, w.run("pool", "release", "zone=a", "--dry-run").out, "zone=a would be released\n")
	})
	t.Run("more groups than an answer holds", func(t *testing.T) {
		w.set(func() { w.omitted = 9 })
		defer w.set(func() { w.omitted = 0 })
		require.Contains(t, w.run("pool", "avoid", "zone=a", "--for", "2h").out, "9 more groups are not shown")
		require.Contains(t, w.run("pool", "avoid", "zone=a", "--for", "2h", "--drain").errors, "replaces 3 members of 1 group, few at a time, and those of 9 more groups")
	})
	t.Run("release", func(t *testing.T) {
		require.Equal(t, "zone=a market=spot is released\n", w.run("pool", "release", "market=spot", "zone=a").out)
		require.Equal(t, "zone=z is not avoided: nothing to release\n", w.run("pool", "release", "zone=z").out)
	})
	t.Run("list", func(t *testing.T) {
		r := w.run("pool", "list")
		require.Zero(t, r.code, r.errors)
		require.Regexp(t, `zone=a market=spot +61m +2200-01-02T03:04:05.000Z +yes +eve +network trouble\n`, r.out)
		require.Regexp(t, `zone=b +- +- +no +the cloud +autoshift\n`, r.out)
		require.Contains(t, w.run("pool", "list", "-o", "json").out, `"instance_type": ""`)
	})
	t.Run("what names no pool is refused", func(t *testing.T) {
		for args, says := range map[string]string{
			"avoid --for 2h":               "a pool is missing",
			"avoid eu-1a --for 2h":         `"eu-1a" names no pool: use zone=ZONE, type=TYPE or market=MARKET`,
			"avoid zone= --for 2h":         "names no pool",
			"avoid zone=a zone=b --for 2h": "zone is named twice",
			"avoid zone=a":                 "--for: is missing",
			"release":                      "a pool is missing",
		} {
			r := w.run(append([]string{"pool"}, strings.Fields(args)...)...)
			require.Equal(t, 2, r.code, args)
			require.Contains(t, r.errors, says, args)
		}
	})
	t.Run("completion", func(t *testing.T) {
		require.Contains(t, w.run("__complete", "pool", "avoid", "zone=a", "").out, "type=\nmarket=spot\nmarket=on-demand\n:")
		require.Contains(t, w.run("__complete", "pool", "release", "").out, "market=spot\nzone=a\n:")
	})
}
