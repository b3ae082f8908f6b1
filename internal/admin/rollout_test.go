package admin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/admin"
	"github.com/nstance-go/nstance/internal/wire"
)

// order changes a group, as an order to the server does.
func (w *world) order(what, tenant, group string, dryRun bool, change func(*apiv1.Group)) (*apiv1.Group, error) {
	w.did(fmt.Sprintf("%s %s/%s dry=%t", what, tenant, group, dryRun))
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, g := range w.groups {
		if g.GetTenant() == tenant && g.GetGroup() == group {
			g = proto.CloneOf(g)
			if !dryRun {
				change(g)
			}
			return g, nil
		}
	}
	return nil, nstance.Errorf(nstance.NotFound, "no group %s", group)
}

func (w *world) PauseGroup(_ context.Context, req *apiv1.PauseGroupRequest) (*apiv1.PauseGroupResponse, error) {
	g, err := w.order(fmt.Sprintf("pause %q", req.GetReason()), req.GetTenant(), req.GetGroup(), req.GetDryRun(), func(g *apiv1.Group) {
		g.Paused, g.Holds = true, []*apiv1.Hold{{Kind: "paused", Reason: "the rollout is paused: " + req.GetReason()}}
	})
	return &apiv1.PauseGroupResponse{Group: g, Unchanged: w.unchanged}, err
}

func (w *world) ResumeGroup(_ context.Context, req *apiv1.ResumeGroupRequest) (*apiv1.ResumeGroupResponse, error) {
	g, err := w.order("resume", req.GetTenant(), req.GetGroup(), req.GetDryRun(), func(g *apiv1.Group) { g.Paused = false })
	return &apiv1.ResumeGroupResponse{Group: g, Unchanged: w.unchanged}, err
}

func (w *world) RollbackGroup(_ context.Context, req *apiv1.RollbackGroupRequest) (*apiv1.RollbackGroupResponse, error) {
	g, err := w.order(fmt.Sprintf("rollback undo=%t", req.GetUndo()), req.GetTenant(), req.GetGroup(), req.GetDryRun(),
		func(g *apiv1.Group) { g.RolledBack = !req.GetUndo() })
	return &apiv1.RollbackGroupResponse{Group: g}, err
}

func (w *world) Freeze(_ context.Context, req *apiv1.FreezeRequest) (*apiv1.FreezeResponse, error) {
	w.did(fmt.Sprintf("freeze %s/%s %q dry=%t", req.GetTenant(), req.GetGroup(), req.GetReason(), req.GetDryRun()))
	return &apiv1.FreezeResponse{Unchanged: w.unchanged}, nil
}

func (w *world) Thaw(_ context.Context, req *apiv1.ThawRequest) (*apiv1.ThawResponse, error) {
	w.did(fmt.Sprintf("thaw %s/%s dry=%t", req.GetTenant(), req.GetGroup(), req.GetDryRun()))
	return &apiv1.ThawResponse{Unchanged: w.unchanged}, nil
}

func (w *world) Plan(_ context.Context, req *apiv1.PlanRequest) (*apiv1.PlanResponse, error) {
	return w.plan(req), nil
}

// WatchGroups sends every group again whenever the test has changed the
// world, until it makes this server a standby.
func (w *world) WatchGroups(req *apiv1.WatchGroupsRequest, stream grpc.ServerStreamingServer[apiv1.WatchGroupsResponse]) error {
	if err := endEarly(stream.Context()); err != nil {
		return err
	}
	w.did(fmt.Sprintf("watch groups %q after=%t", req.GetGroup(), req.GetAfterSeq() != 0))
	if m := w.renewal(stream.Context()); m != nil {
		if err := stream.Send(&apiv1.WatchGroupsResponse{Message: &apiv1.WatchGroupsResponse_Renewal{Renewal: m}}); err != nil {
			return err
		}
	}
	w.mu.Lock()
	at, cut := req.GetAfterSeq(), w.cut
	if w.cut = nil; w.forgets && at != 0 {
		at, w.forgets = 0, false
	}
	w.mu.Unlock()
	for {
		w.mu.Lock()
		now, standby, touched := w.version+1, w.standby, w.touched
		var groups []*apiv1.Group
		for _, g := range w.groups {
			if g.GetGroup() == req.GetGroup() {
				groups = append(groups, proto.CloneOf(g))
			}
		}
		w.mu.Unlock()
		if standby {
			return wire.Status(nstance.Errorf(nstance.Unavailable, "this term has ended"))
		}
		if len(groups) == 0 && at != 0 {
			m := &apiv1.WatchGroupsResponse{Message: &apiv1.WatchGroupsResponse_Removed{Removed: &apiv1.GroupRemoved{Seq: now, Tenant: "default", Group: req.GetGroup()}}}
			if err := stream.Send(m); err != nil {
				return err
			}
		}
		for _, g := range groups {
			m := &apiv1.WatchGroupsResponse{Message: &apiv1.WatchGroupsResponse_Snapshot{Snapshot: g}}
			if at != 0 {
				m.Message = &apiv1.WatchGroupsResponse_Changed{Changed: &apiv1.GroupChanged{Seq: now, Group: g}}
			}
			if at == now {
				continue
			}
			if err := stream.Send(m); err != nil {
				return err
			}
		}
		if cut != nil {
			cut()
			return wire.Status(nstance.Errorf(nstance.Unavailable, "this term has ended"))
		}
		if at == 0 {
			m := &apiv1.WatchGroupsResponse{Message: &apiv1.WatchGroupsResponse_Synced{Synced: &apiv1.Synced{Seq: now}}}
			if err := stream.Send(m); err != nil {
				return err
			}
		}
		at = now
		select {
		case <-touched:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// lists returns the number of complete lists that were requested.
func (w *world) lists() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.asks["ListInstances"] + w.asks["ListGroups"]
}

func TestOrders(t *testing.T) {
	t.Parallel()
	w := newWorld(t).populate()
	for _, c := range []struct {
		args, does []string
		says       string
	}{
		{[]string{"group", "pause", "web", "--reason", "busy"}, []string{`pause "busy" default/web dry=false`},
			"group default/web is paused\nheld: paused: the rollout is paused: busy\n"},
		{[]string{"group", "pause", "web", "--dry-run"}, []string{`pause "" default/web dry=true`}, "group default/web: pause would be accepted\n"},
		{[]string{"group", "resume", "web"}, []string{"resume default/web dry=false"}, "group default/web continues"},
		{[]string{"group", "rollback", "web", "--yes"}, []string{"rollback undo=false default/web dry=true", "rollback undo=false default/web dry=false"},
			"group default/web is rolled back"},
		{[]string{"group", "rollback", "web", "--undo"}, []string{"rollback undo=true default/web dry=false"}, "group default/web is wanted as it is configured"},
		{[]string{"freeze", "shard", "--reason", "audit"}, []string{`freeze / "audit" dry=false`}, "shard eu1a is frozen\n"},
		{[]string{"freeze", "group", "db", "--dry-run"}, []string{`freeze blue/db "" dry=true`}, "group blue/db: freeze would be accepted\n"},
		{[]string{"thaw", "group", "db"}, []string{"thaw blue/db dry=false"}, "group blue/db is thawed\n"},
		{[]string{"thaw", "shard"}, []string{"thaw / dry=false"}, "shard eu1a is thawed\n"},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			r := w.run(c.args...)
			require.Equal(t, 0, r.code, r.errors)
			require.Equal(t, c.does, w.done())
			require.Contains(t, r.out, c.says)
		})
	}
	t.Run("what destroys asks", func(t *testing.T) {
		r := w.run("group", "rollback", "web")
		require.Equal(t, 2, r.code)
		require.Contains(t, r.errors, "--yes")
		require.Equal(t, []string{"rollback undo=false default/web dry=true"}, w.done())
	})
	t.Run("an impossible change is refused without a question", func(t *testing.T) {
		w.set(func() {
			w.fail["RollbackGroup"] = &nstance.Error{Code: nstance.Conflict, Msg: "it is the last good one", Remedy: "configure the definition that you want"}
		})
		r := w.run("group", "rollback", "web")
		require.Equal(t, 6, r.code)
		require.Contains(t, r.errors, "configure the definition")
	})
	t.Run("no such group", func(t *testing.T) {
		require.Equal(t, 3, w.run("group", "pause", "nobody").code)
		require.Equal(t, 3, w.run("freeze", "group", "nobody").code)
		require.Equal(t, 3, w.run("group", "rollout", "nobody").code)
		require.Equal(t, 2, w.run("freeze").code)
	})
	t.Run("what is so already", func(t *testing.T) {
		w.set(func() { w.unchanged = true })
		defer w.set(func() { w.unchanged = false })
		for line, says := range map[string]string{
			"freeze shard": "shard eu1a is frozen already, the reason stays\n", "thaw group db": "group blue/db is not frozen by itself: nothing to thaw\n",
			"group pause web": "group default/web is paused already\n", "group resume web": "group default/web is neither paused nor halted: nothing to resume\n",
			"group update web --protect": "group default/web is unchanged:\n",
		} {
			for _, dry := range []string{"", " --dry-run"} {
				r := w.run(strings.Fields(line + dry)...)
				require.Zero(t, r.code, r.errors)
				require.True(t, strings.HasPrefix(r.out, says), r.out)
			}
		}
	})
	t.Run("what becomes of a configured group", func(t *testing.T) {
		r := w.run("group", "delete", "web")
		require.Equal(t, 2, r.code)
		require.Contains(t, r.errors, "group default/web returns to what the configuration says")
	})
	t.Run("for programs", func(t *testing.T) {
		require.JSONEq(t, `{"unchanged": false}`, w.run("freeze", "group", "db", "-o", "json").out)
	})
}

// A tape is an output that is read while it is written.
type tape struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	wake chan struct{}
}

func (b *tape) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer func() { b.wake <- struct{}{} }()
	return b.buf.Write(p)
}

func (b *tape) text() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// until waits for text.
func (b *tape) until(t *testing.T, text string) {
	t.Helper()
	limit := time.After(time.Minute)
	for !strings.Contains(b.text(), text) {
		select {
		case <-b.wake:
		case <-limit:
			require.FailNow(t, "not said", "%q in %q", text, b.text())
		}
	}
}

// watched runs group rollout web while do changes the world.
func (w *world) watched(do func(out *tape), args ...string) (code int, out, errs string) {
	o, e := &tape{wake: make(chan struct{}, 1000)}, &tape{wake: make(chan struct{}, 1000)}
	ended := make(chan int, 1)
	go func() {
		ended <- admin.Main(w.t.Context(), nil, append([]string{"group", "rollout", "web", "--interval", "50ms"}, args...), strings.NewReader(""), o, e,
			func(k string) string { return map[string]string{"NSTANCE_ADMIN_DIR": w.dir}[k] })
	}()
	do(o)
	select {
	case code = <-ended:
	case <-time.After(time.Minute):
		require.FailNow(w.t, "it does not end")
	}
	return code, o.text(), e.text()
}

func (w *world) web(change func(*apiv1.Group)) {
	w.set(func() { change(w.groups[1]) })
}

func TestGroupRollout(t *testing.T) {
	t.Parallel()
	fresh := func(w *world) {
		w.set(func() { delete(w.instances, string(webB)) })
		w.web(func(g *apiv1.Group) { g.Size, g.Stale, g.Booting, g.Leaving, g.Holds = 1, 0, 0, 0, nil })
	}
	t.Run("until it is done", func(t *testing.T) {
		w := newWorld(t).populate()
		code, out, _ := w.watched(func(out *tape) {
			out.until(t, "moving  1 of 3 fresh and ready, 1 stale, 1 booting, 1 leaving  budget: 1 create a second")
			w.web(func(g *apiv1.Group) { g.Booting = 0 })
			out.until(t, "0 booting")
			fresh(w)
		})
		require.Equal(t, 0, code)
		require.Contains(t, out, "done  1 of 1 fresh and ready")
		require.Equal(t, 3, strings.Count(out, "\n"), "a line for each change: %s", out)
		require.NotContains(t, out, "\x1b")
	})
	t.Run("until it is halted", func(t *testing.T) {
		w := newWorld(t).populate()
		code, out, errs := w.watched(func(out *tape) {
			out.until(t, "moving")
			w.web(func(g *apiv1.Group) { g.Halted = "2 replacements in a row did not become ready" })
		}, "-o", "json")
		require.Equal(t, 6, code)
		require.Contains(t, errs, "2 replacements in a row")
		require.Contains(t, errs, "nstance-admin group rollback web")
		lines := strings.Split(strings.TrimSpace(out), "\n")
		var last struct {
			State string
			Fresh int
			Group struct{ Group string }
		}
		require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &last))
		require.Equal(t, "halted", last.State)
		require.Equal(t, 1, last.Fresh)
		require.Equal(t, "web", last.Group.Group)
	})
	t.Run("held, then lost sight of, then done", func(t *testing.T) {
		w := newWorld(t).populate()
		code, _, errs := w.watched(func(out *tape) {
			w.web(func(g *apiv1.Group) {
				g.Paused, g.Holds = true, []*apiv1.Hold{{Kind: "paused", Reason: "busy"}}
			})
			out.until(t, "held ")
			w.set(func() { w.standby = true })
			fresh(w)
			w.web(func(g *apiv1.Group) { g.Paused = false })
			w.set(func() { w.standby = false })
		})
		require.Equal(t, 0, code, errs)
	})
	t.Run("members are listed when the group has changed, and no other group is asked for", func(t *testing.T) {
		w := newWorld(t).populate()
		code, _, _ := w.watched(func(out *tape) {
			out.until(t, "moving")
			before := w.lists()
			<-time.After(500 * time.Millisecond) // ten looks, without a change
			require.Equal(t, before, w.lists())
			fresh(w)
		})
		require.Zero(t, code)
	})
	t.Run("it is gone", func(t *testing.T) {
		w := newWorld(t).populate()
		code, _, errs := w.watched(func(out *tape) {
			out.until(t, "moving")
			w.set(func() { w.groups = w.groups[:1] })
		})
		require.Equal(t, 3, code, errs)
	})
	t.Run("for so long only", func(t *testing.T) {
		w := newWorld(t).populate()
		code, _, errs := w.watched(func(*tape) {}, "--wait", "100ms")
		require.Equal(t, 5, code)
		require.Contains(t, errs, "not done after 100ms")
	})
	t.Run("and renews its certificate when asked", func(t *testing.T) {
		w := newWorld(t).populate()
		old := w.saved()
		w.set(func() { w.retired = serialOfChain(t, old.Chain) })
		code, _, errs := w.watched(func(*tape) {
			require.Eventually(t, func() bool { return !old.Key.Equal(w.saved().Key) }, time.Minute, 5*time.Millisecond)
			w.web(func(g *apiv1.Group) { g.Halted = "bad image" })
		})
		require.Equal(t, 6, code)
		require.NotContains(t, errs, "connection lost")
	})
	t.Run("on a terminal it is drawn again", func(t *testing.T) {
		w := newWorld(t).populate()
		w.web(func(g *apiv1.Group) { g.Halted = "bad image" })
		tty, err := os.OpenFile("/dev/null", os.O_WRONLY, 0) // looks like one
		require.NoError(t, err)
		defer tty.Close()
		code := admin.Main(t.Context(), nil, []string{"group", "rollout", "web"}, strings.NewReader(""), tty, &bytes.Buffer{},
			func(k string) string { return map[string]string{"NSTANCE_ADMIN_DIR": w.dir}[k] })
		require.Equal(t, 6, code)
	})
}

func TestPlan(t *testing.T) {
	t.Parallel()
	w := newWorld(t).populate()
	var asked *apiv1.PlanRequest
	w.plan = func(req *apiv1.PlanRequest) *apiv1.PlanResponse {
		asked = proto.CloneOf(req)
		return &apiv1.PlanResponse{Digest: "abc", Held: true, Groups: []*apiv1.GroupPlan{
			{Tenant: "blue", Group: "db", Change: "released", SizeBefore: 1, SizeAfter: 1},
			{
				Tenant: "default", Group: "web", Change: "changed", SizeBefore: 3, SizeAfter: 2, Creates: 2,
				Fields: []*apiv1.FieldChange{
					{Path: "instance_types", Before: `["t4g.small"]`, After: `["t4g.large"]`, Effect: "replace"},
					{Path: "size", Before: "3", After: "2", Effect: "none"},
				},
				Instances: []*apiv1.InstancePlan{
					{Id: string(webA), Action: "replace", Reason: "its definition changes: instance_types"},
					{Id: string(webB), Action: "drain", Reason: "surplus: group has 4 members, size is 3"},
				},
				Estimate: durationpb.New(11 * time.Minute), EstimateBasis: "the slowest of the last 3 launches took 1m0s",
				Shape: &apiv1.ShapePlan{InstanceType: "t4g.large", Subnet: "subnet-2", Market: "spot", Choice: "spread"},
				Holds: []*apiv1.Hold{{Kind: "paused", Reason: "busy", Since: wire.Time(time.Now())}},
			},
		}}
	}
	t.Run("for people", func(t *testing.T) {
		r := w.run("plan")
		require.Equal(t, 0, r.code, r.errors)
		w.golden("plan", r.out)
		require.Empty(t, asked.GetConfig())
		require.Nil(t, asked.GetGroup())
	})
	t.Run("for programs", func(t *testing.T) {
		w.golden("plan.json", w.run("plan", "-o", "json").out)
	})
	t.Run("a file", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "next.jsonc")
		require.NoError(t, os.WriteFile(path, []byte("{}"), 0o600))
		require.Equal(t, 0, w.run("plan", "-f", path).code)
		require.Equal(t, "{}", string(asked.GetConfig()))
		require.Equal(t, 0, w.runWith(`{"a":1}`, "plan", "-f", "-").code)
		require.Equal(t, `{"a":1}`, string(asked.GetConfig()))
		require.Equal(t, 2, w.run("plan", "-f", path+".not").code)
		require.Equal(t, 2, w.run("plan", "-f", "-").code, "nothing is no configuration")
		r := w.runWith(strings.Repeat(" ", 300<<10), "plan", "-f", "-")
		require.Equal(t, 2, r.code)
		require.Contains(t, r.errors, "put it at the configuration's source")
	})
	t.Run("a group", func(t *testing.T) {
		require.Equal(t, 0, w.run("plan", "--group", "web", "--size", "0", "--var", "a=b", "--instance-type", "large").code)
		require.Equal(t, "default", asked.GetGroup().GetTenant())
		require.NotNil(t, asked.GetGroup().Size)
		require.Zero(t, asked.GetGroup().GetSize())
		require.Equal(t, map[string]string{"a": "b"}, asked.GetGroup().GetVars().GetValues())
		require.Equal(t, []string{"large"}, asked.GetGroup().GetInstanceTypes().GetValues())
		require.Equal(t, 3, w.run("plan", "--group", "nobody").code)
		require.Equal(t, 2, w.run("plan", "--size", "3").code)
		require.Equal(t, 2, w.run("plan", "--group", "web", "-f", "x").code)
	})
	t.Run("everything that can be said of a group", func(t *testing.T) {
		join := filepath.Join(t.TempDir(), "join.sh")
		require.NoError(t, os.WriteFile(join, []byte("#!/bin/sh"), 0o600))
		flags := strings.Fields(`--tenant default --template vm --size 4 --instance-type large,small --subnet-pool b --var a=b --args {} --load-balancer front
			--drain-timeout 1m --max-surge 10% --min-ready 5s --halt-after 2 --market spot --max-price 0.1 --fallback on-demand --fallback-after 1m --return-after 1h --on-demand-base 1 --max-share 50% --order cheapest --warm-pool 2 --warm-mode hibernated --warm-max-age 168h --on-reclaim cordon --on-rebalance replace --on-maintenance ignore --on-drain-timeout wait --owner one --bootstrap-data ` + join + ` --warm-once --protect`)
		r := w.run(append([]string{"plan", "--group", "web"}, flags...)...)
		require.Zero(t, r.code, r.errors)
		planned := asked.GetGroup()
		fields := planned.ProtoReflect().Descriptor().Fields()
		for i := range fields.Len() {
			switch f := fields.Get(i); f.Name() {
			case "instance_type": // instance_types says the same, and more
			case "dry_run", "remove_first", "release": // a plan is a dry run, and names no instances that go
				require.False(t, planned.ProtoReflect().Has(f))
			default:
				require.True(t, planned.ProtoReflect().Has(f), "%s cannot be planned", f.Name())
			}
		}
		r = w.run(append([]string{"group", "update", "web"}, flags...)...)
		require.Zero(t, r.code, r.errors)
		same(t, w.asked, planned)
		require.Equal(t, "#!/bin/sh", string(planned.GetBootstrapData()))
		require.Zero(t, w.run("group", "update", "web", "--remove-first", "web-1,web-2").code)
		require.Equal(t, []string{"web-1", "web-2"}, w.asked.(*apiv1.UpdateGroupRequest).GetRemoveFirst())
		w.set(func() { w.groups[0].Owner = "one" })
		require.Zero(t, w.run("group", "update", w.groups[0].GetGroup(), "--tenant", w.groups[0].GetTenant(), "--owner", "").code)
		released := w.asked.(*apiv1.UpdateGroupRequest)
		require.True(t, released.GetRelease())
		require.Equal(t, "one", released.GetOwner(), "the owner that it has")
		for i := 0; i < len(flags); i += 2 { // none of them is passed over where no group is named
			args := append([]string{"plan"}, flags[i:min(i+2, len(flags))]...)
			require.Contains(t, w.run(args...).errors, "--group: is missing", flags[i])
		}
	})
	t.Run("more than an answer holds", func(t *testing.T) {
		w.plan = func(*apiv1.PlanRequest) *apiv1.PlanResponse {
			return &apiv1.PlanResponse{GroupsOmitted: 3, Groups: []*apiv1.GroupPlan{{Tenant: "blue", Group: "db", Change: "changed", InstancesOmitted: 7}}}
		}
		out := w.run("plan").out
		require.Contains(t, out, "group blue/db: changed, 7 more that are not shown\n")
		require.Contains(t, out, "3 more groups are not shown: the answer is too large\n")
	})
	t.Run("nothing", func(t *testing.T) {
		w.plan = func(*apiv1.PlanRequest) *apiv1.PlanResponse { return &apiv1.PlanResponse{Digest: "abc"} }
		require.Equal(t, "no change\n", w.run("plan").out)
	})
}
