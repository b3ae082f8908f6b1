//go:build systemd

package server_test

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/test/freeport"
)

// programsDir has nstance-agent and nstance-server, as they are released.
const programsDir = "NSTANCE_UNIT_PROGRAMS"

// boot has systemd, in namespaces of its own, run one unit as a machine does that has
// booted: with folders from tmpfiles.d, users, and copies of /etc, /opt and /usr/local/bin.
const boot = `
set -eu
mount --make-rprivate /
mount -t proc proc /proc
mkdir "$T/etc.copy" "$T/state"
cp -a /etc/. "$T/etc.copy"
mount --bind "$T/etc.copy" /etc
mount --bind "$T/opt" /opt
mount -t tmpfs -o mode=755 tmpfs /run
mount --bind "$T/state" /var/lib
mkdir /run/lock /var/lib/private
chmod 700 /var/lib/private
mount --bind "$T/bin" /usr/local/bin
useradd --system --no-create-home nstance-agent
systemd-tmpfiles --create "$T/units/nstance-agent.conf"
cp "$T"/nstance/* /etc/nstance/
export container=other SYSTEMD_UNIT_PATH="$T/units"
exec /lib/systemd/systemd --system --unit="$UNIT" --log-target=console --show-status=no
`

// stubs are units that others depend on, and which a machine without them would not have reached.
var stubs = []string{"sysinit.target", "basic.target", "shutdown.target", "network-online.target", "multi-user.target", "system.slice", "-.slice"}

// A machine runs a unit under systemd.
type bootedMachine struct {
	*testing.T
	dir string
	out strings.Builder
}

// newBootedMachine prepares a machine whose /etc/nstance has files.
func newBootedMachine(t *testing.T, files map[string]string) *bootedMachine {
	t.Helper()
	require.Zero(t, os.Getuid(), "systemd is started by root")
	m := &bootedMachine{T: t, dir: t.TempDir()}
	for path := filepath.Dir(m.dir); path != "/"; path = filepath.Dir(path) {
		info, err := os.Stat(path)
		require.NoError(t, err)
		if strings.HasPrefix(path, os.TempDir()+"/") {
			require.NoError(t, os.Chmod(path, info.Mode()|0o055)) // programs of other users are below
		}
	}
	require.NoError(t, os.Chmod(m.dir, 0o755)) //nolint:gosec // likewise
	for _, name := range []string{"bin", "units", "nstance", "opt"} {
		require.NoError(t, os.Mkdir(filepath.Join(m.dir, name), 0o755)) //nolint:gosec // likewise
	}
	require.NoError(t, os.CopyFS(filepath.Join(m.dir, "bin"), os.DirFS(os.Getenv(programsDir))))
	require.NoError(t, filepath.WalkDir(filepath.Join(m.dir, "bin"), func(path string, _ fs.DirEntry, _ error) error { return os.Chmod(path, 0o755) })) //nolint:gosec // likewise
	units := os.DirFS("../../deploy/systemd")
	require.NoError(t, os.CopyFS(filepath.Join(m.dir, "units"), units))
	for _, name := range stubs {
		m.write("units/"+name, "[Unit]\nDescription=Stub\nDefaultDependencies=no\n", 0o644)
	}
	for name, text := range files {
		m.write("nstance/"+name, text, 0o640)
	}
	return m
}

func (m *bootedMachine) write(name, text string, mode fs.FileMode) {
	m.Helper()
	path := filepath.Join(m.dir, name)
	require.NoError(m, os.WriteFile(path, []byte(text), mode))
	require.NoError(m, os.Chmod(path, mode))
}

// start runs a unit until the test ends. What it prints is shown if the test fails.
func (m *bootedMachine) start(unit string) {
	m.Helper()
	log := filepath.Join(m.dir, "log")
	require.NoError(m, os.Mkdir(filepath.Join(m.dir, "units", unit+".d"), 0o755)) //nolint:gosec // read by systemd
	m.write("units/"+unit+".d/log.conf", "[Service]\nStandardOutput=append:"+log+"\nStandardError=append:"+log+"\n", 0o644)
	ctx, stop := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, "unshare", "--mount", "--pid", "--fork", "--kill-child", "--cgroup", "--uts", "--ipc", "bash", "-c", boot)
	cmd.Env = append(os.Environ(), "T="+m.dir, "UNIT="+unit)
	cmd.Stdout, cmd.Stderr = &m.out, &m.out
	cmd.WaitDelay = 10 * time.Second
	require.NoError(m, cmd.Start())
	m.Cleanup(func() {
		stop()
		_ = cmd.Wait() // killed
		if m.Failed() {
			m.Log(m.out.String())
			text, _ := os.ReadFile(log)
			m.Log(string(text))
		}
	})
}

// hook is a drain hook, and what the agent's user might try in its place.
const hook = `#!/bin/sh
cd /opt/nstance-agent
rmdir keys && ln -s /etc keys
mv recv elsewhere
ln -sf /etc/shadow /etc/nstance/nonce.jwt
echo 'NSTANCE_DRAIN_HOOK=/bin/false' > /etc/nstance/agent.env
touch /etc/written /usr/local/bin/written /opt/written
unshare --user true && touch recv/namespace
id --user --name > recv/user
umask > recv/umask
grep CapEff /proc/self/status > recv/capabilities
cat /etc/nstance/nonce.jwt > recv/read
tar -cf recv/archive.tar -C /etc/nstance agent.env && tar -xf recv/archive.tar -C recv && chmod 600 recv/agent.env
`

// TestUnitOfTheAgent: under systemd the shipped unit registers, drains with its hook and
// reports; and its user can replace nothing that root touches.
func TestUnitOfTheAgent(t *testing.T) {
	w := newWorld(t, setup{webSize: 1})
	id := w.awaitMachines(1)[0]
	at, nonce := w.server.Addresses(), w.userDataNonce(id)
	m := newBootedMachine(t, map[string]string{
		"nonce.jwt": nonce, "ca.crt": string(w.keys.Identity.CertPEM()),
		"agent.env": fmt.Sprintf("NSTANCE_INSTANCE_ID=%s\nNSTANCE_SERVER_REGISTRATION_ADDR=%s\nNSTANCE_SERVER_AGENT_ADDR=%s\nNSTANCE_PROVIDER=none\nNSTANCE_DRAIN_HOOK=/usr/local/bin/hook\n",
			id, at.Registration, at.Agent),
	})
	m.write("bin/hook", hook, 0o755)
	m.start("nstance-agent.service")
	w.awaitEvent(nstance.EventReady, id)
	_, err := w.admin().DrainInstance(t.Context(), &apiv1.DrainInstanceRequest{Id: string(id)})
	require.NoError(t, err)
	e := w.awaitEvent(nstance.EventDrainAcknowledged, id)
	require.Contains(t, e.Reason, "drained", "%+v", e)

	made := func(name string) string {
		text, err := os.ReadFile(filepath.Join(m.dir, "opt/nstance-agent", name))
		require.NoError(t, err)
		return strings.TrimSpace(string(text))
	}
	require.Equal(t, "nstance-agent", made("recv/user"))
	require.Equal(t, "0027", made("recv/umask"))
	require.Equal(t, "CapEff:\t0000000000000000", made("recv/capabilities"))
	require.Equal(t, nonce, made("recv/read"), "what root wrote is as it was")
	require.Contains(t, made("recv/agent.env"), string(id), "and the hook can use ordinary programs")
	require.NoFileExists(t, filepath.Join(m.dir, "opt/nstance-agent/recv/namespace"))
	for _, name := range []string{"keys", "recv", "identity"} {
		info, err := os.Lstat(filepath.Join(m.dir, "opt/nstance-agent", name))
		require.NoError(t, err)
		require.True(t, info.IsDir(), "%s is the folder that root made", name)
	}
	for _, name := range []string{"etc.copy/written", "bin/written", "opt/written", "opt/nstance-agent/elsewhere"} {
		require.NoFileExists(t, filepath.Join(m.dir, name))
	}
}

// TestUnitOfTheServer: under systemd the shipped unit waits for the lease of a new shard, with its
// state below /var/lib. It has the configuration of /etc/nstance, or the flags of server.env.
func TestUnitOfTheServer(t *testing.T) {
	for config, env := range map[string]string{
		"server.jsonc": "",
		"shard.jsonc":  "NSTANCE_SERVER_FLAGS=--config /etc/nstance/shard.jsonc --shard s1\n",
	} {
		t.Run(config, func(t *testing.T) {
			address, err := freeport.Address()
			require.NoError(t, err)
			key := "NSTANCE_SECRET_KEY=" + base64.StdEncoding.EncodeToString([]byte(rand.Text()[:16]+rand.Text()[:16])) + "\n"
			m := newBootedMachine(t, map[string]string{"server.env": key + env})
			m.write("nstance/"+config, fmt.Sprintf(`{
				"cluster": {"id": "c1"},
				"shard": {"id": "s1", "provider": {"kind": "local"}, "bind": {"http": %q, "registration": "127.0.0.1:0", "operator": "127.0.0.1:0", "agent": "127.0.0.1:0"}}
			}`, address), 0o644)
			m.start("nstance-server.service")
			require.Eventually(t, func() bool {
				resp, err := http.Get("http://" + address + "/status.json")
				if err != nil {
					return false
				}
				defer resp.Body.Close()
				return resp.StatusCode == http.StatusOK
			}, eventually, 50*time.Millisecond)
		})
	}
}

// TestUnitOfEachIsConfined: systemd's own measure of what a unit exposes, from 0 to 10, is at most 2.5.
func TestUnitOfEachIsConfined(t *testing.T) {
	units, err := filepath.Glob("../../deploy/systemd/*.service")
	require.NoError(t, err)
	require.NotEmpty(t, units)
	for _, unit := range units {
		path, err := filepath.Abs(unit)
		require.NoError(t, err)
		out, err := exec.CommandContext(t.Context(), "systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold=25", path).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
}
