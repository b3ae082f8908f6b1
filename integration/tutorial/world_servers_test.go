//go:build servers && linux

package tutorial_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance/provider/testcloud"
)

// scriptTimeout is how long a first day takes at most: normally less than a minute.
const scriptTimeout = 4 * time.Minute

// A site is a test cloud with what its operator has prepared.
type site struct {
	testcloud.Cloud
	api   http.Handler
	hosts []string // names of the cloud's services, all served by api
	port  string   // of the services

	// metadata is the metadata service of the server's own machine, with the credentials of
	// that machine. Nil: there is none.
	metadata http.Handler

	commands commands
}

// commands stand in for the cloud's command line, and for what is done by hand. Any other command
// fails.
type commands struct {
	// prepared are commands whose effect the test cloud has from the beginning.
	prepared []string

	// acts are what others do, and print, by what they begin with. The rest is given to them.
	acts map[string]func(rest string) (string, error)
}

var errNoStandIn = errors.New("the test has no stand-in for this command")

func (c commands) run(line string) (string, error) {
	if slices.Contains(c.prepared, line) {
		return "", nil
	}
	for prefix, act := range c.acts {
		if rest, ok := strings.CutPrefix(line, prefix); ok {
			return act(rest)
		}
	}
	return "", errNoStandIn
}

// A world is a network in which a cloud's names lead to its test cloud.
type world struct {
	dir        string // also the working folder of the commands
	repository string
	hypervisor *hypervisor
	cloud      *site
}

// operatorAddr is where the world answers commands; ownAddress the server's own address, that of
// the pages; metadataAddress is that of every cloud's metadata service.
const (
	operatorAddr    = "127.0.0.1:7001"
	ownAddress      = "10.0.0.2"
	metadataAddress = "169.254.169.254"
)

// serveWorld runs the script of a first day in this process's own namespaces.
func serveWorld(cloud string) error {
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	w := &world{dir: dir, repository: os.Getenv(repository)}
	w.hypervisor = &hypervisor{world: w, protocol: cloud}
	if err := w.furnish(); err != nil {
		return err
	}
	if w.cloud, err = firstDays[cloud].open(w); err != nil {
		return err
	}
	if err := w.serve(); err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(context.Background(), scriptTimeout)
	defer stop()
	cmd := exec.CommandContext(ctx, "bash", "-x", "script")
	cmd.WaitDelay = time.Second
	cmd.Stdout, cmd.Stderr, cmd.Env = os.Stdout, os.Stderr, environment(
		"SSL_CERT_FILE="+w.caFile(), "SSL_CERT_DIR="+dir, "AWS_CA_BUNDLE="+w.caFile())
	err = cmd.Run()
	if err != nil {
		w.printLogs()
	}
	return errors.Join(err, w.cloud.Close())
}

// environment returns what this process was given, without proxies and credentials.
func environment(more ...string) (out []string) {
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(strings.ToUpper(v), "=")
		if !strings.HasSuffix(name, "_PROXY") && !strings.HasPrefix(name, "AWS_") && !strings.HasPrefix(name, "GOOGLE_") && !strings.HasPrefix(name, "AZURE_") {
			out = append(out, v)
		}
	}
	return append(out, more...)
}

func (w *world) caFile() string { return filepath.Join(w.dir, "ca.pem") }

// furnish gives this machine its addresses and the folders that the pages name.
func (w *world) furnish() error {
	for _, command := range []string{
		"ip link set lo up", "ip address add " + ownAddress + "/32 dev lo", "ip address add " + metadataAddress + "/32 dev lo",
		"ip route add default dev lo src " + ownAddress, "mount -t tmpfs tmpfs /mnt",
	} {
		if err := run(strings.Fields(command)...); err != nil {
			return err
		}
	}
	for _, dir := range []string{"/etc", "/opt", "/var/lib"} {
		if err := shadow(dir, "/mnt/"+filepath.Base(dir)); err != nil {
			return err
		}
	}
	return errors.Join(os.Mkdir("/etc/nstance", 0o755), os.Mkdir("/opt/nstance-agent", 0o755))
}

// shadow makes changes to what is directly in a folder invisible to other processes. The folder
// itself is mounted at another place.
func shadow(dir, at string) error {
	names, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	links := map[string]string{}
	for _, name := range names {
		links[name.Name()] = filepath.Join(at, name.Name())
		if to, err := os.Readlink(filepath.Join(dir, name.Name())); err == nil {
			links[name.Name()] = to
		}
	}
	if err := errors.Join(os.Mkdir(at, 0o755), run("mount", "--rbind", dir, at), run("mount", "-t", "tmpfs", "tmpfs", dir)); err != nil {
		return err
	}
	for name, to := range links {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

func run(args ...string) error {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%q: %w", args, err)
	}
	return nil
}

// serve serves the cloud, the metadata service and the operator's commands until this process
// ends.
func (w *world) serve() error {
	own, err := certificate(w.caFile(), w.cloud.hosts)
	if err != nil {
		return err
	}
	hosts := "127.0.0.1 localhost " + strings.Join(w.cloud.hosts, " ") + "\n" + metadataAddress + " metadata.google.internal\n"
	for path, text := range map[string]string{"/etc/hosts": hosts, "/etc/resolv.conf": "nameserver 127.0.0.1\n"} { // no other name exists
		_ = os.Remove(path)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	cloud, err := net.Listen("tcp", "127.0.0.1:"+w.cloud.port)
	if err != nil {
		return err
	}
	go http.Serve(tls.NewListener(cloud, &tls.Config{Certificates: []tls.Certificate{own}, NextProtos: []string{"http/1.1"}}), w.cloud.api)
	commands, err := net.Listen("tcp", operatorAddr)
	if err != nil {
		return err
	}
	go http.Serve(commands, http.HandlerFunc(w.answer))
	if w.cloud.metadata == nil {
		return nil
	}
	metadata, err := net.Listen("tcp", metadataAddress+":80")
	if err != nil {
		return err
	}
	go http.Serve(metadata, w.cloud.metadata)
	return nil
}

// certificate makes a certificate for the names, and writes it as an authority.
func certificate(path string, names []string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		DNSNames: names, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600)
}

// answer answers a command of the operator.
func (w *world) answer(rw http.ResponseWriter, r *http.Request) {
	var args []string
	err := json.NewDecoder(r.Body).Decode(&args)
	var out string
	if err == nil {
		out, err = w.cloud.commands.run(strings.Join(args, " "))
	}
	if err != nil {
		http.Error(rw, err.Error(), http.StatusBadRequest)
		return
	}
	io.WriteString(rw, out)
}

// askWorld is a command that the world answers.
func askWorld(args []string) error {
	body, err := json.Marshal(args)
	if err != nil {
		return err
	}
	resp, err := http.Post("http://"+operatorAddr, "application/json", strings.NewReader(string(body)))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		return fmt.Errorf("%q: %s", args, text)
	}
	_, err = io.Copy(os.Stdout, resp.Body)
	return err
}

// printLogs prints the ends of the logs of the server and of the machines.
func (w *world) printLogs() {
	if err := run("nstance-admin", "events"); err != nil {
		fmt.Println(err)
	}
	for _, pattern := range []string{"*.log", "guest-*/log"} {
		files, _ := filepath.Glob(filepath.Join(w.dir, pattern))
		for _, name := range files {
			text, _ := os.ReadFile(name)
			fmt.Printf("%s:\n%s\n", name, text[max(0, len(text)-4000):])
		}
	}
}
