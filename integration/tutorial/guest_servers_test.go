//go:build servers && linux

package tutorial_test

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/nstance-go/nstance/internal/imds"
	"github.com/nstance-go/nstance/internal/test/program"
	"github.com/nstance-go/nstance/provider/testcloud"
)

// A hypervisor runs each machine of a test cloud in folders of its own, with a metadata service.
// What its image would have is the agent, its folders and its unit.
type hypervisor struct {
	world    *world
	protocol string // of the metadata services
}

// A guest is what runs in one machine.
type guest struct {
	*imds.Server
	cmd      *exec.Cmd
	listener net.Listener
	killed   chan struct{} // closed by Kill
	ended    chan struct{} // closed when its processes have ended
}

// Start implements testcloud.Hypervisor.
func (h *hypervisor) Start(b testcloud.Boot) (testcloud.Guest, error) {
	dir, err := os.MkdirTemp(h.world.dir, "guest-")
	if err != nil {
		return nil, err
	}
	if err := program.Write(filepath.Join(dir, "user-data"), b.UserData); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close() // the machine has its own
	g := &guest{
		Server: imds.New(&imds.Options{Protocol: h.protocol, RequireToken: true, Spot: b.Spot, UserData: b.UserData, InstanceID: path.Base(b.Handle), Zone: b.Zone}),
		killed: make(chan struct{}), ended: make(chan struct{}),
	}
	if g.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, err
	}
	go http.Serve(g.listener, g.Server)
	g.cmd = exec.Command("unshare", append(unshared("--mount", "--pid"), "guest", dir)...)
	g.cmd.Stdout, g.cmd.Stderr = log, log
	g.cmd.Env = environment("GUEST="+dir, "NSTANCE_METADATA_URL=http://"+g.listener.Addr().String())
	if err := g.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = g.cmd.Wait()
		close(g.ended)
		select {
		case <-g.killed:
		default:
			b.Exited()
		}
	}()
	return g, nil
}

// Announce implements testcloud.Guest.
func (g *guest) Announce(action string, at time.Time) { g.Reclaim(action, at) }

// Kill implements testcloud.Guest.
func (g *guest) Kill() {
	close(g.killed)
	_ = g.cmd.Process.Kill()
	<-g.ended
	_ = g.listener.Close()
}

// boot is the first program of a machine: it mounts the machine's folders and does what
// cloud-init does with user data, then what systemd does with the agent's unit if that was
// enabled.
func boot(dir string) error {
	if err := os.Mkdir(filepath.Join(dir, "nstance"), 0o750); err != nil {
		return err
	}
	for _, args := range [][]string{{"--bind", filepath.Join(dir, "nstance"), "/etc/nstance"}, {"-t", "tmpfs", "tmpfs", "/opt/nstance-agent"}} {
		if err := run(append([]string{"mount"}, args...)...); err != nil {
			return err
		}
	}
	if err := makeFolders(); err != nil {
		return err
	}
	data, err := os.ReadFile(filepath.Join(dir, "user-data"))
	if err != nil {
		return err
	}
	if bytes.HasPrefix(data, []byte("#!")) {
		err = run(filepath.Join(dir, "user-data"))
	} else {
		err = cloudConfig(data)
	}
	if err != nil {
		return err
	}
	return startUnit(filepath.Join(dir, "enabled"))
}

// deployed returns the lines of a file of deploy/systemd.
func deployed(name string) ([]string, error) {
	text, err := os.ReadFile(filepath.Join(os.Getenv(repository), "deploy/systemd", name))
	return strings.Split(string(text), "\n"), err
}

// makeFolders makes what systemd-tmpfiles makes of nstance-agent.conf.
func makeFolders() error {
	lines, err := deployed("nstance-agent.conf")
	if err != nil {
		return err
	}
	for _, line := range lines {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "d" {
			if err := os.MkdirAll(f[1], 0o755); err != nil {
				return err
			}
		}
	}
	return nil
}

// cloudConfig does what cloud-init does with #cloud-config, of the modules that the pages use.
func cloudConfig(data []byte) error {
	if !bytes.HasPrefix(data, []byte("#cloud-config\n")) {
		return fmt.Errorf("cloud-init does not know this user data: %.100q", data)
	}
	var c struct {
		Files []struct {
			Path, Content, Owner, Permissions string
		} `json:"write_files"`
		Commands [][]string `json:"runcmd"`
	}
	if err := yaml.UnmarshalStrict(data, &c); err != nil {
		return err
	}
	for _, f := range c.Files {
		mode := uint64(0o644)
		if f.Permissions != "" {
			var err error
			if mode, err = strconv.ParseUint(f.Permissions, 8, 32); err != nil {
				return err
			}
		}
		if err := os.WriteFile(f.Path, []byte(f.Content), os.FileMode(mode)); err != nil {
			return err
		}
	}
	for _, args := range c.Commands {
		if err := run(args...); err != nil {
			return err
		}
	}
	return nil
}

// enable is the systemctl of a machine.
func enable(args []string) error {
	if !slices.Equal(args, []string{"enable", "--now", "nstance-agent"}) {
		return fmt.Errorf("no such unit or verb: %q", args)
	}
	return os.WriteFile(filepath.Join(os.Getenv("GUEST"), "enabled"), nil, 0o600)
}

// startUnit runs the program of the agent's unit with the unit's environment, if the file enabled
// is there. This process stays: it is what ends with unshare.
func startUnit(enabled string) error {
	if _, err := os.Stat(enabled); err != nil {
		return fmt.Errorf("the user data has enabled no unit: %w", err)
	}
	unit, err := deployed("nstance-agent.service")
	if err != nil {
		return err
	}
	env, program := []string{"NSTANCE_METADATA_URL=" + os.Getenv("NSTANCE_METADATA_URL"), "PATH=" + os.Getenv("PATH")}, ""
	for _, line := range unit {
		switch key, value, _ := strings.Cut(line, "="); key {
		case "ExecStart":
			program, err = exec.LookPath(filepath.Base(value))
		case "Environment":
			env = append(env, value)
		case "EnvironmentFile":
			var file []byte
			file, err = os.ReadFile(value)
			env = append(env, strings.Fields(string(file))...)
		}
		if err != nil {
			return err
		}
	}
	cmd := exec.Command(program)
	cmd.Stdout, cmd.Stderr, cmd.Env = os.Stdout, os.Stderr, env
	return cmd.Run()
}
