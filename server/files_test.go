package server_test

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/agent"
	"github.com/nstance-go/nstance/agent/files"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/vault"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// served returns the configuration of newWorld with files in its template.
func served(size int, shard, vars, certificates, files, more string) string {
	return fmt.Sprintf(`{
	"cluster": {"id": "c1"},
	"shard": {
		"id": "s1", "provider": {"kind": "sim"}, "shutdown_timeout": "30s", "status_page": {"detail": "full"}, %s
		"bind": {"http": "127.0.0.1:0", "registration": "127.0.0.1:0", "operator": "127.0.0.1:0", "agent": "127.0.0.1:0"}
	},
	"certificates": {%s},
	"templates": {"vm": {
		"kind": "web", "arch": "amd64", "instance_type": "small", "market": {"type": "spot"},
		"userdata": {"content": "{{.Nonce}}"}, "vars": {%s}, "files": {%s} %s
	}},
	"groups": {"default": {"web": {"template": "vm", "size": %d}}}
}`, shard, certificates, vars, files, more, size)
}

const red = `"colour": "red"`

// reload puts a configuration in force.
func (w *world) reload(text string) {
	w.Helper()
	w.conf.set(text, nil)
	_, err := w.server.Refresh(w.Context())
	require.NoError(w, err)
}

// A machine is a real agent on a machine of the simulated cloud.
type machine struct {
	w    *world
	id   nstance.InstanceID
	dir  string
	o    agent.Options
	stop func()
}

// calm is a cloud that announces nothing.
type calm struct{}

func (calm) Interruptible(context.Context) (bool, error) { return false, nil }
func (calm) Watch(ctx context.Context) iter.Seq2[nstance.Notice, error] {
	return func(func(nstance.Notice, error) bool) { <-ctx.Done() }
}

// boot starts the agent of a machine.
func (w *world) boot(id nstance.InstanceID) *machine {
	w.Helper()
	m := w.unpack(id)
	addrs := w.server.Addresses()
	m.o = agent.Options{
		InstanceID: id, RegistrationAddrs: []string{addrs.Registration}, AgentAddrs: []string{addrs.Agent},
		IdentityDir: filepath.Join(m.dir, "identity"), KeysDir: filepath.Join(m.dir, "keys"), RecvDir: filepath.Join(m.dir, "recv"), Detector: calm{},
	}
	m.start()
	return m
}

// unpack does on a machine what its user data says. However long the test gets no
// processor, the machine is not replaced for its silence: the provider does not
// say that it runs.
func (w *world) unpack(id nstance.InstanceID) *machine {
	w.Helper()
	w.cloud.Inject(simcloud.Fault{Op: simcloud.OpGet, ID: id, Times: -1})
	m := &machine{w: w, id: id, dir: w.TempDir()}
	identity := filepath.Join(m.dir, "identity")
	require.NoError(w, os.Mkdir(identity, 0o700))
	require.NoError(w, os.WriteFile(filepath.Join(identity, "nonce.jwt"), []byte(w.nonce(id)), 0o600))
	require.NoError(w, os.WriteFile(filepath.Join(identity, "ca.crt"), w.keys.Identity.CertPEM(), 0o600))
	return m
}

func (m *machine) start() {
	a, err := agent.New(&m.o)
	require.NoError(m.w, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	m.stop = func() {
		cancel()
		require.NoError(m.w, receive(m.w.T, ended))
		m.stop = func() {}
	}
	m.w.Cleanup(func() { m.stop() })
}

// read returns a file of the machine, "" if there is none.
func (m *machine) read(elem ...string) string {
	data, err := os.ReadFile(filepath.Join(append([]string{m.dir}, elem...)...))
	if err != nil {
		return ""
	}
	return string(data)
}

// has waits until a file has that content; "" for none.
func (m *machine) has(path, content string) {
	m.w.Helper()
	require.Eventually(m.w, func() bool { return m.read("recv", path) == content }, eventually, 2*time.Millisecond, path)
}

// settled waits until the machine has recorded what its group wants.
func (m *machine) settled(api apiv1.OperatorServiceClient) *apiv1.Instance {
	m.w.Helper()
	var i *apiv1.Instance
	require.Eventually(m.w, func() bool {
		i = m.w.instance(api, m.id)
		return i.GetRuntimeHash() != "" && i.GetRuntimeHash() == strings.TrimSpace(m.read("identity", "config.hash")) &&
			!slices.Contains(i.GetConditions(), "runtime_drifted") && i.GetLastReport().GetConfigHash() == i.GetRuntimeHash()
	}, eventually, 5*time.Millisecond)
	return i
}

const often = `"health_interval": "100ms",`

const sixKinds = `
	"app/app.env": {"kind": "env", "env": {"COLOUR": "{{.Vars.colour}}", "QUOTED": "it's $5"}, "mode": "0600"},
	"app/app.json": {"kind": "json", "json": {"id": "{{.Instance.ID}}", "port": 80}},
	"motd": {"kind": "string", "content": "shard {{.Server.Shard}} of {{.Cluster.ID}}\n"},
	"password": {"kind": "secret", "secret": "db", "field": "password"},
	"nginx.conf": {"kind": "storage", "object": "files/nginx.conf"},
	"tls/web.crt": {"kind": "certificate", "certificate": "web"},
	"tls/ca.crt": {"kind": "certificate", "certificate": "web", "part": "ca"}`

// TestFiles follows files of every kind from the configuration to a machine and
// off it again.
func TestFiles(t *testing.T) {
	w := newWorld(t, setup{size: 1, shard: often})
	require.NoError(t, vault.New(w.store, nil).PutIfAbsent(t.Context(), "db", []byte(`{"password":"s3cret","user":"x"}`)))
	_, err := w.store.PutIfAbsent(t.Context(), "files/nginx.conf", []byte("server {}\n"))
	require.NoError(t, err)
	m := w.boot(w.machine(nstance.DefaultTenant))
	w.await(nstance.EventReady, m.id)
	api := w.admin()
	m.settled(api)

	w.reload(served(1, often, red, `"web": {"dns_names": ["web.example"], "usages": ["server"]}`, sixKinds,
		`, "post_apply": ["/bin/sh", "-c", "cat app/app.env >> ../applied"]`))
	m.has("motd", "shard s1 of c1\n")
	m.has("app/app.env", "COLOUR=red\nQUOTED=\"it's \\$5\"\n")
	m.has("app/app.json", fmt.Sprintf("{\n  \"id\": %q,\n  \"port\": 80\n}\n", m.id))
	m.has("password", "s3cret")
	m.has("nginx.conf", "server {}\n")
	m.has("tls/ca.crt", string(w.keys.Workload.CertPEM()))
	i := m.settled(api)
	require.Len(t, i.GetLastReport().GetFiles(), 7)
	info, err := os.Stat(filepath.Join(m.dir, "recv", "app", "app.env"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	t.Run("the certificate is for a key that the machine made", func(t *testing.T) {
		pair, err := pki.LoadPair(filepath.Join(m.dir, "recv", "tls", "web.crt"), filepath.Join(m.dir, "keys", "web.pem"))
		require.NoError(t, err)
		leaf := pair.Leaf
		_, err = leaf.Verify(x509.VerifyOptions{Roots: w.keys.Workload.Pool(), DNSName: "web.example", KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
		require.NoError(t, err)
		_, err = leaf.Verify(x509.VerifyOptions{Roots: w.keys.Workload.Pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		require.Error(t, err, "for clients it is not")
		_, err = leaf.Verify(x509.VerifyOptions{Roots: w.keys.Identity.Pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
		require.Error(t, err, "the authority that machines trust for their server signs nothing of it")
		require.Equal(t, string(m.id), leaf.Subject.CommonName)
		require.Equal(t, []string{"default"}, leaf.Subject.Organization)
		machines := w.cloud.Machines()
		mach := machines[slices.IndexFunc(machines, func(n nstance.Machine) bool { return n.ID == m.id })]
		for _, a := range mach.Addresses {
			require.NoError(t, leaf.VerifyHostname(a.String()), "the provider's word on its addresses")
		}
		require.Len(t, leaf.IPAddresses, len(mach.Addresses))
		log := w.objects("certlog/s1/")
		require.Len(t, log, 1)
		require.Contains(t, log[0], pki.SerialOf(leaf), "what was issued is logged")
		for _, key := range []string{m.read("keys", "web.pem"), string(pair.PrivateKey.(ed25519.PrivateKey).Seed())} {
			require.NotContains(t, strings.Join(w.objects(""), ""), strings.TrimSpace(key))
		}
	})
	t.Run("the command ran once, after all was in place", func(t *testing.T) {
		require.Eventually(t, func() bool { return m.read("applied") != "" }, eventually, time.Millisecond)
		require.Equal(t, m.read("recv", "app/app.env"), m.read("applied"))
	})
	t.Run("a restart of the agent sends and issues nothing", func(t *testing.T) {
		w.await(nstance.EventFilesApplied, m.id)
		cert, applied := m.read("recv", "tls/web.crt"), w.count(nstance.EventFilesApplied)
		m.stop()
		m.start()
		require.Eventually(t, func() bool { return w.instance(api, m.id).GetConnected() }, eventually, 5*time.Millisecond)
		w.reload(served(1, often, red+`, "other": "1"`, `"web": {"dns_names": ["web.example"], "usages": ["server"]}`, sixKinds,
			`, "post_apply": ["/bin/sh", "-c", "cat app/app.env >> ../applied"]`))
		m.settled(api)
		require.Equal(t, cert, m.read("recv", "tls/web.crt"))
		require.Len(t, w.objects("certlog/s1/"), 1)
		require.LessOrEqual(t, w.count(nstance.EventFilesApplied), applied+1)
		require.Equal(t, m.read("recv", "app/app.env"), m.read("applied"), "no file has changed, so nothing runs")
	})
	t.Run("a local change is put right", func(t *testing.T) {
		require.NoError(t, os.WriteFile(filepath.Join(m.dir, "recv", "motd"), []byte("spoilt"), 0o640))
		m.has("motd", "shard s1 of c1\n")
	})
	t.Run("what the configuration drops is removed", func(t *testing.T) {
		w.reload(served(1, often, red, "", `"motd": {"kind": "string", "content": "last"}`, ""))
		m.has("motd", "last")
		require.Empty(t, m.read("recv", "password"), "at once")
		require.Eventually(t, func() bool {
			left, err := filepath.Glob(filepath.Join(m.dir, "recv", "*"))
			return err == nil && len(left) == 2 // motd and the agent's own
		}, eventually, time.Millisecond, "and so are the links")
		w.reload(served(1, often, red, "", "", ""))
		m.has("motd", "")
		m.settled(api)
	})
}

// objects returns what storage holds below a prefix.
func (w *world) objects(prefix string) (out []string) {
	for e, err := range w.store.List(w.Context(), prefix, "") {
		require.NoError(w, err)
		obj, err := w.store.Get(w.Context(), e.Key)
		require.NoError(w, err)
		out = append(out, string(obj.Data))
	}
	return out
}

func TestMachineIsBornWithItsFiles(t *testing.T) {
	w := newWorld(t, setup{size: 0, shard: often})
	w.reload(served(1, often, red, "", `"motd": {"kind": "string", "content": "{{.Vars.colour}}"}`, ""))
	m := w.boot(w.machine(nstance.DefaultTenant))
	m.has("motd", "red")
	m.settled(w.admin())
}

// TestFileThatCannotBeMade has a secret that does not exist yet.
func TestFileThatCannotBeMade(t *testing.T) {
	t.Parallel() // it waits for intervals of seconds
	shard := often + `"file_refresh": "1s",`
	w := newWorld(t, setup{size: 1, shard: shard})
	m := w.boot(w.machine(nstance.DefaultTenant))
	api := w.admin()
	before := m.settled(api).GetRuntimeHash()
	w.reload(served(1, shard, red, "", `"motd": {"kind": "string", "content": "x"}, "password": {"kind": "secret", "secret": "db"},
		"own": {"kind": "string", "content": "{{slice .Vars.colour 10}}"}`, ""))
	m.has("motd", "x")
	require.Eventually(t, func() bool {
		i := w.instance(api, m.id)
		return slices.Contains(i.GetConditions(), "runtime_drifted") && slices.Contains(i.GetConditions(), "file_error") &&
			strings.Contains(fmt.Sprint(i.GetLastReport().GetFiles()), "there is no secret db")
	}, eventually, 5*time.Millisecond, "it is seen, with its remedy")
	require.Equal(t, before, strings.TrimSpace(m.read("identity", "config.hash")), "and the hash stays")
	status, err := api.GetShardStatus(t.Context(), &apiv1.GetShardStatusRequest{})
	require.NoError(t, err)
	require.Contains(t, strings.Join(status.GetProblems(), "\n"), "password: there is no secret db")

	require.NoError(t, vault.New(w.store, nil).PutIfAbsent(t.Context(), "db", []byte("s3cret")))
	w.reload(served(1, shard, red, "", `"motd": {"kind": "string", "content": "x"}, "password": {"kind": "secret", "secret": "db"}`, ""))
	m.has("password", "s3cret")
	m.settled(api)

	t.Run("a secret that changes is sent by and by", func(t *testing.T) {
		obj, err := w.store.Get(t.Context(), storage.SecretKey("db"))
		require.NoError(t, err)
		_, err = w.store.PutIfMatch(t.Context(), storage.SecretKey("db"), []byte("newer"), obj.Version)
		require.NoError(t, err)
		m.has("password", "newer")
	})
}

// TestStorageThatDoesNotAnswer shows that an error takes no file away.
func TestStorageThatDoesNotAnswer(t *testing.T) {
	t.Parallel() // it waits for intervals of seconds
	shard := often + `"file_refresh": "1s",`
	store := storagetest.NewFaulty(storage.NewMemory())
	w := newWorld(t, setup{size: 1, shard: shard, store: store})
	_, err := store.PutIfAbsent(t.Context(), "files/a", []byte("1"))
	require.NoError(t, err)
	m := w.boot(w.machine(nstance.DefaultTenant))
	w.reload(served(1, shard, red, "", `"a": {"kind": "storage", "object": "files/a"}`, ""))
	m.has("a", "1")
	api := w.admin()
	m.settled(api)
	store.Inject(storagetest.Fault{Op: storagetest.Get, Prefix: "files/", Times: -1, Err: nstance.Unavailable})
	require.Eventually(t, func() bool {
		status, err := api.GetShardStatus(t.Context(), &apiv1.GetShardStatusRequest{})
		require.NoError(t, err)
		return strings.Contains(strings.Join(status.GetProblems(), "\n"), "object files/a")
	}, eventually, 10*time.Millisecond)
	m.has("a", "1")
	require.NotContains(t, w.instance(api, m.id).GetConditions(), "file_error")
}

func TestTransfer(t *testing.T) {
	w := newWorld(t, setup{size: 1})
	big := strings.Repeat("x", 300<<10)
	text := func(colour string) string {
		return served(1, "", `"colour": "`+colour+`"`, "", `"big": {"kind": "string", "content": "`+big+`"}, "a": {"kind": "string", "content": "{{.Vars.colour}}"},
			"b": {"kind": "string", "content": "{{.Vars.colour}}"}`, `, "post_apply": ["x", "a b"]`)
	}
	id := w.machine(nstance.DefaultTenant)
	k := w.ready(id).taker()
	k.quiet()
	w.reload(text("red"))
	begin, lacked := k.takes()
	require.Len(t, begin.GetFiles(), 3)
	require.Equal(t, `["x","a b"]`, begin.GetPostApply())
	require.Len(t, k.data, 2, "equal contents come once")
	require.Len(t, lacked, 3)
	w.await(nstance.EventFilesApplied, id)
	k.quiet()

	t.Run("only what changed comes", func(t *testing.T) {
		k.data = map[string][]byte{}
		w.reload(text("green"))
		_, lacked := k.takes()
		require.Equal(t, []string{files.Digest([]byte("green")), files.Digest([]byte("green"))}, lacked)
		require.Len(t, k.data, 1)
		k.quiet()
	})
	t.Run("a newer set takes the place of one that is not committed", func(t *testing.T) {
		w.reload(text("blue"))
		old := k.awaits(isBegin).GetFilesBegin()
		w.reload(text("white"))
		begin := k.awaits(isBegin).GetFilesBegin()
		require.NotEqual(t, old.GetHash(), begin.GetHash())
		k.wants(old.GetHash(), old.GetFiles()[0].GetDigest())
		k.finishes(begin)
		require.Contains(t, k.data, files.Digest([]byte("white")))
		require.NotContains(t, k.data, files.Digest([]byte("blue")), "and what is wanted of it is not sent any more")
		k.quiet()
	})
	t.Run("an interrupted one begins again", func(t *testing.T) {
		w.reload(text("black"))
		k.awaits(isBegin)
		next := k.holder.connect().taker()
		next.hash, next.have = k.hash, k.have
		next.tell()
		_, lacked := next.takes()
		require.Len(t, lacked, 2)
		k = next
		k.quiet()
	})
	t.Run("what is not part of the set is not sent", func(t *testing.T) {
		w.reload(text("grey"))
		begin = k.awaits(isBegin).GetFilesBegin()
		k.data = map[string][]byte{}
		k.wants(begin.GetHash(), files.Digest([]byte("secret")), "", "x", files.Digest([]byte("grey")))
		k.awaits(isCommit)
		require.Len(t, k.data, 1)
	})
	t.Run("the machine's refusal is journalled, and it is left alone for a while", func(t *testing.T) {
		k.say(&apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_FilesApplied{FilesApplied: &apiv1.FilesApplied{Hash: begin.GetHash(), Error: "the disk is full"}}})
		e := w.await(nstance.EventFilesFailed, id)
		require.Equal(t, "the disk is full", e.Error)
		k.have = nil
		k.quiet()
	})
}

func TestFilesOfOneMachine(t *testing.T) {
	w := newWorld(t, setup{size: 2})
	var ids []nstance.InstanceID
	require.Eventually(t, func() bool {
		ids = nil
		for _, m := range w.cloud.Machines() {
			if m.Owner.Tenant == nstance.DefaultTenant {
				ids = append(ids, m.ID)
			}
		}
		return len(ids) == 2
	}, eventually, time.Millisecond)
	a, b := w.ready(ids[0]).taker(), w.ready(ids[1]).taker()
	w.reload(served(2, "", red, "", `"id": {"kind": "string", "content": "{{.Instance.ID}} {{.Instance.Type}} {{.Instance.Hostname}} {{.Instance.IP4}}"},
		"all": {"kind": "json", "json": {"x": "{{json .}}"}}`, ""))
	for i, k := range []*taker{a, b} {
		k.takes()
		mach, err := w.cloud.Get(t.Context(), ids[i])
		require.NoError(t, err)
		ip := "10.1.2.3" // as it said at registration
		if len(mach.Addresses) > 0 {
			ip = mach.Addresses[0].String()
		}
		require.Contains(t, k.data, files.Digest(fmt.Appendf(nil, "%s small web-1 %s", ids[i], ip)))
		for _, data := range k.data {
			require.NotContains(t, string(data), string(ids[1-i]))
		}
	}
}

func TestFilesOfAnotherGroupAreNotPushed(t *testing.T) {
	text := func(colour string) string {
		group := `"web": {"template": "vm", "size": 1}`
		other := `"db": {"template": "vm", "size": 1, "vars": {"colour": "brown"}}`
		return replace(t, served(1, "", `"colour": "`+colour+`"`, "", `"motd": {"kind": "string", "content": "{{.Vars.colour}}"}`, ""), group, group+", "+other)
	}
	w := newWorld(t, setup{text: text("red")})
	takers := map[nstance.GroupID]*taker{}
	require.Eventually(t, func() bool { return w.count(nstance.EventCreated) == 2 }, eventually, time.Millisecond)
	for _, m := range w.cloud.Machines() {
		k := w.ready(m.ID).taker()
		k.takes()
		takers[m.Group] = k
	}
	web, db := takers["web"], takers["db"]
	web.has("red")
	db.has("brown")
	web.quiet()
	db.quiet()

	w.reload(text("blue"))
	web.takes()
	web.has("blue")
	web.quiet()
	db.quiet()
}

func TestCertificatesOfMachines(t *testing.T) {
	var ahead atomic.Int64
	shard := `"health_interval": "24h",`
	w := newWorld(t, setup{size: 1, shard: shard, opts: server.Options{Now: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }}})
	id := w.machine(nstance.DefaultTenant)
	k := w.ready(id).taker()
	text := served(1, shard, red, `"web": {"validity": "3h", "key": "tls"}`,
		`"c": {"kind": "certificate", "certificate": "web", "part": "cert"}, "chain": {"kind": "certificate", "certificate": "web"}`, "")
	w.reload(text)
	begin, _ := k.takes()
	first := k.leaf(begin)
	require.True(t, k.key.Public().(ed25519.PublicKey).Equal(first.PublicKey))
	require.Equal(t, "tls", begin.GetFiles()[0].GetKey(), "a file says which key it is for")
	chain, err := pki.ParseCertificates(k.data[begin.GetFiles()[1].GetDigest()])
	require.NoError(t, err)
	require.Equal(t, first.Raw, chain[0].Raw, "both files hold parts of one certificate")
	require.Equal(t, w.keys.Workload.Certificate(), chain[1].Raw)
	k.cert = first.Raw
	k.quiet()

	t.Run("not before two thirds of its life", func(t *testing.T) {
		ahead.Store(int64(119 * time.Minute))
		k.quiet()
	})
	t.Run("and at two thirds it is issued again", func(t *testing.T) {
		ahead.Store(int64(121 * time.Minute))
		k.tell()
		begin, _ := k.takes()
		second := k.leaf(begin)
		require.NotEqual(t, first.SerialNumber, second.SerialNumber)
		require.Equal(t, first.PublicKey, second.PublicKey)
		require.WithinDuration(t, time.Now().Add(121*time.Minute+3*time.Hour), second.NotAfter, time.Minute)
		k.cert = second.Raw
		k.quiet()
	})
	t.Run("what the machine holds is left while it is good, by a new leader too", func(t *testing.T) {
		asked := k.asked
		next := k.holder.connect().taker()
		next.key, next.cert, next.hash, next.have = k.key, k.cert, k.hash, k.have
		next.tell()
		next.awaits(func(m *apiv1.ConnectResponse) bool { return m.GetFileKeysRequest() != nil })
		next.quiet()
		require.Equal(t, 1, next.asked)
		_ = asked
		k = next
	})
	t.Run("a certificate of another authority is not", func(t *testing.T) {
		next := k.holder.connect().taker()
		next.hash, next.have, next.key = k.hash, k.have, k.key
		next.cert = k.holder.cert.Certificate[0]
		next.tell()
		begin, _ := next.takes()
		require.True(t, next.key.Public().(ed25519.PublicKey).Equal(next.leaf(begin).PublicKey))
		k, k.cert = next, next.leaf(begin).Raw
		k.quiet()
	})
	t.Run("a new key gets a new certificate", func(t *testing.T) {
		next := k.holder.connect().taker()
		next.hash, next.have, next.cert = k.hash, k.have, k.cert
		next.tell()
		begin, _ := next.takes()
		require.True(t, next.key.Public().(ed25519.PublicKey).Equal(next.leaf(begin).PublicKey))
	})
	t.Run("everything that was issued is in the log", func(t *testing.T) {
		serials := map[string]bool{}
		for _, object := range w.objects("certlog/s1/") {
			for line := range strings.Lines(object) {
				var e struct{ Serial, Instance string }
				require.NoError(t, json.Unmarshal([]byte(line), &e))
				require.Equal(t, string(id), e.Instance)
				serials[e.Serial] = true
			}
		}
		require.Len(t, serials, 4)
	})
}

func TestProofOfPossession(t *testing.T) {
	w := newWorld(t, setup{size: 1})
	k := w.ready(w.machine(nstance.DefaultTenant)).taker()
	w.reload(served(1, "", red, `"web": {}`, `"c": {"kind": "certificate", "certificate": "web"}`, ""))
	for !isKeys(k.hear()) {
		continue
	}
	csr, err := pki.NewCSR(k.key, "x")
	require.NoError(t, err)
	csr[len(csr)-1] ^= 1
	k.say(&apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_FileKeys{FileKeys: &apiv1.FileKeys{Keys: []*apiv1.FileKey{{Name: "web", Csr: csr}}}}})
	begin := k.awaits(isBegin).GetFilesBegin()
	require.Contains(t, begin.GetFiles()[0].GetError(), "csr")
	require.Empty(t, w.objects("certlog/s1/"))
}

// TestCertificateIsLoggedBeforeItIsGiven has a log that cannot be written.
func TestCertificateIsLoggedBeforeItIsGiven(t *testing.T) {
	store := storagetest.NewFaulty(storage.NewMemory())
	w := newWorld(t, setup{size: 1, store: store})
	k := w.ready(w.machine(nstance.DefaultTenant)).taker()
	store.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Prefix: "certlog/", Times: -1, Err: nstance.Unavailable})
	w.reload(served(1, "", red, `"web": {}`, `"c": {"kind": "certificate", "certificate": "web"}`, ""))
	begin := k.awaits(isBegin).GetFilesBegin()
	require.NotEmpty(t, begin.GetFiles()[0].GetError())
	require.Empty(t, begin.GetFiles()[0].GetDigest())
}

func TestTooLargeFiles(t *testing.T) {
	w := newWorld(t, setup{size: 1})
	var list []string
	for i := range 10 {
		key := fmt.Sprintf("files/f%d", i)
		_, err := w.store.PutIfAbsent(t.Context(), key, []byte(strings.Repeat(string(rune('a'+i)), 1<<20-1)))
		require.NoError(t, err)
		list = append(list, fmt.Sprintf(`"f%d": {"kind": "storage", "object": %q}`, i, key))
	}
	_, err := w.store.PutIfAbsent(t.Context(), "files/huge", make([]byte, 1<<20+1))
	require.NoError(t, err)
	list = append(list, `"huge": {"kind": "storage", "object": "files/huge"}`)
	k := w.ready(w.machine(nstance.DefaultTenant)).taker()
	w.reload(served(1, "", red, "", strings.Join(list, ","), ""))
	begin, lacked := k.takes()
	require.Len(t, lacked, 8)
	said := map[string]string{}
	for _, f := range begin.GetFiles() {
		said[f.GetPath()] = f.GetError()
	}
	require.Empty(t, said["f0"])
	require.Contains(t, said["f9"], "more than 8 MiB together")
	require.Contains(t, said["huge"], "more than 1 MiB")
	require.NotEqual(t, begin.GetHash(), k.hash)
}
