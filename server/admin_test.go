package server_test

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/admin"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/secret"
)

// An adminCLI runs nstance-admin with an identity of the world's server.
type adminCLI struct {
	*world
	dir string
	key secret.Key
}

// run runs nstance-admin and returns its exit code and output.
func (o *adminCLI) run(args ...string) (code int, out, errs string) {
	env := map[string]string{"NSTANCE_ADMIN_DIR": o.dir, "NSTANCE_SECRET_KEY": o.key.Encode()}
	var stdout, stderr bytes.Buffer
	code = admin.Main(o.Context(), nil, args, strings.NewReader(""), &stdout, &stderr, func(k string) string { return env[k] })
	return code, stdout.String(), stderr.String()
}

// mustRun runs nstance-admin, which must succeed, and decodes what it printed.
func (o *adminCLI) mustRun(into any, args ...string) {
	o.Helper()
	code, out, errs := o.run(append(args, "-o", "json")...)
	require.Zero(o, code, errs)
	if m, ok := into.(proto.Message); ok {
		require.NoError(o, protojson.Unmarshal([]byte(out), m), out)
		return
	}
	require.NoError(o, json.Unmarshal([]byte(out), into), out)
}

// listMessages runs a command of nstance-admin that prints a list of messages.
func listMessages[T any, M interface {
	*T
	proto.Message
}](o *adminCLI, args ...string) (out []M) {
	o.Helper()
	var printed []json.RawMessage
	o.mustRun(&printed, args...)
	for _, one := range printed {
		m := M(new(T))
		require.NoError(o, protojson.Unmarshal(one, m))
		out = append(out, m)
	}
	return out
}

// poll polls a condition in the test's own goroutine.
func (o *adminCLI) poll(done func() bool) {
	o.Helper()
	limit := time.After(eventually)
	for !done() {
		select {
		case <-limit:
			require.FailNow(o, "not reached")
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// newAdminCLI starts a server whose storage is a directory with sealed keys, and
// logs in with a nonce that was minted there.
func newAdminCLI(t *testing.T, size int) *adminCLI {
	t.Helper()
	files := t.TempDir()
	store, err := storage.OpenDir(filepath.Join(files, "storage"), nil)
	require.NoError(t, err)
	key := secret.NewKey()
	box, err := secret.NewBox(key)
	require.NoError(t, err)
	o := &adminCLI{newWorld(t, setup{webSize: size, store: store, opts: server.Options{Secrets: box}}), filepath.Join(files, "identity"), key}
	nonce, ca := filepath.Join(files, "nonce"), filepath.Join(files, "ca")
	code, _, errs := o.run("cluster", "nonce", "--storage", "file://"+filepath.Join(files, "storage"), "--cluster", string(cluster),
		"--shard", string(zone), "--kind", "admin", "--output", nonce, "--ca-output", ca)
	require.Zero(t, code, errs)
	require.NotContains(t, errs, "new authorities", "the server's keys were found")
	at := o.server.Addresses()
	var login admin.LoginResult
	o.mustRun(&login, "login", "--nonce", nonce, "--ca", ca, "--registration", at.Registration, "--operator-addr", at.Operator)
	require.Equal(t, cluster, login.Cluster)
	return o
}

func TestAdminAgainstRealServer(t *testing.T) {
	t.Parallel()
	o := newAdminCLI(t, 2)
	o.poll(func() bool { return o.countEvents(nstance.EventCreated) == 3 })
	web := listMessages[apiv1.Instance](o, "instance", "list", "--group", "web")
	require.Len(t, web, 2)
	machines := []nstance.InstanceID{nstance.InstanceID(web[0].GetId()), nstance.InstanceID(web[1].GetId())}
	for _, id := range machines {
		o.connectReady(id)
	}
	t.Run("status", func(t *testing.T) {
		var s apiv1.GetShardStatusResponse
		o.mustRun(&s, "status")
		require.True(t, s.Leader)
		require.Equal(t, []int32{2, 3, 2}, []int32{s.Groups, s.Instances, s.AgentsConnected})
	})
	t.Run("groups", func(t *testing.T) {
		groups := listMessages[apiv1.Group](o, "group", "list", "--tenant", "default")
		require.Len(t, groups, 1)
		require.EqualValues(t, 2, groups[0].GetReady())
		require.True(t, groups[0].GetIsStatic())
	})
	t.Run("an instance and its events", func(t *testing.T) {
		var s apiv1.GetInstanceResponse
		o.poll(func() bool { // the journal is written in batches
			o.mustRun(&s, "instance", "get", string(machines[0]))
			events := s.GetEvents()
			return len(events) > 0 && events[len(events)-1].GetType() == string(nstance.EventReady)
		})
		require.Equal(t, string(nstance.Ready), s.GetInstance().GetState())
		require.True(t, s.GetInstance().GetConnected())
		require.NotEmpty(t, listMessages[apiv1.Event](o, "events", "--group", "web"))
	})
	t.Run("the configuration", func(t *testing.T) {
		var s apiv1.GetConfigStatusResponse
		o.mustRun(&s, "config", "status")
		require.NotEmpty(t, s.Digest)
		var r apiv1.RefreshConfigResponse
		o.mustRun(&r, "config", "refresh")
		require.False(t, r.Changed)
		before := o.conf.text
		o.conf.set("{", nil)
		code, _, errs := o.run("config", "refresh")
		require.Equal(t, 2, code, errs)
		o.mustRun(&s, "config", "status")
		require.NotEmpty(t, s.RejectedError)
		o.conf.set(before, nil)
		o.mustRun(&r, "config", "refresh")
	})
	t.Run("an unknown object", func(t *testing.T) {
		id, err := nstance.NewInstanceID("web", machines[0].Time())
		require.NoError(t, err)
		for _, args := range [][]string{{"instance", "get", string(id)}, {"interrupt", string(id), "-y"}, {"group", "scale", "nope", "1"}} {
			code, _, errs := o.run(args...)
			require.Equal(t, 3, code, errs)
		}
	})
	t.Run("scaling", func(t *testing.T) {
		var s apiv1.UpdateGroupResponse
		o.mustRun(&s, "group", "scale", "web", "1", "--dry-run")
		require.EqualValues(t, 1, s.GetGroup().GetSize())
		code, _, _ := o.run("group", "scale", "web", "1")
		require.Equal(t, 2, code, "without a confirmation")
		o.mustRun(&s, "group", "scale", "web", "3")
		o.poll(func() bool { return o.countEvents(nstance.EventCreated) == 4 })
	})
	t.Run("draining", func(t *testing.T) {
		var r apiv1.DrainInstanceResponse
		o.mustRun(&r, "instance", "drain", string(machines[1]), "--reason", "kernel", "--yes")
		require.Equal(t, string(nstance.CauseRequest), r.Drain.Causes[0].Kind)
		require.Regexp(t, `^kernel \(asked for by admin-\w+\)$`, r.Drain.Causes[0].Message)
		code, _, errs := o.run("interrupt", string(machines[1]), "--yes")
		require.Equal(t, 6, code, errs)
	})
	t.Run("deleting", func(t *testing.T) {
		id := o.awaitMachine("blue")
		o.mustRun(&apiv1.DeleteInstanceResponse{}, "instance", "delete", string(id), "--no-drain", "--yes")
		o.awaitEvent(nstance.EventDeleteRequested, id)
	})
}

func TestAdminRehearsalAgainstRealServer(t *testing.T) {
	t.Parallel()
	o := newAdminCLI(t, 1)
	victim := o.awaitMachine("default")
	agent := o.connectReady(victim)
	var rehearsal apiv1.InterruptResponse
	o.mustRun(&rehearsal, "interrupt", string(victim), "--dry-run")
	require.NotEmpty(t, rehearsal.GetPlan())
	require.Zero(t, o.countEvents(nstance.EventNoticeReceived))

	type end struct {
		code      int
		out, errs string
	}
	ended := make(chan end, 1)
	go func() { // received below
		code, out, errs := o.run("interrupt", string(victim), "--wait", "--yes", "-o", "json")
		ended <- end{code, out, errs}
	}()
	requested := o.awaitEvent(nstance.EventReplacementRequested, "")
	require.Equal(t, victim, requested.Replaces)
	o.awaitEvent(nstance.EventCreated, requested.Instance)
	o.connectReady(requested.Instance)
	for {
		if d := agent.nextMessage().GetDrain(); d != nil {
			agent.send(&apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_DrainResult{DrainResult: &apiv1.DrainResult{
				Generation: d.GetGeneration(), Outcome: string(nstance.OutcomeDrained),
			}}})
			break
		}
	}
	got := receive(t, ended)
	require.Zero(t, got.code, got.errs)
	var r apiv1.Interruption
	require.NoError(t, protojson.Unmarshal([]byte(got.out), &r))
	require.EqualValues(t, requested.Instance, r.GetReplacement())
	require.Equal(t, "drained", r.GetDrainOutcome())
	for _, at := range []*timestamppb.Timestamp{
		r.GetDetectedAt(), r.GetReceivedAt(), r.GetReplacementRequestedAt(), r.GetDrainedAt(), r.GetReplacementReadyAt(), r.GetDeletedAt(),
	} {
		require.NotNil(t, at, got.out)
	}
}

// To a server whose clock is far behind, every certificate it issues is fresh,
// and to nstance-admin it is due for renewal.
func TestAdminRenewsCertificate(t *testing.T) {
	t.Parallel()
	behind := func() time.Time { return time.Now().Add(-17 * time.Hour) }
	o := &adminCLI{world: newWorld(t, setup{opts: server.Options{Now: behind}}), dir: t.TempDir()}
	nonce, err := o.keys.Nonces.Mint("", keyring.Claims{
		Kind: nstance.RoleAdmin, Subject: string(cluster), Cluster: cluster, Shard: zone, Tenant: nstance.DefaultTenant,
		JTI: rand.Text(), NotBefore: behind(), Expiry: behind().Add(time.Hour),
	})
	require.NoError(t, err)
	at := o.server.Addresses()
	id, err := admin.Login(t.Context(), o.dir, &admin.LoginOptions{
		Nonce: nonce, CA: o.keys.Identity.CertPEM(), Registration: []string{at.Registration}, Servers: []string{at.Operator},
	})
	require.NoError(t, err)
	for range 3 {
		code, _, errs := o.run("status")
		require.Zero(t, code, errs)
		require.NotContains(t, errs, "warning")
		next, err := admin.LoadIdentity(o.dir)
		require.NoError(t, err)
		require.NotEqual(t, id.Chain, next.Chain)
		id = next
	}
}

// TestLoginAtStandbyFindsLeader: a login at one server of a shard returns a
// certificate and the addresses of all servers.
func TestLoginAtStandbyFindsLeader(t *testing.T) {
	t.Parallel()
	c := newServerPair(t, "", "")
	c.awaitPeerStream()
	leads, stands := c.first.server.Addresses(), c.second.server.Addresses()
	nonce, err := c.first.keys.Nonces.Mint("", keyring.Claims{
		Kind: nstance.RoleAdmin, Subject: string(cluster), Cluster: cluster, Shard: zone, Tenant: nstance.DefaultTenant,
		JTI: rand.Text(), NotBefore: time.Now().Add(-time.Minute), Expiry: time.Now().Add(time.Hour),
	})
	require.NoError(t, err)
	dir := t.TempDir()
	_, err = admin.Login(t.Context(), dir, &admin.LoginOptions{
		Nonce: nonce, CA: c.first.keys.Identity.CertPEM(), Registration: []string{stands.Registration}, Servers: []string{stands.Operator},
	})
	require.NoError(t, err)
	saved, err := admin.LoadIdentity(dir)
	require.NoError(t, err)
	require.ElementsMatch(t, []string{leads.Operator, stands.Operator}, saved.Servers)

	c.first.stopServer()
	c.second.awaitLeading()
	code, out, errs := (&adminCLI{world: c.second, dir: dir}).run("status")
	require.Zero(t, code, errs)
	require.Contains(t, out, stands.Operator)
}

// TestAdminRotatesKeys runs all steps of a rotation with nstance-admin while an
// agent has a certificate of the old key.
func TestAdminRotatesKeys(t *testing.T) {
	t.Parallel()
	w := newKeyRotation(t)
	o := &adminCLI{world: w.world, dir: t.TempDir()}
	require.NoError(t, admin.SaveIdentity(o.dir, admin.Identity{
		Servers: []string{w.server.Addresses().Operator}, Cluster: cluster, Shard: zone,
		Key: w.rotationAdmin.key, Chain: w.rotationAdmin.cert.Certificate, Roots: [][]byte{w.keys.Identity.Certificate()},
	}))
	agent := w.registerAgent(w.awaitMachine("default"))
	session, old := agent.connect(), w.keys.Identity.Issuer()
	step := func(name string) (code int, errs string) {
		code, _, errs = o.run("cluster", "rotate", "identity", "--step", name, "--yes")
		var err error
		w.keys, err = storedKeys(w.world)
		require.NoError(t, err)
		return code, errs
	}
	done := func(name string) {
		t.Helper()
		code, errs := step(name)
		require.Zero(t, code, errs)
	}
	done("begin")
	code, errs := step("activate")
	require.Equal(t, 6, code, "servers may not have noticed: %s", errs)
	w.advance(keyring.Settle)
	done("activate")
	next := w.keys.Identity.Issuer()
	require.NotEqual(t, old, next)
	own, err := admin.LoadIdentity(o.dir)
	require.NoError(t, err)
	require.NotEqual(t, w.rotationAdmin.cert.Certificate, own.Chain, "the administrator has a certificate of the new key")
	session.awaitAck(session.sendReport())

	w.advance(keyring.Settle)
	o.poll(func() bool { // blue's machine never registers and is replaced
		code, errs = step("finish")
		require.Equal(t, 6, code, "the agent has one of the old key: %s", errs)
		return strings.Contains(errs, "1 in shard s1")
	})
	session.awaitAck(session.sendReport())
	agent.renewCertificate()
	session = agent.connect()
	o.poll(func() bool { code, errs = step("finish"); return code == 0 })
	session.awaitAck(session.sendReport())
	keys := listMessages[apiv1.Key](o, "cluster", "keys")
	require.Equal(t, 1, len(slices.DeleteFunc(keys, func(k *apiv1.Key) bool { return k.GetName() != keyring.Identity })), "only the new key is listed")
	require.Equal(t, next, servingKey(t, w.world, w.server.Addresses().Agent))
}
