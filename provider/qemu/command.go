package qemu

import (
	"cmp"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// Files in a machine's folder, in which QEMU runs.
const (
	consoleFile = "console.log"
	diskFile    = "disk.qcow2"
	seedFile    = "seed.iso"
	pidFile     = "machine.pid"
	memoryFile  = "memory" // of a hibernated machine
)

// monitorFD is the descriptor of QEMU's end of the monitor's connection.
const monitorFD = "3"

// commandLine returns QEMU's arguments. A machine that is restored gets the same
// ones as before: otherwise its memory would not fit.
func (m *machine) commandLine(restore bool) ([]string, error) {
	relay, err := m.relayCommand()
	if err != nil {
		return nil, err
	}
	args := append(commonArgs(m.c.accel(), m.shape.cpuType),
		"-name", string(m.spec.ID),
		"-pidfile", pidFile,
		"-m", strconv.Itoa(m.shape.memory),
		"-smp", fmt.Sprintf("%d,sockets=%d", m.shape.cpus, m.shape.sockets),
		"-chardev", "socket,id=monitor,fd="+monitorFD,
		"-mon", "chardev=monitor,mode=control",
		"-serial", "stdio",
		// The forwarded address must be inside net= and must not be that of the host
		// or of the name server: QEMU refuses to start otherwise. With -cmd: there is
		// one process for each connection.
		"-netdev", "user,id=net,net="+network+",guestfwd=tcp:"+metadata+":80-cmd:"+relay,
		"-device", "virtio-net-pci,netdev=net,romfile=",
	)
	if m.shape.image != "" {
		args = append(args,
			"-drive", "file="+diskFile+",format=qcow2,if=virtio",
			"-drive", "file="+seedFile+",format=raw,if=virtio,readonly=on",
		)
	} else {
		args = append(args, "-kernel", m.c.o.Kernel, "-append", m.shape.append)
		if m.c.o.Initrd != "" {
			args = append(args, "-initrd", m.c.o.Initrd)
		}
	}
	args = append(args, m.shape.deviceArgs()...)
	if restore {
		args = append(args, "-incoming", "exec:cat "+memoryFile)
	}
	return args, nil
}

// deviceArgs are those of the further disks and network cards, after the machine's own.
// Each network is restricted: nothing outside answers there but QEMU itself.
func (s shape) deviceArgs() []string {
	var args []string
	for i := range s.disks {
		args = append(args, "-drive", "file="+furtherDisk(i)+",format=qcow2,if=virtio")
	}
	for i, n := range s.networks {
		device := devices[cmp.Or(n.Model, defaultModel)]
		args = append(args, "-netdev", fmt.Sprintf("user,id=net%d,net=10.0.%d.0/24,restrict=on", i+1, i+2),
			"-device", fmt.Sprintf("%s,netdev=net%d,romfile=", device, i+1))
		if n.MTU != 0 {
			args[len(args)-1] += ",host_mtu=" + strconv.Itoa(n.MTU)
		}
	}
	return args
}

// furtherDisk names the file of a further disk.
func furtherDisk(i int) string { return fmt.Sprintf("disk%d.qcow2", i+1) }

// commonArgs are those of every machine, and of the probe.
func commonArgs(accel, cpu string) []string {
	return []string{"-nodefaults", "-no-user-config", "-display", "none", "-machine", "pc,accel=" + accel, "-cpu", cpu}
}

// relayCommand returns the command that connects a machine with its metadata
// service. QEMU reads it as a shell would, after it has taken doubled commas for
// single ones.
func (m *machine) relayCommand() (string, error) {
	host, port, err := net.SplitHostPort(m.Address)
	if err != nil {
		return "", err
	}
	var words []string
	for _, w := range append(m.c.relay[:len(m.c.relay):len(m.c.relay)], host, port) {
		words = append(words, quote(w))
	}
	return strings.ReplaceAll(strings.Join(words, " "), ",", ",,"), nil
}

// quote makes one word for a shell of s.
func quote(s string) string {
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
