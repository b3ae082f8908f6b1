package dev

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/imds"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/local"
	"github.com/nstance-go/nstance/provider/qemu"
)

// guestUserData is the template of what a virtual machine runs at its first boot.
// It reaches the servers, which listen on the host's loopback interface, under
// another address.
const guestUserData = `#!/bin/sh
mkdir -p /opt/nstance-agent/identity
cat > /opt/nstance-agent/identity/nonce.jwt <<'EOF'
{{.Nonce}}
EOF
cat > /opt/nstance-agent/identity/ca.crt <<'EOF'
{{.Cluster.CACert}}
EOF
export NSTANCE_INSTANCE_ID={{.Instance.ID}}
export NSTANCE_INSTANCE_KIND={{.Instance.Kind}}
export NSTANCE_SERVER_REGISTRATION_ADDR=$(echo "@registration@" | sed 's/[^,]*:/` + qemu.HostAddress + `:/g')
export NSTANCE_SERVER_AGENT_ADDR=$(echo "@agent@" | sed 's/[^,]*:/` + qemu.HostAddress + `:/g')
export NSTANCE_SPOT_POLL_INTERVAL=2s
export NSTANCE_PROVIDER=@protocol@
export NSTANCE_DRAIN_HOOK='["/bin/sh", "/run/drain"]'
export NSTANCE_DEV_RELEASE=@release@
cat > /run/drain <<'EOF'
echo "` + drainBegins + `$NSTANCE_INSTANCE_ID" > /dev/console
sleep @work@
echo "emptied $NSTANCE_INSTANCE_ID because of $NSTANCE_DRAIN_REASON, $NSTANCE_DRAIN_SECONDS s before its deadline"  > /dev/console
echo "received by $NSTANCE_INSTANCE_ID: $(cat /opt/nstance-agent/recv/motd)" > /dev/console
EOF
exec nstance-agent
`

// drainBegins is what a virtual machine prints before its ID when a drain begins.
const drainBegins = "begins to empty "

// Limits for virtual machines, which may be emulated on a busy host: seconds of
// one processor for each boot.
const (
	guestPatience     = 5 * time.Minute
	guestRegistration = "5m"
	guestLaunch       = "10m"
)

// guestType is the instance type of virtual machines.
const guestType = "small"

// What a host of two cores emulates within a minute or so.
const (
	guestCount    = 4 // in scenario mass
	guestFailover = 2
)

// A qemuCloud is provider qemu.
type qemuCloud struct {
	*qemu.Cloud
	protocol string
	work     time.Duration // of a drain
	endpoint string        // for other processes
	socket   net.Listener  // there; nil where there are none
	console  *drainCounter
	gate     *gate
}

// newQEMUCloud makes the cloud. Where servers are processes of their own, its
// socket is there before any server is.
func newQEMUCloud(ctx context.Context, o *Options, h *home) (*qemuCloud, error) {
	with := *o.QEMU
	with.Dir, with.Protocol = h.machinesDir(), o.Protocol
	with.Types = map[string]qemu.Type{guestType: {}}
	if with.Console == nil {
		with.Console = io.Writer(h.machines)
	}
	console := &drainCounter{to: with.Console, begun: map[nstance.InstanceID]int{}}
	with.Console = console
	c := &qemuCloud{protocol: o.Protocol, endpoint: h.socket(), console: console, gate: newGate()}
	if o.Scenario == Failover {
		c.work = o.slowDrain()
	}
	var err error
	if c.Cloud, err = qemu.New(&with, o.Log); err != nil {
		return nil, err
	}
	if o.paired() {
		if c.socket, err = local.Listen(ctx, c.endpoint); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	return c, nil
}

func (c *qemuCloud) configure(conf configFile, _ int, shared bool) {
	options := object{"kernel": "of single-machine mode"}
	if shared {
		options = object{"endpoint": c.endpoint}
	}
	options["types"] = object{guestType: object{}}
	conf.shard["provider"] = object{"kind": "qemu", "options": options}
	conf.template["arch"], conf.template["instance_type"] = nstance.AMD64, guestType
	conf.template["registration_timeout"], conf.template["launch_timeout"] = guestRegistration, guestLaunch
	script := strings.NewReplacer("@protocol@", c.protocol, "@work@", strconv.Itoa(int(c.work.Seconds()))).Replace(guestUserData)
	conf.template["userdata"] = object{"content": conf.words.Replace(script)}
}

func (c *qemuCloud) open(context.Context) (nstance.Provider, error) { return c.Cloud, nil }

func (c *qemuCloud) kinds() provider.Kinds { return provider.Kinds{qemu.Kind()} }

func (c *qemuCloud) serve(ctx context.Context) error {
	return local.Serve(ctx, c.socket, gated{c.Cloud, c.gate})
}

func (c *qemuCloud) interrupt(ids []nstance.InstanceID) error {
	return each(ids, func(id nstance.InstanceID) error { return c.Interrupt(id, "terminate", noticeAhead) })
}

func (c *qemuCloud) affected(id nstance.InstanceID, _ []nstance.InstanceID) []nstance.InstanceID {
	return []nstance.InstanceID{id}
}

func (c *qemuCloud) announce(id nstance.InstanceID, action string, after time.Duration) error {
	return c.Interrupt(id, action, after)
}

func (c *qemuCloud) hasAddress() bool { return false }

func (c *qemuCloud) holder(context.Context) (Holder, error) { return Holder{}, errNoAddress }

func (c *qemuCloud) drains(id nstance.InstanceID) int { return c.console.of(id) }

func (c *qemuCloud) wakeTime(nstance.InstanceID) (time.Duration, error) { return 0, errNoWakeTime }

func (c *qemuCloud) crash(id nstance.InstanceID) error {
	ctx, cancel := context.WithTimeout(context.Background(), guestPatience)
	defer cancel()
	return c.Kill(ctx, id)
}

func (c *qemuCloud) machines(ctx context.Context, owner nstance.Owner) ([]nstance.Machine, error) {
	return collect(c.List(ctx, owner))
}

func (c *qemuCloud) front() *gate { return c.gate }

func (c *qemuCloud) close() error {
	if c.socket != nil {
		_ = c.socket.Close() // for the case that it was never served
	}
	return c.Close()
}

// A drainCounter passes on what machines print, whole lines, and counts the
// drains that begin.
type drainCounter struct {
	to io.Writer

	mu    sync.Mutex
	begun map[nstance.InstanceID]int
}

// Write implements io.Writer.
func (d *drainCounter) Write(b []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for line := range strings.Lines(string(b)) {
		if id, ok := strings.CutPrefix(strings.TrimSpace(line), drainBegins); ok {
			d.begun[nstance.InstanceID(id)]++
		}
	}
	return d.to.Write(b)
}

func (d *drainCounter) of(id nstance.InstanceID) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.begun[id]
}

// checkQEMU refuses what virtual machines cannot do here.
func (o *Options) checkQEMU() error {
	switch {
	case o.QEMU == nil:
		return nil
	case o.Cloud != nil:
		return nstance.FieldError("qemu", "leave out the cloud", "machines cannot be in two places")
	case o.Scenario == Kill:
		return nstance.FieldError("scenario", "use failover, or leave out the virtual machines", "virtual machines take seconds to boot, longer than the time between two kills")
	case o.QEMU.Kernel == "" || o.QEMU.Initrd == "":
		return nstance.FieldError("kernel", "run make qemu-guest, and name .bin/qemu/vmlinuz and .bin/qemu/initrd", "virtual machines need a kernel and an initramfs")
	case o.Protocol != imds.AWS && o.Protocol != imds.GCP:
		return nstance.FieldError("metadata", "use aws or gcp", "virtual machines have no metadata service of %.64q", o.Protocol)
	}
	return nil
}
