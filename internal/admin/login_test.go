package admin_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/admin"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/operatorapi"
	"github.com/nstance-go/nstance/internal/pki"
)

func (w *world) nonce(change func(*keyring.Claims)) string {
	c := keyring.Claims{
		Kind: nstance.RoleAdmin, Subject: string(cluster), Cluster: cluster, Tenant: nstance.DefaultTenant, Shard: shard,
		JTI: "0123456789abcdef", NotBefore: time.Now(), Expiry: time.Now().Add(time.Hour),
	}
	if change != nil {
		change(&c)
	}
	token, err := w.keys.Nonces.Mint("", c)
	require.NoError(w.t, err)
	return token + "\n"
}

func (w *world) caFile() string {
	path := filepath.Join(w.t.TempDir(), "ca.crt")
	require.NoError(w.t, os.WriteFile(path, w.keys.Identity.CertPEM(), 0o600))
	return path
}

// login runs the command with a nonce on standard input.
func (w *world) login(dir, nonce string, more ...string) result {
	args := append([]string{"login", "--nonce", "-", "--registration", w.registration, "--ca", w.caFile(), "--operator-addr", w.operator}, more...)
	return run(w.t, strings.NewReader(nonce), map[string]string{"NSTANCE_ADMIN_DIR": dir}, args...)
}

func TestLogin(t *testing.T) {
	t.Parallel()
	w := newWorld(t).populate()
	dir := filepath.Join(t.TempDir(), "deep", "er")
	r := w.login(dir, w.nonce(nil), "-o", "json")
	require.Zero(t, r.code, r.errors)
	var got admin.LoginResult
	require.NoError(t, json.Unmarshal([]byte(r.out), &got))
	require.Equal(t, admin.LoginResult{
		Identity: dir, Subject: "admin-0123456789abcdef", Cluster: cluster, Shard: shard, NotAfter: got.NotAfter,
		Servers: []string{w.operator, "server-a.example:8993", "server-b.example:8993"},
	}, got)

	t.Run("makes an identity that serves", func(t *testing.T) {
		require.Zero(t, run(t, strings.NewReader(""), nil, "status", "--identity", dir).code)
	})
	t.Run("which only its owner can read", func(t *testing.T) {
		info, err := os.Stat(dir)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		var names []string
		for _, e := range entries {
			info, err := e.Info()
			require.NoError(t, err)
			require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), e.Name())
			names = append(names, e.Name())
		}
		require.Equal(t, []string{"admin.json", "ca.pem", "cert.pem", "key.pem"}, names)
		data, err := os.ReadFile(filepath.Join(dir, "admin.json"))
		require.NoError(t, err)
		require.JSONEq(t, `{"servers":["`+w.operator+`","server-a.example:8993","server-b.example:8993"],"shard":"eu1a","cluster":"prod"}`, string(data))
	})
	t.Run("again, with a new nonce", func(t *testing.T) {
		again := w.nonce(func(c *keyring.Claims) { c.JTI = "fedcba9876543210" })
		require.Zero(t, w.login(dir, again).code)
		require.Zero(t, run(t, strings.NewReader(""), nil, "status", "--identity", dir).code)
	})
	for what, change := range map[string]func(*admin.Identity){
		"shard eu1b of cluster prod": func(id *admin.Identity) { id.Shard = "eu1b" },
		"shard eu1a of cluster test": func(id *admin.Identity) { id.Cluster = "test" },
	} {
		t.Run("not over the identity for "+what, func(t *testing.T) {
			other := w.identity(time.Now())
			change(&other)
			require.NoError(t, admin.SaveIdentity(dir, other))
			again := w.nonce(func(c *keyring.Claims) { c.JTI = rand.Text() })
			r := w.login(dir, again)
			require.Equal(t, 6, r.code)
			require.Contains(t, r.errors, what)
			require.Zero(t, w.login(dir, again, "--yes").code)
		})
	}
}

// TestLoginWithoutOperatorAddress: registration works, and the address that every later
// command needs does not.
func TestLoginWithoutOperatorAddress(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	closed := closedPort(t)
	r := run(t, strings.NewReader(w.nonce(nil)), map[string]string{"NSTANCE_ADMIN_DIR": t.TempDir()},
		"login", "--nonce", "-", "--registration", w.registration, "--ca", w.caFile(), "--operator-addr", closed)
	require.Zero(t, r.code, r.errors)
	require.Contains(t, r.errors, "warning: the identity is saved, but no server answers at "+closed)
	require.Contains(t, r.errors, "--operator-addr")
	r = w.login(t.TempDir(), w.nonce(func(c *keyring.Claims) { c.JTI = "fedcba9876543210" }))
	require.Zero(t, r.code, r.errors)
	require.NotContains(t, r.errors, "warning")
}

func TestLoginHealsALostAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir, nonce := t.TempDir(), w.nonce(nil)
	w.set(func() { w.fail["after RegisterOperator"] = nstance.Errorf(nstance.Unavailable, "lost") })
	require.Equal(t, 5, w.login(dir, nonce).code)
	w.set(func() { delete(w.fail, "after RegisterOperator") })
	require.Zero(t, w.login(dir, nonce).code, "the same key again")
	require.Equal(t, 4, w.login(t.TempDir(), nonce).code, "another key is refused")
}

func TestLoginTriesEachAddress(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := t.TempDir()
	r := w.login(dir, w.nonce(nil), "--registration", closedPort(t), "--operator-addr", "second.example:1,third.example")
	require.Zero(t, r.code, r.errors)
	w.dir = dir
	require.Equal(t, []string{w.operator, "second.example:1", "third.example:8993", "server-a.example:8993", "server-b.example:8993"}, w.saved().Servers, "all of them")
}

func TestLoginRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bad := filepath.Join(t.TempDir(), "bad")
	require.NoError(t, os.WriteFile(bad, []byte("no PEM"), 0o600))
	other := newWorld(t)
	for name, tc := range map[string]struct {
		nonce string
		more  []string
		code  int
		says  string
	}{
		"no nonce":             {"rubbish", nil, 2, "is not a signed JSON Web Token"},
		"claims that are none": {"a." + base64.RawURLEncoding.EncodeToString([]byte("[]")) + ".b", nil, 2, "no readable claims"},
		"an operator's nonce":  {w.nonce(func(c *keyring.Claims) { c.Kind = nstance.RoleOperator }), nil, 2, "--kind admin"},
		"no shard at all":      {w.nonce(func(c *keyring.Claims) { c.Shard = "" }), nil, 2, "--shard"},
		"another shard":        {w.nonce(nil), []string{"--shard", "eu1b"}, 2, `for shard "eu1a"`},
		"a bad authority":      {w.nonce(nil), []string{"--ca", bad}, 2, "--ca-output"},
		"an expired nonce": {w.nonce(func(c *keyring.Claims) {
			c.NotBefore, c.Expiry = time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)
		}), nil, 4, "expired"},
		"a nonce of another key":    {other.nonce(nil), nil, 4, "unknown key"},
		"a server that is not ours": {w.nonce(nil), []string{"--ca", other.caFile()}, 4, "no trust"},
		"a bad address":             {w.nonce(nil), []string{"--operator-addr", "http://x"}, 2, "not an address"},
		"a port that is none":       {w.nonce(nil), []string{"--operator-addr", "host:65536"}, 2, "not an address"},
		"too much":                  {w.nonce(nil) + strings.Repeat("\n", operatorapi.MaxNonce), nil, 2, "too large"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			r := w.login(dir, tc.nonce, tc.more...)
			require.Equal(t, tc.code, r.code, r.errors)
			require.Contains(t, r.errors, tc.says)
			require.NoFileExists(t, filepath.Join(dir, "cert.pem"))
			if p := strings.TrimSpace(tc.nonce); len(p) > 20 {
				require.NotContains(t, r.errors, p, "a nonce is a secret")
			}
		})
	}
}

// unusable are certificates that no server should give.
func (w *world) unusable() map[string]func(*apiv1.Credential) {
	return map[string]func(*apiv1.Credential){
		"without an authority": func(c *apiv1.Credential) { c.Roots = nil },
		"for another key":      func(c *apiv1.Credential) { c.Chain = w.identity(time.Now()).Chain },
		"of an agent": func(c *apiv1.Credential) {
			certs, err := pki.ParseCertificates(pki.MarshalCertificates(c.GetChain()...))
			require.NoError(w.t, err)
			issued, err := w.keys.Identity.Issue(keyring.Template{
				Subject: string(webA), Tenant: nstance.DefaultTenant, Role: nstance.RoleAgent, Key: certs[0].PublicKey.(ed25519.PublicKey), Lifetime: time.Hour, Now: time.Now(),
			})
			require.NoError(w.t, err)
			c.Chain = [][]byte{issued.Certificate}
		},
	}
}

// TestFailedLoginKeepsIdentity: the identity that is there stays in use until another one has
// been given, and is fit to take its place.
func TestFailedLoginKeepsIdentity(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	old := w.saved()
	nonce := w.nonce(nil)
	for name, change := range w.unusable() {
		t.Run(name, func(t *testing.T) {
			w.set(func() { w.change = change })
			defer w.set(func() { w.change = nil })
			r := w.login(w.dir, nonce)
			require.NotZero(t, r.code)
			require.Contains(t, r.errors, "the server sent")
			require.Equal(t, old, w.saved())
		})
	}
	require.Equal(t, 4, w.login(w.dir, newWorld(t).nonce(nil)).code, "refused")
	require.Equal(t, old, w.saved())
	require.Zero(t, w.login(w.dir, nonce).code)
	require.NotEqual(t, old, w.saved())
}

// TestIdentityIsNoMixture: what cannot be written as a whole leaves no identity, rather than
// parts of two.
func TestIdentityIsNoMixture(t *testing.T) {
	t.Parallel()
	for name, save := range map[string]func(w *world) error{
		"login": func(w *world) error {
			_, err := admin.Login(w.t.Context(), w.dir, &admin.LoginOptions{
				Nonce: w.nonce(nil), CA: w.keys.Identity.CertPEM(), Registration: []string{w.registration}, Servers: []string{w.operator},
			})
			return err
		},
		"save": func(w *world) error { return admin.SaveIdentity(w.dir, w.identity(time.Now())) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			roots := filepath.Join(w.dir, "ca.pem")
			require.NoError(t, os.Remove(roots))
			require.NoError(t, os.MkdirAll(filepath.Join(roots, "in the way"), 0o700))
			require.Error(t, save(w))
			_, err := admin.LoadIdentity(w.dir)
			require.ErrorIs(t, err, nstance.Denied, "not logged in")
		})
	}
}

// TestLoginAsksNoFurther: a refusal is final, and the leader that a standby names is asked
// once.
func TestLoginAsksNoFurther(t *testing.T) {
	t.Parallel()
	first := newWorld(t)
	second := newWorldWith(t, first.keys)
	asked := func() (n [2]int) {
		for i, w := range []*world{first, second} {
			w.set(func() { n[i] = w.asks["RegisterOperator"] })
		}
		return n
	}
	login := func() result {
		return first.login(t.TempDir(), first.nonce(nil), "--registration", second.registration)
	}
	first.set(func() { first.fail["RegisterOperator"] = nstance.Errorf(nstance.Denied, "nonce was revoked") })
	require.Equal(t, 4, login().code)
	require.Equal(t, [2]int{1, 0}, asked())

	standby := &nstance.Error{Code: nstance.Unavailable, Msg: "this server does not lead", Leader: second.operator, LeaderRegistration: second.registration}
	first.set(func() { first.fail["RegisterOperator"] = standby })
	second.set(func() {
		second.fail["RegisterOperator"] = nstance.Errorf(nstance.Unavailable, "no leader at the moment")
	})
	r := login()
	require.Equal(t, 5, r.code, r.errors)
	require.Equal(t, [2]int{2, 1}, asked())

	second.set(func() { delete(second.fail, "RegisterOperator") })
	dir := t.TempDir()
	r = first.login(dir, first.nonce(nil))
	require.Zero(t, r.code, r.errors)
	require.Equal(t, [2]int{3, 2}, asked(), "the leader is not on the command line")
	id, err := admin.LoadIdentity(dir)
	require.NoError(t, err)
	require.Contains(t, id.Servers, second.operator)
}

func TestDefaultsOfAddresses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, err := admin.Login(t.Context(), t.TempDir(), &admin.LoginOptions{Nonce: w.nonce(nil), CA: w.keys.Identity.CertPEM()})
	require.ErrorIs(t, err, nstance.Invalid)
	require.ErrorContains(t, err, "--registration")
	id, err := admin.Login(t.Context(), t.TempDir(), &admin.LoginOptions{
		Nonce: w.nonce(nil), CA: w.keys.Identity.CertPEM(), Registration: []string{w.registration},
	})
	require.NoError(t, err)
	require.Equal(t, []string{"127.0.0.1:8993"}, id.Servers)
	_, err = admin.Login(t.Context(), t.TempDir(), nil)
	require.ErrorIs(t, err, nstance.Invalid)
}

func TestIdentityDirectory(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := t.TempDir()
	id := w.identity(time.Now())
	require.NoError(t, admin.SaveIdentity(dir, id))
	t.Run("gives back what was saved", func(t *testing.T) {
		got, err := admin.LoadIdentity(dir)
		require.NoError(t, err)
		require.Equal(t, id, got)
	})
	t.Run("has either key while one is replaced", func(t *testing.T) {
		require.NoError(t, os.Rename(filepath.Join(dir, "key.pem"), filepath.Join(dir, "key.next.pem")))
		require.NoError(t, pki.SaveKey(filepath.Join(dir, "key.pem"), pki.NewKey()))
		got, err := admin.LoadIdentity(dir)
		require.NoError(t, err)
		require.Equal(t, id, got)
	})
	t.Run("is invalid without its key", func(t *testing.T) {
		require.NoError(t, os.Remove(filepath.Join(dir, "key.next.pem")))
		_, err := admin.LoadIdentity(dir)
		require.ErrorIs(t, err, nstance.Invalid)
	})
	t.Run("refuses what is incomplete", func(t *testing.T) {
		for name, change := range map[string]func(*admin.Identity){
			"no server":   func(i *admin.Identity) { i.Servers = nil },
			"no shard":    func(i *admin.Identity) { i.Shard = "" },
			"no cluster":  func(i *admin.Identity) { i.Cluster = "" },
			"no roots":    func(i *admin.Identity) { i.Roots = nil },
			"no chain":    func(i *admin.Identity) { i.Chain = nil },
			"another key": func(i *admin.Identity) { i.Key = pki.NewKey() },
		} {
			broken := id
			change(&broken)
			require.ErrorIs(t, admin.SaveIdentity(t.TempDir(), broken), nstance.Invalid, name)
		}
	})
}

func TestLoginDryRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t).populate()
	dir := filepath.Join(t.TempDir(), "deep", "er")
	r := w.login(dir, w.nonce(nil), "--dry-run")
	require.Zero(t, r.code, r.errors)
	require.Contains(t, r.out, "a server of shard eu1a of cluster prod answers")
	require.NoDirExists(t, dir)
	r = w.login(dir, w.nonce(nil), "--dry-run", "-o", "json")
	require.JSONEq(t, `{"identity":"`+dir+`","cluster":"prod","shard":"eu1a","servers":["`+w.operator+`"],"dry_run":true}`, r.out)
	r = w.login(dir, w.nonce(nil), "--dry-run", "--operator-addr", "::1,[::2],[::3]:1,a.example", "-o", "json")
	require.Zero(t, r.code, r.errors)
	require.Contains(t, strings.Join(strings.Fields(r.out), ""), `"servers":["`+w.operator+`","[::1]:8993","[::2]:8993","[::3]:1","a.example:8993"]`)
	r = w.runWith(w.nonce(nil), "login", "--nonce", "-", "--dry-run", "--ca", w.caFile(), "--registration", closedPort(t)+","+w.registration)
	require.Zero(t, r.code, "another address answers: %s", r.errors)
	require.Empty(t, w.used, "the nonce is still good")

	other := newWorld(t)
	for name, tc := range map[string]struct {
		nonce string
		more  []string
		code  int
		says  string
	}{
		"an expired nonce": {w.nonce(func(c *keyring.Claims) {
			c.NotBefore, c.Expiry = time.Now().Add(-time.Hour), time.Now().Add(-time.Minute)
		}), nil, 4, "the nonce expired at"},
		"a nonce of another kind": {w.nonce(func(c *keyring.Claims) { c.Kind = nstance.RoleOperator }), nil, 2, "is of kind"},
		"another authority":       {w.nonce(nil), []string{"--ca", other.caFile()}, 4, "no trust"},
		"no server":               {w.nonce(nil), []string{"--registration", closedPort(t)}, 5, "cannot be reached"},
		"no answer":               {w.nonce(nil), []string{"--registration", silentPort(t), "--timeout", "3s"}, 5, "did not answer within 3s"},
		"another shard's": {w.nonce(nil), []string{"--identity", func() string {
			id := w.identity(time.Now())
			id.Shard = "eu1b"
			dir := filepath.Join(t.TempDir(), "other")
			require.NoError(t, admin.SaveIdentity(dir, id))
			return dir
		}()}, 6, "holds an identity for shard eu1b"},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"login", "--nonce", "-", "--dry-run"}, tc.more...)
			for flag, value := range map[string]string{"--registration": w.registration, "--ca": w.caFile()} {
				if !slices.Contains(tc.more, flag) {
					args = append(args, flag, value)
				}
			}
			r := run(t, strings.NewReader(tc.nonce), map[string]string{"NSTANCE_ADMIN_DIR": dir}, args...)
			require.Equal(t, tc.code, r.code, r.errors)
			require.Contains(t, r.errors, tc.says)
			require.NoDirExists(t, dir)
		})
	}
}
