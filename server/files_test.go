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
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/machinefiles"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/vault"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// configWithFiles returns the default configuration with files in its template.
func configWithFiles(size int, shard, vars, certificates, files, more string) string {
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

// An agentMachine is a machine of the simulated cloud with a real agent.
type agentMachine struct {
	w       *world
	id      nstance.InstanceID
	dir     string
	options agent.Options
	stop    func()
}

// noNotices is a detector without notices.
type noNotices struct{}

func (noNotices) Interruptible(context.Context) (bool, error) { return false, nil }
func (noNotices) Watch(ctx context.Context) iter.Seq2[nstance.Notice, error] {
	return func(func(nstance.Notice, error) bool) { <-ctx.Done() }
}

// startAgent starts the agent on a machine.
func (w *world) startAgent(id nstance.InstanceID) *agentMachine {
	w.Helper()
	m := w.applyUserData(id)
	m.setOptions()
	m.start()
	return m
}

// setOptions sets the options of an agent of the world's server.
func (m *agentMachine) setOptions() {
	addrs := m.w.server.Addresses()
	m.options = agent.Options{
		InstanceID: m.id, RegistrationAddrs: []string{addrs.Registration}, AgentAddrs: []string{addrs.Agent},
		IdentityDir: filepath.Join(m.dir, "identity"), KeysDir: filepath.Join(m.dir, "keys"), RecvDir: filepath.Join(m.dir, "recv"), Detector: noNotices{},
	}
}

// applyUserData writes the identity files as the machine's user data would. The
// provider's Get fails for the machine, so that it is not replaced as silent when
// the test host is slow.
func (w *world) applyUserData(id nstance.InstanceID) *agentMachine {
	w.Helper()
	w.cloud.Inject(simcloud.Fault{Op: simcloud.OpGet, ID: id, Times: -1})
	m := &agentMachine{w: w, id: id, dir: w.TempDir()}
	identity := filepath.Join(m.dir, "identity")
	require.NoError(w, os.Mkdir(identity, 0o700))
	require.NoError(w, os.WriteFile(filepath.Join(identity, "nonce.jwt"), []byte(w.userDataNonce(id)), 0o600))
	require.NoError(w, os.WriteFile(filepath.Join(identity, "ca.crt"), w.keys.Identity.CertPEM(), 0o600))
	return m
}

func (m *agentMachine) start() {
	a, err := agent.New(&m.options)
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

// readFile returns a file of the machine, or "" if it does not exist.
func (m *agentMachine) readFile(elem ...string) string {
	data, err := os.ReadFile(filepath.Join(append([]string{m.dir}, elem...)...))
	if err != nil {
		return ""
	}
	return string(data)
}

// awaitFile waits until a file has the content; "" means that it does not exist.
func (m *agentMachine) awaitFile(path, content string) {
	m.w.Helper()
	require.Eventually(m.w, func() bool { return m.readFile("recv", path) == content }, eventually, 2*time.Millisecond, path)
}

// awaitFilesCurrent waits until the machine has its group's current files.
func (m *agentMachine) awaitFilesCurrent(api apiv1.OperatorServiceClient) *apiv1.Instance {
	m.w.Helper()
	var i *apiv1.Instance
	require.Eventually(m.w, func() bool {
		i = m.w.instance(api, m.id)
		return i.GetRuntimeHash() != "" && i.GetRuntimeHash() == strings.TrimSpace(m.readFile("identity", "config.hash")) &&
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

// TestFiles writes files of every kind to a machine and removes them again.
func TestFiles(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1, shard: often})
	require.NoError(t, vault.New(w.store, nil).PutIfAbsent(t.Context(), "db", []byte(`{"password":"s3cret","user":"x"}`)))
	_, err := w.store.PutIfAbsent(t.Context(), "files/nginx.conf", []byte("server {}\n"))
	require.NoError(t, err)
	m := w.startAgent(w.awaitMachine(nstance.DefaultTenant))
	w.awaitEvent(nstance.EventReady, m.id)
	api := w.admin()
	m.awaitFilesCurrent(api)

	w.applyConfig(configWithFiles(1, often, red, `"web": {"dns_names": ["web.example"], "usages": ["server"]}`, sixKinds,
		`, "post_apply": ["/bin/sh", "-c", "cat app/app.env >> ../applied"]`))
	m.awaitFile("motd", "shard s1 of c1\n")
	m.awaitFile("app/app.env", "COLOUR=red\nQUOTED=\"it's \\$5\"\n")
	m.awaitFile("app/app.json", fmt.Sprintf("{\n  \"id\": %q,\n  \"port\": 80\n}\n", m.id))
	m.awaitFile("password", "s3cret")
	m.awaitFile("nginx.conf", "server {}\n")
	m.awaitFile("tls/ca.crt", string(w.keys.Workload.CertPEM()))
	i := m.awaitFilesCurrent(api)
	require.Len(t, i.GetLastReport().GetFiles(), 7)
	info, err := os.Stat(filepath.Join(m.dir, "recv", "app", "app.env"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	t.Run("the certificate has the key that the machine created", func(t *testing.T) {
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
		log := w.objectKeys("certlog/s1/")
		require.Len(t, log, 1)
		require.Contains(t, log[0], pki.SerialOf(leaf), "what was issued is logged")
		for _, key := range []string{m.readFile("keys", "web.pem"), string(pair.PrivateKey.(ed25519.PrivateKey).Seed())} {
			require.NotContains(t, strings.Join(w.objectKeys(""), ""), strings.TrimSpace(key))
		}
	})
	t.Run("the command ran once, after all files were written", func(t *testing.T) {
		require.Eventually(t, func() bool { return m.readFile("applied") != "" }, eventually, time.Millisecond)
		require.Equal(t, m.readFile("recv", "app/app.env"), m.readFile("applied"))
	})
	t.Run("a restart of the agent sends and issues nothing", func(t *testing.T) {
		w.awaitEvent(eventtype.FilesApplied, m.id)
		cert, applied := m.readFile("recv", "tls/web.crt"), w.countEvents(eventtype.FilesApplied)
		m.stop()
		m.start()
		require.Eventually(t, func() bool { return w.instance(api, m.id).GetConnected() }, eventually, 5*time.Millisecond)
		w.applyConfig(configWithFiles(1, often, red+`, "other": "1"`, `"web": {"dns_names": ["web.example"], "usages": ["server"]}`, sixKinds,
			`, "post_apply": ["/bin/sh", "-c", "cat app/app.env >> ../applied"]`))
		m.awaitFilesCurrent(api)
		require.Equal(t, cert, m.readFile("recv", "tls/web.crt"))
		require.Len(t, w.objectKeys("certlog/s1/"), 1)
		require.LessOrEqual(t, w.countEvents(eventtype.FilesApplied), applied+1)
		require.Equal(t, m.readFile("recv", "app/app.env"), m.readFile("applied"), "no file has changed, so nothing runs")
	})
	t.Run("a local change is reverted", func(t *testing.T) {
		require.NoError(t, os.WriteFile(filepath.Join(m.dir, "recv", "motd"), []byte("changed"), 0o640))
		m.awaitFile("motd", "shard s1 of c1\n")
	})
	t.Run("files removed from the configuration are deleted", func(t *testing.T) {
		w.applyConfig(configWithFiles(1, often, red, "", `"motd": {"kind": "string", "content": "last"}`, ""))
		m.awaitFile("motd", "last")
		require.Empty(t, m.readFile("recv", "password"), "at once")
		require.Eventually(t, func() bool {
			left, err := filepath.Glob(filepath.Join(m.dir, "recv", "*"))
			return err == nil && len(left) == 2 // motd and the agent's own file
		}, eventually, time.Millisecond, "and so are the links")
		w.applyConfig(configWithFiles(1, often, red, "", "", ""))
		m.awaitFile("motd", "")
		m.awaitFilesCurrent(api)
	})
}

// objectKeys lists storage below a prefix.
func (w *world) objectKeys(prefix string) (out []string) {
	for e, err := range w.store.List(w.Context(), prefix, "") {
		require.NoError(w, err)
		obj, err := w.store.Get(w.Context(), e.Key)
		require.NoError(w, err)
		out = append(out, string(obj.Data))
	}
	return out
}

func TestMachineStartsWithItsFiles(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 0, shard: often})
	w.applyConfig(configWithFiles(1, often, red, "", `"motd": {"kind": "string", "content": "{{.Vars.colour}}"}`, ""))
	id := w.awaitMachine(nstance.DefaultTenant)
	claims, err := w.keys.Nonces.Verify(w.userDataNonce(id), time.Now(), keyring.Expect{Cluster: cluster, Shard: zone})
	require.NoError(t, err)
	require.Empty(t, claims.ConfigHash, "its agent must not say that it has the files already")
	m := w.startAgent(id)
	m.awaitFile("motd", "red")
	m.awaitFilesCurrent(w.admin())
}

// TestFileWithMissingSecret renders a file with a secret that does not exist yet.
func TestFileWithMissingSecret(t *testing.T) {
	t.Parallel() // it waits for intervals of seconds
	shard := often + `"file_refresh": "1s",`
	w := newWorld(t, setup{webSize: 1, shard: shard})
	m := w.startAgent(w.awaitMachine(nstance.DefaultTenant))
	api := w.admin()
	before := m.awaitFilesCurrent(api).GetRuntimeHash()
	w.applyConfig(configWithFiles(1, shard, red, "", `"motd": {"kind": "string", "content": "x"}, "password": {"kind": "secret", "secret": "db"},
		"own": {"kind": "string", "content": "{{slice .Vars.colour 10}}"}`, ""))
	m.awaitFile("motd", "x")
	require.Eventually(t, func() bool {
		i := w.instance(api, m.id)
		return slices.Contains(i.GetConditions(), "runtime_drifted") && slices.Contains(i.GetConditions(), "file_error") &&
			strings.Contains(fmt.Sprint(i.GetLastReport().GetFiles()), "there is no secret db")
	}, eventually, 5*time.Millisecond, "it is seen, with its remedy")
	require.Equal(t, before, strings.TrimSpace(m.readFile("identity", "config.hash")), "and the hash stays")
	status, err := api.GetShardStatus(t.Context(), &apiv1.GetShardStatusRequest{})
	require.NoError(t, err)
	require.Contains(t, strings.Join(status.GetProblems(), "\n"), "password: there is no secret db")

	require.NoError(t, vault.New(w.store, nil).PutIfAbsent(t.Context(), "db", []byte("s3cret")))
	w.applyConfig(configWithFiles(1, shard, red, "", `"motd": {"kind": "string", "content": "x"}, "password": {"kind": "secret", "secret": "db"}`, ""))
	m.awaitFile("password", "s3cret")
	m.awaitFilesCurrent(api)

	t.Run("a changed secret is sent after a while", func(t *testing.T) {
		obj, err := w.store.Get(t.Context(), layout.SecretKey("db"))
		require.NoError(t, err)
		_, err = w.store.PutIfMatch(t.Context(), layout.SecretKey("db"), []byte("newer"), obj.Version)
		require.NoError(t, err)
		m.awaitFile("password", "newer")
	})
}

// TestFilesDuringStorageOutage: a storage error removes no file.
func TestFilesDuringStorageOutage(t *testing.T) {
	t.Parallel() // it waits for intervals of seconds
	shard := often + `"file_refresh": "1s",`
	store := storagetest.NewFaulty(storage.NewMemory())
	w := newWorld(t, setup{webSize: 1, shard: shard, store: store})
	_, err := store.PutIfAbsent(t.Context(), "files/a", []byte("1"))
	require.NoError(t, err)
	m := w.startAgent(w.awaitMachine(nstance.DefaultTenant))
	w.applyConfig(configWithFiles(1, shard, red, "", `"a": {"kind": "storage", "object": "files/a"}`, ""))
	m.awaitFile("a", "1")
	api := w.admin()
	m.awaitFilesCurrent(api)
	store.Inject(storagetest.Fault{Op: storagetest.Get, Prefix: "files/", Times: -1, Err: nstance.Unavailable})
	require.Eventually(t, func() bool {
		status, err := api.GetShardStatus(t.Context(), &apiv1.GetShardStatusRequest{})
		require.NoError(t, err)
		return strings.Contains(strings.Join(status.GetProblems(), "\n"), "object files/a")
	}, eventually, 10*time.Millisecond)
	m.awaitFile("a", "1")
	require.NotContains(t, w.instance(api, m.id).GetConditions(), "file_error")
}

func TestFileTransfer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	big := strings.Repeat("x", 300<<10)
	text := func(colour string) string {
		return configWithFiles(1, "", `"colour": "`+colour+`"`, "", `"big": {"kind": "string", "content": "`+big+`"}, "a": {"kind": "string", "content": "{{.Vars.colour}}"},
			"b": {"kind": "string", "content": "{{.Vars.colour}}"}`, `, "post_apply": ["x", "a b"]`)
	}
	id := w.awaitMachine(nstance.DefaultTenant)
	k := w.connectReady(id).newFileAgent()
	k.requireNoFileMessages()
	w.applyConfig(text("red"))
	begin, lacked := k.receiveSet()
	require.Len(t, begin.GetFiles(), 3)
	require.Equal(t, `["x","a b"]`, begin.GetPostApply())
	require.Len(t, k.receivedData, 2, "equal contents come once")
	require.Len(t, lacked, 3)
	w.awaitEvent(eventtype.FilesApplied, id)
	k.requireNoFileMessages()

	t.Run("only changed files are sent", func(t *testing.T) {
		k.receivedData = map[string][]byte{}
		w.applyConfig(text("green"))
		_, lacked := k.receiveSet()
		require.Equal(t, []string{machinefiles.Digest([]byte("green")), machinefiles.Digest([]byte("green"))}, lacked)
		require.Len(t, k.receivedData, 1)
		k.requireNoFileMessages()
	})
	t.Run("a newer set replaces an uncommitted one", func(t *testing.T) {
		w.applyConfig(text("blue"))
		old := k.nextFileMessage(isBegin).GetFilesBegin()
		w.applyConfig(text("white"))
		begin := k.nextFileMessage(isBegin).GetFilesBegin()
		require.NotEqual(t, old.GetHash(), begin.GetHash())
		k.sendFilesWanted(old.GetHash(), old.GetFiles()[0].GetDigest())
		k.finishSet(begin)
		require.Contains(t, k.receivedData, machinefiles.Digest([]byte("white")))
		require.NotContains(t, k.receivedData, machinefiles.Digest([]byte("blue")), "its wanted files are not sent any more")
		k.requireNoFileMessages()
	})
	t.Run("an interrupted transfer starts again", func(t *testing.T) {
		w.applyConfig(text("black"))
		k.nextFileMessage(isBegin)
		next := k.client.connect().newFileAgent()
		next.hash, next.have = k.hash, k.have
		next.reportFiles()
		_, lacked := next.receiveSet()
		require.Len(t, lacked, 2)
		k = next
		k.requireNoFileMessages()
	})
	t.Run("digests outside the set are not sent", func(t *testing.T) {
		w.applyConfig(text("grey"))
		begin = k.nextFileMessage(isBegin).GetFilesBegin()
		k.receivedData = map[string][]byte{}
		k.sendFilesWanted(begin.GetHash(), machinefiles.Digest([]byte("secret")), "", "x", machinefiles.Digest([]byte("grey")))
		k.nextFileMessage(isCommit)
		require.Len(t, k.receivedData, 1)
	})
	t.Run("the machine's error is journalled, and the next attempt is delayed", func(t *testing.T) {
		k.send(&apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_FilesApplied{FilesApplied: &apiv1.FilesApplied{Hash: begin.GetHash(), Error: "the disk is full"}}})
		e := w.awaitEvent(eventtype.FilesFailed, id)
		require.Equal(t, "the disk is full", e.Error)
		k.have = nil
		k.requireNoFileMessages()
	})
}

func TestFilesOfOneMachine(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 2})
	ids := w.awaitMachines(2)
	a, b := w.connectReady(ids[0]).newFileAgent(), w.connectReady(ids[1]).newFileAgent()
	w.applyConfig(configWithFiles(2, "", red, "", `"id": {"kind": "string", "content": "{{.Instance.ID}} {{.Instance.Type}} {{.Instance.Hostname}} {{.Instance.IP4}}"},
		"all": {"kind": "json", "json": {"x": "{{json .}}"}}`, ""))
	for i, k := range []*fileAgent{a, b} {
		k.receiveSet()
		mach, err := w.cloud.Get(t.Context(), ids[i])
		require.NoError(t, err)
		ip := "10.1.2.3" // the address it registered with
		if len(mach.Addresses) > 0 {
			ip = mach.Addresses[0].String()
		}
		require.Contains(t, k.receivedData, machinefiles.Digest(fmt.Appendf(nil, "%s small web-1 %s", ids[i], ip)))
		for _, data := range k.receivedData {
			require.NotContains(t, string(data), string(ids[1-i]))
		}
	}
}

func TestFilesOfAnotherGroupAreNotPushed(t *testing.T) {
	t.Parallel()
	text := func(colour string) string {
		group := `"web": {"template": "vm", "size": 1}`
		other := `"db": {"template": "vm", "size": 1, "vars": {"colour": "brown"}}`
		return replaceOnce(t, configWithFiles(1, "", `"colour": "`+colour+`"`, "", `"motd": {"kind": "string", "content": "{{.Vars.colour}}"}`, ""), group, group+", "+other)
	}
	w := newWorld(t, setup{config: text("red")})
	takers := map[nstance.GroupID]*fileAgent{}
	require.Eventually(t, func() bool { return w.countEvents(nstance.EventCreated) == 2 }, eventually, time.Millisecond)
	for _, m := range w.cloud.Machines() {
		k := w.connectReady(m.ID).newFileAgent()
		k.receiveSet()
		takers[m.Group] = k
	}
	web, db := takers["web"], takers["db"]
	web.requireContent("red")
	db.requireContent("brown")
	web.requireNoFileMessages()
	db.requireNoFileMessages()

	w.applyConfig(text("blue"))
	web.receiveSet()
	web.requireContent("blue")
	web.requireNoFileMessages()
	db.requireNoFileMessages()
}

func TestCertificatesOfMachines(t *testing.T) {
	t.Parallel()
	var ahead atomic.Int64
	shard := `"health_interval": "24h",`
	w := newWorld(t, setup{webSize: 1, shard: shard, opts: server.Options{Now: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }}})
	id := w.awaitMachine(nstance.DefaultTenant)
	k := w.connectReady(id).newFileAgent()
	text := configWithFiles(1, shard, red, `"web": {"validity": "3h", "key": "tls"}`,
		`"c": {"kind": "certificate", "certificate": "web", "part": "cert"}, "chain": {"kind": "certificate", "certificate": "web"}`, "")
	w.applyConfig(text)
	begin, _ := k.receiveSet()
	first := k.leafCertificate(begin)
	require.True(t, k.key.Public().(ed25519.PublicKey).Equal(first.PublicKey))
	require.Equal(t, "tls", begin.GetFiles()[0].GetKey(), "a file says which key it is for")
	chain, err := pki.ParseCertificates(k.receivedData[begin.GetFiles()[1].GetDigest()])
	require.NoError(t, err)
	require.Equal(t, first.Raw, chain[0].Raw, "both files hold parts of one certificate")
	require.Equal(t, w.keys.Workload.Certificate(), chain[1].Raw)
	k.keyCertificate = first.Raw
	k.requireNoFileMessages()

	t.Run("not renewed before two thirds of its lifetime", func(t *testing.T) {
		ahead.Store(int64(119 * time.Minute))
		k.requireNoFileMessages()
	})
	t.Run("renewed at two thirds", func(t *testing.T) {
		ahead.Store(int64(121 * time.Minute))
		k.reportFiles()
		begin, _ := k.receiveSet()
		second := k.leafCertificate(begin)
		require.NotEqual(t, first.SerialNumber, second.SerialNumber)
		require.Equal(t, first.PublicKey, second.PublicKey)
		require.WithinDuration(t, time.Now().Add(121*time.Minute+3*time.Hour), second.NotAfter, time.Minute)
		k.keyCertificate = second.Raw
		k.requireNoFileMessages()
	})
	t.Run("a valid certificate stays, under a new leader too", func(t *testing.T) {
		asked := k.keyRequests
		next := k.client.connect().newFileAgent()
		next.key, next.keyCertificate, next.hash, next.have = k.key, k.keyCertificate, k.hash, k.have
		next.reportFiles()
		next.nextFileMessage(func(m *apiv1.ConnectResponse) bool { return m.GetFileKeysRequest() != nil })
		next.requireNoFileMessages()
		require.Equal(t, 1, next.keyRequests)
		_ = asked
		k = next
	})
	t.Run("a certificate of another authority is replaced", func(t *testing.T) {
		next := k.client.connect().newFileAgent()
		next.hash, next.have, next.key = k.hash, k.have, k.key
		next.keyCertificate = k.client.cert.Certificate[0]
		next.reportFiles()
		begin, _ := next.receiveSet()
		require.True(t, next.key.Public().(ed25519.PublicKey).Equal(next.leafCertificate(begin).PublicKey))
		k, k.keyCertificate = next, next.leafCertificate(begin).Raw
		k.requireNoFileMessages()
	})
	t.Run("a new key gets a new certificate", func(t *testing.T) {
		next := k.client.connect().newFileAgent()
		next.hash, next.have, next.keyCertificate = k.hash, k.have, k.keyCertificate
		next.reportFiles()
		begin, _ := next.receiveSet()
		require.True(t, next.key.Public().(ed25519.PublicKey).Equal(next.leafCertificate(begin).PublicKey))
	})
	t.Run("every certificate is in the log", func(t *testing.T) {
		serials := map[string]bool{}
		for _, object := range w.objectKeys("certlog/s1/") {
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
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	k := w.connectReady(w.awaitMachine(nstance.DefaultTenant)).newFileAgent()
	w.applyConfig(configWithFiles(1, "", red, `"web": {}`, `"c": {"kind": "certificate", "certificate": "web"}`, ""))
	for !isKeys(k.nextMessage()) {
		continue
	}
	csr, err := pki.NewCSR(k.key, "x")
	require.NoError(t, err)
	csr[len(csr)-1] ^= 1
	k.send(&apiv1.ConnectRequest{Message: &apiv1.ConnectRequest_FileKeys{FileKeys: &apiv1.FileKeys{Keys: []*apiv1.FileKey{{Name: "web", Csr: csr}}}}})
	begin := k.nextFileMessage(isBegin).GetFilesBegin()
	require.Contains(t, begin.GetFiles()[0].GetError(), "csr")
	require.Empty(t, w.objectKeys("certlog/s1/"))
}

// TestCertificateIsLoggedBeforeIssue: no certificate is issued while the log cannot
// be written.
func TestCertificateIsLoggedBeforeIssue(t *testing.T) {
	t.Parallel()
	store := storagetest.NewFaulty(storage.NewMemory())
	w := newWorld(t, setup{webSize: 1, store: store})
	k := w.connectReady(w.awaitMachine(nstance.DefaultTenant)).newFileAgent()
	store.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Prefix: "certlog/", Times: -1, Err: nstance.Unavailable})
	w.applyConfig(configWithFiles(1, "", red, `"web": {}`, `"c": {"kind": "certificate", "certificate": "web"}`, ""))
	begin := k.nextFileMessage(isBegin).GetFilesBegin()
	require.NotEmpty(t, begin.GetFiles()[0].GetError())
	require.Empty(t, begin.GetFiles()[0].GetDigest())
}

func TestOversizedFiles(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
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
	k := w.connectReady(w.awaitMachine(nstance.DefaultTenant)).newFileAgent()
	w.applyConfig(configWithFiles(1, "", red, "", strings.Join(list, ","), ""))
	begin, lacked := k.receiveSet()
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
