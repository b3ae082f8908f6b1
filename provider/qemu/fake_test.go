package qemu_test

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// The test binary is also QEMU, as a provider sees it, and the relay.
func TestMain(m *testing.M) {
	switch {
	case slices.Contains(os.Args, "-nodefaults"):
		os.Exit(playQEMU(os.Args[1:]))
	case len(os.Args) == 4 && os.Args[1] == "relay":
		os.Exit(playRelay(net.JoinHostPort(os.Args[2], os.Args[3])))
	case len(os.Args) == 2 && os.Args[1] == "own a machine":
		ownMachine()
	}
	_ = os.Setenv("GORACE", "atexit_sleep_ms=0") // for the programs above: there are many
	os.Exit(m.Run())
}

func playRelay(address string) int {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return 1
	}
	go func() { _, _ = io.Copy(conn, os.Stdin) }()
	_, _ = io.Copy(os.Stdout, conn)
	return 0
}

// refusals are messages that QEMU exits with instead of starting a guest, by words of a
// guest's command line.
var refusals = map[string]string{
	"no-kernel":      "could not load kernel",
	"no-memory":      "qemu_thread_create: Cannot allocate memory",
	"no-ram":         "cannot set up guest memory 'pc.ram': Invalid argument",
	"no-space":       "-drive file=disk.qcow2: Could not write qcow2 header: No space left on device",
	"no-descriptors": "-drive file=disk.qcow2: Could not open 'disk.qcow2': Too many open files",
	"no-threads":     "qemu_thread_create: Resource temporarily unavailable",
	"no-kvm":         "failed to initialize kvm: Device or resource busy",
	"no-access":      "Could not access KVM kernel module: Permission denied",
}

// fakeQEMU answers its monitor as QEMU 7.2 does. The guest follows the kernel's command
// line.
type fakeQEMU struct {
	args    map[string]string
	monitor net.Conn
	ready   bool // capabilities are negotiated
	status  string
	rate    float64 // of a migration, in bytes a second
	moved   int     // reads of the migration
}

func playQEMU(args []string) int {
	q := &fakeQEMU{args: map[string]string{}, status: "running"}
	for i := 0; i+1 < len(args); i++ {
		q.args[args[i]] += args[i+1] + "\n"
	}
	does := func(what string) bool { return strings.Contains(q.args["-append"], what) }
	for word, message := range refusals {
		if does(word) {
			fmt.Fprintln(os.Stderr, "qemu-system-x86_64: warning: something\nqemu-system-x86_64: "+message)
			return 1
		}
	}
	var err error
	if q.monitor, err = net.FileConn(os.NewFile(3, "monitor")); err != nil {
		fmt.Fprintln(os.Stderr, "descriptor 3:", err)
		return 1
	}
	if uri := strings.TrimSpace(q.args["-incoming"]); uri != "" {
		out, err := shell(uri).Output()
		if err != nil || string(out) != "memory of a guest" {
			fmt.Fprintln(os.Stderr, "load of migration failed: Invalid argument")
			return 1
		}
		q.status = "inmigrate"
	} else {
		fmt.Println("a guest boots")
	}
	q.say(`{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}}, "capabilities": ["oob"]}}`)
	if does("metadata") {
		q.printUserData()
	}
	if does("hardware") {
		q.printHardware()
	}
	lines := bufio.NewScanner(q.monitor)
	for lines.Scan() {
		var c struct {
			Execute   string         `json:"execute"`
			Arguments map[string]any `json:"arguments"`
			ID        int            `json:"id"`
		}
		_ = json.Unmarshal(lines.Bytes(), &c)
		if q.execute(c.Execute, c.Arguments, c.ID) {
			return 0
		}
		for _, reason := range []string{"guest-shutdown", "guest-panic"} {
			if q.ready && does(reason) {
				return q.shutDown(reason)
			}
		}
	}
	select {} // QEMU continues without a client at its monitor
}

func (q *fakeQEMU) say(format string, args ...any) { fmt.Fprintf(q.monitor, format+"\n", args...) }

func (q *fakeQEMU) shutDown(reason string) int {
	q.say(`{"event": "SHUTDOWN", "data": {"guest": %t, "reason": %q}}`, strings.HasPrefix(reason, "guest"), reason)
	return 0
}

// execute answers one command, and reports whether QEMU ends.
func (q *fakeQEMU) execute(command string, args map[string]any, id int) (ends bool) {
	if q.ready = q.ready || command == "qmp_capabilities"; !q.ready {
		q.say(`{"id": %d, "error": {"class": "CommandNotFound", "desc": "Expecting capabilities negotiation with 'qmp_capabilities'"}}`, id)
		return false
	}
	answer, deaf := "{}", strings.Contains(q.args["-append"], "deaf")
	switch command {
	case "qmp_capabilities", "migrate_cancel":
	case "migrate-set-parameters":
		q.rate, _ = args["max-bandwidth"].(float64)
	case "system_powerdown":
		q.say(`{"event": "POWERDOWN"}`)
		if !deaf {
			q.say(`{"return": {}, "id": %d}`, id)
			q.shutDown("guest-shutdown")
			return true
		}
	case "quit":
		q.say(`{"return": {}, "id": %d}`, id)
		q.shutDown("host-qmp-quit")
		return true
	case "stop":
		q.status = "paused"
	case "cont":
		q.status = "running"
		fmt.Println("a guest goes on")
	case "query-status":
		answer = fmt.Sprintf(`{"status": %q}`, q.status)
		if q.status == "inmigrate" {
			q.status = "paused"
		}
	case "migrate":
		uri, _ := args["uri"].(string)
		cmd := shell(uri)
		cmd.Stdin = strings.NewReader("memory of a guest")
		if err := cmd.Run(); err != nil || q.rate < 1<<30 { // QEMU's own limit is too low
			q.moved = -1 << 20
		}
	case "query-migrate":
		answer = `{"status": "active"}`
		if q.moved++; q.moved < 0 || strings.Contains(q.args["-append"], "stays") {
			answer = `{"status": "failed", "error-desc": "Unable to write to command: Broken pipe"}`
		} else if q.moved > 2 {
			q.status, answer = "postmigrate", `{"status": "completed"}`
		}
	default:
		q.say(`{"id": %d, "error": {"class": "CommandNotFound", "desc": "The command %s has not been found"}}`, id, command)
		return false
	}
	q.say(`{"return": %s, "id": %d}`, answer, id)
	return false
}

// shell runs the command of a migration as QEMU does.
func shell(uri string) *exec.Cmd {
	return exec.Command("/bin/sh", "-c", strings.TrimPrefix(uri, "exec:"))
}

// printUserData reads the guest's user data through the forwarded address.
func (q *fakeQEMU) printUserData() {
	netdev := strings.ReplaceAll(strings.TrimSpace(q.args["-netdev"]), ",,", "\x00")
	_, forward, ok := strings.Cut(netdev, ",guestfwd=tcp:169.254.169.254:80-cmd:")
	if !ok {
		fmt.Println("no metadata service is forwarded")
		return
	}
	cmd := exec.Command("/bin/sh", "-c", "exec "+strings.ReplaceAll(forward, "\x00", ","))
	cmd.Stderr = os.Stdout
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Fprint(in, "GET /latest/user-data HTTP/1.0\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(out), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	body, _ := io.ReadAll(resp.Body)
	fmt.Printf("user data %s.\n", base64.StdEncoding.EncodeToString(body))
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// printHardware prints what of the arguments and of the folder is hardware.
func (q *fakeQEMU) printHardware() {
	for _, option := range []string{"-cpu", "-smp", "-drive", "-device", "-netdev"} {
		for line := range strings.SplitSeq(strings.TrimSpace(q.args[option]), "\n") {
			fmt.Printf("hardware %s %s\n", option, line)
		}
	}
	files, err := filepath.Glob("*.qcow2")
	fmt.Println("files", files, err)
}

// ownMachine runs a cloud and prints the process of its machine, until it is killed.
func ownMachine() {
	c, err := open(os.Getenv("TEST_DIR"))
	if err == nil {
		_, err = c.Create(testContext(), newSpec())
	}
	fmt.Println("machine made", err)
	<-time.After(time.Hour)
}
