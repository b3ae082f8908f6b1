package admin_test

import (
	"cmp"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/version"
	"github.com/nstance-go/nstance/internal/wire"
)

func (w *world) GetConfig(context.Context, *apiv1.GetConfigRequest) (*apiv1.GetConfigResponse, error) {
	return &apiv1.GetConfigResponse{Name: "eu1a.jsonc", Digest: "sha256:abc", Content: []byte(cmp.Or(w.written, "{} // as written\n"))}, nil
}

func TestConfigShow(t *testing.T) {
	t.Parallel()
	w := newWorld(t).populate()
	require.Equal(t, "{} // as written\n", w.run("config", "show").out)
	got := message(t, w.run("config", "show", "-o", "json").out, &apiv1.GetConfigResponse{})
	require.Equal(t, "eu1a.jsonc", got.GetName())
	require.Equal(t, "{} // as written\n", string(got.GetContent()))
}

func TestVersion(t *testing.T) {
	t.Parallel()
	r := newWorld(t).run("version")
	require.Zero(t, r.code, r.errors)
	require.Contains(t, r.out, "nstance-admin "+version.Software)
}

func TestInstancesAreChosen(t *testing.T) {
	t.Parallel()
	w := newWorld(t).populate()
	ids := func(args ...string) (out []string) {
		r := w.run(append([]string{"instance", "list", "-o", "json"}, args...)...)
		for _, i := range messages[apiv1.Instance](t, r) {
			out = append(out, i.GetId())
		}
		return out
	}
	all := ids()
	require.Contains(t, ids("--state", "ready"), string(webA))
	require.Less(t, len(ids("--state", "ready")), len(all))
	require.Equal(t, []string{string(webA)}, ids("-l", "market=spot", "-l", "zone=eu-central-1a", "-l", "version=0.3.0", "--state", "ready", "--group", "web"))
	require.ElementsMatch(t, all, ids("--sort", "age"))
	for label, want := range map[string][]string{
		"type=t4g.small": {string(webA)}, "type=spot": nil, "agent=connected": {string(webA)}, "agent=": {string(dbA), string(webB)}, "reason=refill": {string(webA)},
		"drifted": {string(webB)}, "by-request": {string(dbA)}, "notice:reclaim": {string(webB)},
	} {
		t.Run(label, func(t *testing.T) { require.Equal(t, want, ids("-l", label)) })
	}
	require.Empty(t, ids("-l", "market=spot", "-l", "zone=nowhere"), "all labels")
	for _, tenant := range []string{"default", "blue"} {
		for _, i := range messages[apiv1.Instance](t, w.run("instance", "list", "-o", "json", "--tenant", tenant)) {
			require.Equal(t, tenant, i.GetTenant())
		}
	}
	require.Equal(t, 3, w.run("instance", "list", "--group", "wbe").code, "a mistyped name")
	for args, says := range map[string]string{
		"--state redy": `did you mean "ready"?`, "-l markt=spot": `did you mean "market"?`, "--sort size": "use id, age, state, group, report",
	} {
		r := w.run(append([]string{"instance", "list"}, strings.Fields(args)...)...)
		require.Equal(t, 2, r.code)
		require.Contains(t, r.errors, says)
	}
}

// TestOrderOfInstances: what is latest is first, and the ID decides between equals.
func TestOrderOfInstances(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	now := time.Now()
	add := func(id nstance.InstanceID, group, state string, age, report time.Duration) {
		w.instances[string(id)] = &apiv1.Instance{
			Id: string(id), Tenant: "default", Group: group, State: state, CreatedAt: wire.Time(now.Add(-age)), LastReportAt: wire.Time(now.Add(-report)),
		}
	}
	add(webA, "web", "ready", 3*time.Hour, 2*time.Minute)
	add(webB, "web", "booting", time.Hour, 3*time.Minute)
	add(dbA, "db", "ready", 3*time.Hour, time.Minute)
	for by, want := range map[string][]nstance.InstanceID{
		"id": {dbA, webA, webB}, "age": {webB, dbA, webA}, "report": {dbA, webA, webB}, "state": {webB, dbA, webA}, "group": {dbA, webA, webB},
	} {
		var got []nstance.InstanceID
		for _, i := range messages[apiv1.Instance](t, w.run("instance", "list", "-o", "json", "--sort", by)) {
			got = append(got, nstance.InstanceID(i.GetId()))
		}
		require.Equal(t, want, got, by)
	}
}

func TestPrefixOfAnID(t *testing.T) {
	t.Parallel()
	w := newWorld(t).populate()
	r := w.run("instance", "get", string(dbA)[:6])
	require.Zero(t, r.code, r.errors)
	require.Contains(t, r.out, string(dbA))
	r = w.run("instance", "get", "web0")
	require.Equal(t, 2, r.code)
	require.Contains(t, r.errors, "instances begin with web0")
	r = w.run("instance", "get", "xyz0")
	require.Equal(t, 3, r.code)
	r = w.run("instance", "delete", string(dbA)[:6], "--yes")
	require.Zero(t, r.code, r.errors)
	require.Contains(t, strings.Join(w.done(), "\n"), string(dbA))
}

func TestNamesAreCompleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t).populate()
	w.written = `{"cluster": {"id": "prod"}, "shard": {"id": "a", "provider": {"kind": "sim"}}, "templates": {"configured": {"kind": "web", "arch": "amd64"}}}`
	d := newDepot(t)
	d.led("eu1a", true)
	for args, want := range map[string]string{
		"cluster nonce --storage " + d.url() + " --shard e": "eu1a",
		"group get w":                     "web",
		"group scale ":                    "db",
		"instance get " + string(dbA)[:5]: string(dbA),
		"instance list --group ":          "web",
		"group create new --template d":   "db",
		"group create new --template c":   "configured",
	} {
		t.Run(args, func(t *testing.T) {
			r := w.run(append([]string{"__complete"}, strings.Split(args, " ")...)...)
			require.Zero(t, r.code, r.errors)
			require.Contains(t, strings.Split(r.out, "\n"), want)
		})
	}
	require.NotContains(t, w.run("__complete", "group", "scale", "web", "").out, "db", "a size is no group")
}
