package admin_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/admin"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/vault"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/secret"
)

// phases is what each step makes of the identity keys, as the world has them.
var phases = map[string][]string{"begin": {"current", "next"}, "activate": {"retired", "current"}, "finish": {"current"}, "abort": {"current"}}

func (w *world) keyList() []*apiv1.Key {
	var out []*apiv1.Key
	for i, phase := range w.phases {
		out = append(out, &apiv1.Key{Name: "identity", Id: strings.Repeat("a", i+1), Phase: phase, Holders: int32(i)})
	}
	return out
}

// ListKeys implements the RPC.
func (w *world) ListKeys(context.Context, *apiv1.ListKeysRequest) (*apiv1.ListKeysResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return &apiv1.ListKeysResponse{Keys: append(w.keyList(), &apiv1.Key{Name: "nonce", Id: "n", Phase: "current"})}, nil
}

// RotateKey implements the RPC.
func (w *world) RotateKey(_ context.Context, req *apiv1.RotateKeyRequest) (*apiv1.RotateKeyResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.refusals) > 0 {
		err := w.refusals[0]
		w.refusals = w.refusals[1:]
		return nil, err
	}
	if !req.GetDryRun() {
		w.calls = append(w.calls, "rotate "+req.GetName()+" "+req.GetStep())
		w.phases = phases[req.GetStep()]
	}
	return &apiv1.RotateKeyResponse{Keys: w.keyList()}, nil
}

// ListOperators implements the RPC.
func (w *world) ListOperators(_ context.Context, req *apiv1.ListOperatorsRequest) (*apiv1.ListOperatorsResponse, error) {
	in := timestamppb.New(time.Now().Add(time.Hour))
	all := []*apiv1.Operator{
		{Id: "operator-1", Tenant: "blue", Role: "operator", NotAfter: in},
		{Id: "operator-2", Tenant: "blue", Role: "operator", NotAfter: timestamppb.New(time.Now().Add(-time.Hour))},
		{Id: "admin-3", Tenant: "default", Role: "admin", NotAfter: in, RevokedAt: timestamppb.New(time.Now()), RevokedReason: "left"},
		{Id: "admin-4", Tenant: "default", Error: "cannot be read"},
		{Id: "operator-5", Tenant: "blue", NotAfter: timestamppb.New(time.Now().Add(-time.Hour)), RevokedAt: timestamppb.New(time.Now()), RevokedReason: "stolen"},
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	resp := &apiv1.ListOperatorsResponse{}
	resp.Operators, resp.NextPage = page(w, all, req.GetPage())
	return resp, nil
}

// RevokeOperator implements the RPC.
func (w *world) RevokeOperator(_ context.Context, req *apiv1.RevokeOperatorRequest) (*apiv1.RevokeOperatorResponse, error) {
	if req.GetId() != "operator-1" {
		return nil, nstance.Errorf(nstance.NotFound, "no operator %s", req.GetId())
	}
	if !req.GetDryRun() {
		w.did("revoke " + req.GetTenant() + " " + req.GetId() + " " + req.GetReason())
	}
	return &apiv1.RevokeOperatorResponse{}, nil
}

func TestClusterKeys(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.set(func() { w.phases = []string{"retired", "current"} })
	r := w.run("cluster", "keys")
	require.Zero(t, r.code, r.errors)
	require.Contains(t, r.out, "retired")
	r = w.run("cluster", "keys", "-o", "json")
	require.JSONEq(t, `[{"name":"identity","id":"a","phase":"retired","holders":0},{"name":"identity","id":"aa","phase":"current","holders":1},
		{"name":"nonce","id":"n","phase":"current","holders":0}]`, r.out)
}

func TestClusterRotate(t *testing.T) {
	t.Parallel()
	t.Run("one step", func(t *testing.T) {
		w := newWorld(t)
		r := w.run("cluster", "rotate", "identity", "--step", "begin", "-o", "json")
		require.Zero(t, r.code, r.errors)
		require.Contains(t, r.out, `"phase": "next"`)
		require.Equal(t, []string{"rotate identity begin"}, w.done())
	})
	t.Run("a dry run changes nothing", func(t *testing.T) {
		w := newWorld(t)
		before := w.saved()
		require.Zero(t, w.run("cluster", "rotate", "identity", "--step", "activate", "--dry-run").code)
		require.Equal(t, before, w.saved())
		require.Zero(t, w.run("cluster", "rotate", "identity", "--step", "finish", "--dry-run").code)
		require.Empty(t, w.done())
	})
	t.Run("finish asks first", func(t *testing.T) {
		w := newWorld(t)
		require.Equal(t, 2, w.run("cluster", "rotate", "identity", "--step", "finish").code)
		require.Equal(t, 2, w.run("cluster", "rotate", "identity", "--watch").code)
		r := w.run("cluster", "rotate", "identity", "--step", "finish", "--force")
		require.Equal(t, 2, r.code)
		require.Contains(t, r.errors, "machines are replaced")
		require.Empty(t, w.done())
	})
	t.Run("a step that must wait is a conflict", func(t *testing.T) {
		w := newWorld(t)
		w.set(func() { w.refusals = []error{nstance.Errorf(nstance.Conflict, "not before noon")} })
		r := w.run("cluster", "rotate", "identity", "--step", "activate")
		require.Equal(t, 6, r.code)
		require.Contains(t, r.errors, "not before noon")
	})
	t.Run("activation renews this administrator's own certificate, early as it is", func(t *testing.T) {
		w := newWorld(t)
		before := w.saved()
		require.Zero(t, w.run("cluster", "rotate", "identity", "--step", "activate").code)
		after := w.saved()
		require.NotEqual(t, before.Chain, after.Chain)
		require.Equal(t, []string{"rotate identity activate", "renew " + pki.KeyFingerprint(after.Key.Public())}, w.done())
		certs, err := pki.ParseCertificates(pki.MarshalCertificates(after.Chain...))
		require.NoError(t, err)
		w.set(func() { require.Equal(t, pki.SerialOf(certs[0]), w.callers[len(w.callers)-1], "and has been shown") })
	})
	t.Run("activation of another key renews nothing", func(t *testing.T) {
		w := newWorld(t)
		require.Zero(t, w.run("cluster", "rotate", "workload", "--step", "activate").code)
		require.Equal(t, []string{"rotate workload activate"}, w.done())
	})
	t.Run("all steps, in order, one after another", func(t *testing.T) {
		w := newWorld(t)
		w.set(func() { w.phases = []string{"current"} })
		r := w.run("cluster", "rotate", "identity", "--watch", "--yes", "-o", "json")
		require.Zero(t, r.code, r.errors)
		require.Contains(t, r.errors, "finish of the identity key is done")
		calls := w.done()
		require.Equal(t, "rotate identity begin", calls[0])
		require.Equal(t, "rotate identity finish", calls[len(calls)-1])
		require.Len(t, calls, 4)
	})
	t.Run("what is under way is carried on, and no more", func(t *testing.T) {
		w := newWorld(t)
		w.set(func() { w.phases = []string{"retired", "current"} })
		require.Zero(t, w.run("cluster", "rotate", "identity", "--watch", "--yes").code)
		require.Equal(t, []string{"rotate identity finish"}, w.done())
	})
	t.Run("a refusal ends it", func(t *testing.T) {
		w := newWorld(t)
		w.set(func() {
			w.phases, w.refusals = []string{"current", "next"}, []error{nstance.Errorf(nstance.Denied, "not you")}
		})
		require.Equal(t, 4, w.run("cluster", "rotate", "identity", "--watch", "--yes").code)
	})
	t.Run("while a step must wait it may be interrupted", func(t *testing.T) {
		w := newWorld(t)
		w.set(func() {
			w.phases, w.refusals = []string{"current", "next"}, []error{nstance.Errorf(nstance.Conflict, "not before noon")}
		})
		r := w.start(t, "cluster", "rotate", "identity", "--watch", "--yes")
		require.Eventually(t, func() bool { return strings.Contains(r.errs.String(), "waiting: not before noon") }, time.Minute, time.Millisecond)
		r.stop()
		require.Equal(t, 5, r.ended())
		require.Contains(t, r.errs.String(), "the rotation stays at this step")
	})
	t.Run("what another process ends meanwhile is not begun again", func(t *testing.T) { // it takes one pause
		t.Parallel()
		w := newWorld(t)
		w.set(func() {
			w.phases, w.refusals = []string{"retired", "current"}, []error{nstance.Errorf(nstance.Conflict, "2 agents depend on it")}
		})
		r := w.start(t, "cluster", "rotate", "identity", "--watch", "--yes")
		require.Eventually(t, func() bool { return strings.Contains(r.errs.String(), "waiting: 2 agents") }, time.Minute, time.Millisecond)
		w.set(func() { w.phases = []string{"current"} })
		require.Zero(t, r.ended(), r.errs.String())
		require.Empty(t, w.done())
	})
	t.Run("a refused begin has begun nothing", func(t *testing.T) { // it takes one pause
		t.Parallel()
		w := newWorld(t)
		w.set(func() {
			w.phases, w.refusals = []string{"current"}, []error{nstance.Errorf(nstance.Conflict, "a recovery is under way")}
		})
		r := w.run("cluster", "rotate", "identity", "--watch", "--yes")
		require.Zero(t, r.code, r.errors)
		require.Contains(t, w.done(), "rotate identity finish")
	})
	t.Run("refuses", func(t *testing.T) {
		w := newWorld(t)
		for _, args := range []string{"tls --step begin", "identity", "identity --step begin --watch", "identity --watch --force", "identity --watch --dry-run", "encryption --step begin"} {
			r := w.run(append([]string{"cluster", "rotate", "--yes"}, strings.Fields(args)...)...)
			require.Equal(t, 2, r.code, "%s: %s", args, r.errors)
		}
		require.Empty(t, w.done())
	})
}

func TestOperators(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	t.Run("list", func(t *testing.T) {
		r := w.run("operator", "list")
		require.Zero(t, r.code, r.errors)
		require.Contains(t, r.out, "operator-1")
		require.NotContains(t, r.out, "operator-2", "expired")
		require.Contains(t, r.out, "revoked")
		require.Contains(t, r.out, "unreadable")
		require.Contains(t, w.run("operator", "list", "--all").out, "expired")
		list := messages[apiv1.Operator](t, w.run("operator", "list", "-o", "json"))
		require.Len(t, list, 4)
		require.Equal(t, "left", list[1].GetRevokedReason())
		require.Equal(t, "cannot be read", list[2].GetError())
		require.Equal(t, "stolen", list[3].GetRevokedReason(), "for good, also after its certificate's end")
	})
	t.Run("revoke", func(t *testing.T) {
		require.Equal(t, 2, w.run("operator", "revoke", "operator-1").code, "it asks")
		require.Zero(t, w.run("operator", "revoke", "operator-1", "--dry-run").code)
		require.Equal(t, 3, w.run("operator", "revoke", "operator-9", "-y").code)
		require.Empty(t, w.done())
		r := w.run("operator", "revoke", "operator-1", "-y", "--tenant", "blue", "--reason", "left", "-o", "json")
		require.Zero(t, r.code, r.errors)
		require.JSONEq(t, "{}", r.out, "the answer of the call")
		require.Equal(t, []string{"revoke blue operator-1 left"}, w.done())
	})
	t.Run("register", func(t *testing.T) {
		require.Equal(t, 2, w.run("operator", "register", "--nonce", "x").code)
		r := w.runWith(w.nonce(nil), "operator", "register", "--nonce", "-", "--registration", w.registration, "--ca", w.caFile(), "--identity", t.TempDir())
		require.Equal(t, 2, r.code, "a nonce of kind admin")
		require.Contains(t, r.errors, "--kind operator")
	})
}

func TestRotateEncryption(t *testing.T) {
	t.Parallel()
	old, fresh, foreign := secret.NewKey(), secret.NewKey(), secret.NewKey()
	dir := t.TempDir()
	store, err := storage.OpenDir(dir, nil)
	require.NoError(t, err)
	box := func(keys ...secret.Key) *secret.Box {
		b, err := secret.NewBox(keys...)
		require.NoError(t, err)
		return b
	}
	_, err = keyring.Bootstrap(t.Context(), vault.New(store, box(old)), time.Now())
	require.NoError(t, err)
	require.NoError(t, vault.New(store, box(foreign)).PutIfAbsent(t.Context(), "strange", []byte("x")))
	reseal := func(keys []secret.Key, args ...string) result {
		var text []string
		for _, k := range keys {
			text = append(text, k.Encode())
		}
		env := map[string]string{"NSTANCE_SECRET_KEY": strings.Join(text, "\n")}
		return run(t, strings.NewReader(""), env, append([]string{"cluster", "rotate", "encryption", "--storage", "file://" + filepath.ToSlash(dir)}, args...)...)
	}
	r := reseal([]secret.Key{fresh, old}, "--dry-run")
	require.Equal(t, 4, r.code)
	require.Contains(t, r.out, "identity-ca.key: would be sealed again")
	r = reseal([]secret.Key{fresh, old}, "-o", "json")
	require.Equal(t, 4, r.code, "what cannot be opened is named, and an error")
	require.Contains(t, r.errors, "1 secrets were not sealed again")
	require.Contains(t, r.out, `"name": "strange"`)
	require.Contains(t, r.out, foreign.ID())
	_, err = keyring.Bootstrap(t.Context(), vault.New(store, box(fresh)), time.Now())
	require.NoError(t, err, "the old key is not needed any more")

	r = reseal([]secret.Key{fresh, foreign})
	require.Zero(t, r.code, r.errors)
	require.Contains(t, r.out, "1 sealed again, 3 have the first key already, 0 skipped")
	require.Equal(t, 2, reseal([]secret.Key{fresh}, "--key-provider", "none").code)
}

func TestOperatorsOwnIdentity(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, err := admin.Login(t.Context(), t.TempDir(), &admin.LoginOptions{
		Nonce: w.nonce(func(c *keyring.Claims) { c.Kind = nstance.RoleOperator }), CA: w.keys.Identity.CertPEM(),
		Registration: []string{w.registration}, Role: nstance.RoleOperator,
	})
	require.NoError(t, err)
}
