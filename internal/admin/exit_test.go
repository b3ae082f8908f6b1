package admin_test

import (
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/admin"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/test/freeport"
)

func TestExitCodesAreThoseOfTheServersErrors(t *testing.T) {
	t.Parallel()
	w := newWorld(t).populate()
	for code, exit := range map[nstance.Code]int{
		nstance.Invalid: 2, nstance.NotFound: 3, nstance.Denied: 4, nstance.Unavailable: 5, nstance.Throttled: 5, nstance.Conflict: 6,
		nstance.Internal: 1, nstance.Capacity: 1, nstance.Quota: 1, nstance.Ambiguous: 1,
	} {
		t.Run(string(code), func(t *testing.T) {
			w.set(func() {
				w.fail["UpdateGroup"] = &nstance.Error{Code: code, Field: "size", Msg: "cannot be", Remedy: "do this"}
			})
			r := w.run("group", "scale", "web", "9")
			require.Equal(t, exit, r.code)
			require.Equal(t, "error: size: cannot be (do this)\n", r.errors, "the server's own words, once")
			require.Empty(t, r.out)
		})
	}
}

func TestCommandLineErrors(t *testing.T) {
	t.Parallel()
	w := newWorld(t).populate()
	for line, says := range map[string]string{
		"":                                 "name a command (see nstance-admin --help)",
		"group":                            "name a command (see nstance-admin group --help)",
		"grop":                             `unknown command "grop" for "nstance-admin", did you mean "group"? (see nstance-admin --help)`,
		"group lst":                        `unknown command "lst" for "nstance-admin group", did you mean "list"?`,
		"group list x":                     `unexpected argument "x" (see nstance-admin group list --help)`,
		"group list --colour":              "unknown flag: --colour (see nstance-admin group list --help)",
		"group list -o xml":                `"xml" for "-o, --output" flag: use table, json, yaml`,
		"group list --timeout soon":        `"soon" for "--timeout" flag`,
		"group list --server a:b:c":        `server: "a:b:c" is not an address (use host or host:port)`,
		"group scale web":                  "argument SIZE is missing",
		"group scale web many":             `SIZE: "many" is not a size (use 0 or more)`,
		"group scale web -- -1":            `SIZE: "-1" is not a size`,
		"instance get":                     "argument ID is missing",
		"instance get web":                 `"web" has 3 characters (use the 29-character ID that instance list prints)`,
		"interrupt web":                    `"web" has 3 characters`,
		"events --instance web":            `"web" has 3 characters`,
		"completion nosh":                  `unknown command "nosh" for "nstance-admin completion"`,
		"login":                            "--nonce: is not given",
		"login --nonce /nowhere":           "--nonce: open /nowhere: no such file",
		"cluster nonce":                    "--storage: is not given",
		"restore a b":                      "accepts at most 1 arg(s), received 2 (see nstance-admin restore --help)",
		"interrupt " + string(webA) + " x": `unexpected argument "x"`,
	} {
		t.Run(line, func(t *testing.T) {
			r := w.run(strings.Fields(line)...)
			require.Equal(t, 2, r.code, r.errors)
			require.Contains(t, r.errors, says)
			require.Equal(t, 1, strings.Count(r.errors, "error: "))
			require.Empty(t, r.out, "what is wrong goes to standard error")
		})
	}
}

func TestHelpAndCompletion(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, line := range []string{"--help", "group --help", "interrupt -h", "help events", "completion bash", "completion zsh"} {
		r := w.run(strings.Fields(line)...)
		require.Zero(t, r.code, line)
		require.NotEmpty(t, r.out)
		require.Empty(t, r.errors)
	}
	require.Contains(t, w.run("__complete", "group", "list", "-o", "").out, "yaml")
}

func TestTrust(t *testing.T) {
	t.Parallel()
	w := newWorld(t).populate()
	dir := t.TempDir()
	env := map[string]string{"NSTANCE_ADMIN_DIR": dir}
	status := func() result { return run(t, strings.NewReader(""), env, "status") }
	t.Run("without an identity", func(t *testing.T) {
		r := status()
		require.Equal(t, 4, r.code)
		require.Contains(t, r.errors, "not logged in: "+dir+" holds no identity (run nstance-admin login")
	})
	t.Run("--identity goes before the environment", func(t *testing.T) {
		require.Zero(t, run(t, strings.NewReader(""), env, "status", "--identity", w.dir).code)
	})
	t.Run("an expired certificate", func(t *testing.T) {
		require.NoError(t, admin.SaveIdentity(dir, w.identity(time.Now().Add(-25*time.Hour))))
		r := status()
		require.Equal(t, 4, r.code)
		require.Contains(t, r.errors, "expired")
		require.Contains(t, r.errors, "log in again")
	})
	t.Run("a server of another shard", func(t *testing.T) {
		id := w.identity(time.Now())
		id.Shard = "eu1b"
		require.NoError(t, admin.SaveIdentity(dir, id))
		r := status()
		require.Equal(t, 4, r.code)
		require.Contains(t, r.errors, "server.eu1b.prod")
	})
	t.Run("a server of another cluster", func(t *testing.T) {
		id := w.identity(time.Now())
		id.Roots = [][]byte{newWorld(t).keys.Identity.Certificate()}
		require.NoError(t, admin.SaveIdentity(dir, id))
		r := status()
		require.Equal(t, 4, r.code)
		require.Contains(t, r.errors, "no trust")
	})
	t.Run("a certificate of another cluster", func(t *testing.T) {
		id := newWorld(t).identity(time.Now())
		id.Roots, id.Servers = [][]byte{w.keys.Identity.Certificate()}, []string{w.operator}
		require.NoError(t, admin.SaveIdentity(dir, id))
		r := status()
		require.Equal(t, 4, r.code, r.errors)
		require.Contains(t, r.errors, "no trust")
	})
	t.Run("an identity in pieces", func(t *testing.T) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "cert.pem"), []byte("rubbish"), 0o600))
		r := status()
		require.Equal(t, 2, r.code)
		require.Contains(t, r.errors, "cert.pem")
	})
}

// A server that refuses a certificate may break the connection before the
// client has read why.
func TestRefusalBehindABrokenConnection(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	cert, err := w.keys.Identity.Server(shard, cluster, time.Hour, time.Now())
	require.NoError(t, err)
	get := func() (*tls.Certificate, error) { return cert, nil }
	foreign := newWorld(t).keys.Identity.Pool()
	var wg sync.WaitGroup
	wg.Go(func() {
		for cfg := pki.RegistrationTLS(get); ; cfg = pki.ServerTLS(get, foreign, nstance.RoleAdmin) {
			cfg.NextProtos = []string{"h2"}
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			if err := tls.Server(conn, cfg).HandshakeContext(t.Context()); err == nil {
				_ = conn.(*net.TCPConn).SetLinger(0) // the first one: reset, without a word
			}
			_ = conn.Close()
		}
	})
	defer wg.Wait()
	defer lis.Close()
	r := w.run("status", "--server", lis.Addr().String())
	require.Equal(t, 4, r.code, r.errors)
	require.Contains(t, r.errors, "no trust")
}

func closedPort(t testing.TB) string {
	address, err := freeport.Address()
	require.NoError(t, err)
	return address
}

// silentPort returns an address that accepts connections and never answers.
func silentPort(t testing.TB) string {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = lis.Close() })
	return lis.Addr().String()
}

func TestServers(t *testing.T) {
	t.Parallel()
	w := newWorld(t).populate()
	other := newWorldWith(t, w.keys)
	other.set(func() { other.standby = true })
	closedAddr := closedPort(t)

	t.Run("no server", func(t *testing.T) {
		r := w.run("status", "--server", closedAddr)
		require.Equal(t, 5, r.code)
		require.Contains(t, r.errors, closedAddr+" cannot be reached")
		require.Contains(t, r.errors, "--server")
	})
	t.Run("no answer in time", func(t *testing.T) {
		w.set(func() { w.hang = make(chan struct{}) })
		r := w.run("status", "--timeout", "3s")
		w.set(func() { w.hang = nil })
		require.Equal(t, 5, r.code)
		require.Contains(t, r.progress, "waiting for "+w.operator+" ...", "after a second")
		require.Contains(t, r.errors, "did not answer within 3s")
	})
	t.Run("interrupted", func(t *testing.T) {
		w.set(func() { w.hang, w.asks["GetShardStatus"] = make(chan struct{}), 0 })
		defer w.set(func() { w.hang = nil })
		r := w.start(t, "status", "--timeout", "10m")
		require.Eventually(t, func() (asked bool) {
			w.set(func() { asked = w.asks["GetShardStatus"] > 0 })
			return asked
		}, time.Minute, time.Millisecond)
		r.stop()
		require.Equal(t, 5, r.ended())
		require.Contains(t, r.errs.String(), "error: interrupted\n")
	})
	t.Run("a standby alone", func(t *testing.T) {
		r := w.run("status", "--server", other.operator)
		require.Equal(t, 5, r.code)
		require.Contains(t, r.errors, "does not lead")
	})
	t.Run("a standby that knows the leader", func(t *testing.T) {
		defer other.set(func() { other.leader = "" })
		other.set(func() { other.leader = w.operator })
		r := w.run("status", "--server", other.operator)
		require.Zero(t, r.code, r.errors)
		require.Contains(t, r.out, w.operator)
		require.Zero(t, w.run("group", "list", "--server", other.operator+","+closedAddr).code)

		third := newWorldWith(t, w.keys)
		third.set(func() { third.standby, third.leader = true, w.operator })
		other.set(func() { other.leader = third.operator })
		r = w.run("status", "--server", other.operator)
		require.Equal(t, 5, r.code, "followed once only")
		require.Contains(t, r.errors, third.operator+", which leads according to "+other.operator)

		stranger := newWorld(t) // of another cluster
		other.set(func() { other.leader = stranger.operator })
		r = w.run("group", "list", "--server", other.operator)
		require.Equal(t, 4, r.code, "it has to prove itself like any other")
		require.Empty(t, r.out)
	})
	t.Run("the leader is found among others", func(t *testing.T) {
		r := w.run("status", "--server", closedAddr, "--server", other.operator+","+w.operator)
		require.Zero(t, r.code, r.errors)
		require.Contains(t, r.out, w.operator)
	})
	t.Run("none of them leads", func(t *testing.T) {
		r := w.run("status", "--server", closedAddr+","+other.operator)
		require.Equal(t, 5, r.code)
		require.Contains(t, r.errors, "none of 2 addresses")
	})
	t.Run("a refusal says more than silence", func(t *testing.T) {
		w.set(func() { w.fail["GetShardStatus"] = nstance.Errorf(nstance.Denied, "revoked") })
		r := w.run("status", "--server", closedAddr+","+w.operator)
		w.set(func() { delete(w.fail, "GetShardStatus") })
		require.Equal(t, 4, r.code)
		require.Contains(t, r.errors, "revoked")
	})
	t.Run("a name may stand for several", func(t *testing.T) {
		_, port, err := net.SplitHostPort(w.operator)
		require.NoError(t, err)
		require.Zero(t, w.run("status", "--server", "localhost:"+port).code)
	})
}
