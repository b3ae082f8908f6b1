package dev

import (
	"context"
	"io"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/imds"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/qemu"
)

// guestUserData is the template of what a virtual machine runs at its first boot.
// It reaches the server, which listens on the host's loopback interface, under
// another address.
const guestUserData = `#!/bin/sh
mkdir -p /opt/nstance-agent/identity
cat > /opt/nstance-agent/identity/nonce.jwt <<'EOF'
{{.Nonce}}
EOF
cat > /opt/nstance-agent/identity/ca.crt <<'EOF'
{{.Cluster.CACert}}
EOF
registration={{.Server.RegistrationAddr}}
agent={{.Server.AgentAddr}}
export NSTANCE_INSTANCE_ID={{.Instance.ID}}
export NSTANCE_INSTANCE_KIND={{.Instance.Kind}}
export NSTANCE_SERVER_REGISTRATION_ADDR=` + qemu.HostAddress + `:${registration##*:}
export NSTANCE_SERVER_AGENT_ADDR=` + qemu.HostAddress + `:${agent##*:}
export NSTANCE_SPOT_POLL_INTERVAL=2s
export NSTANCE_PROVIDER=@protocol@
export NSTANCE_DRAIN_HOOK='["/bin/sh", "/run/drain"]'
export NSTANCE_DEV_RELEASE=@release@
cat > /run/drain <<'EOF'
echo "emptied $NSTANCE_INSTANCE_ID because of $NSTANCE_DRAIN_REASON, $NSTANCE_DRAIN_SECONDS s before its deadline"  > /dev/console
echo "received by $NSTANCE_INSTANCE_ID: $(cat /opt/nstance-agent/recv/motd)" > /dev/console
EOF
exec nstance-agent
`

// Limits for virtual machines, which may be emulated on a busy host: seconds of
// one processor for each boot.
const (
	guestPatience     = 5 * time.Minute
	guestRegistration = "5m"
	guestLaunch       = "10m"
)

// guestType is the instance type of virtual machines.
const guestType = "small"

// A qemuCloud is provider qemu.
type qemuCloud struct {
	*qemu.Cloud
	protocol string
	gate     *gate
}

func newQEMUCloud(o *Options, h *home) (*qemuCloud, error) {
	with := *o.QEMU
	with.Dir, with.Protocol = h.machinesDir(), o.Protocol
	with.Types = map[string]qemu.Type{guestType: {}}
	if with.Console == nil {
		with.Console = io.Writer(h.machines)
	}
	c, err := qemu.New(&with, o.Log)
	return &qemuCloud{Cloud: c, protocol: o.Protocol, gate: newGate()}, err
}

func (c *qemuCloud) configure(conf configFile, _ int, _ bool) {
	conf.shard["provider"] = object{"kind": "qemu", "options": object{"kernel": "of single-machine mode", "types": object{guestType: object{}}}}
	conf.template["arch"], conf.template["instance_type"] = nstance.AMD64, guestType
	conf.template["registration_timeout"], conf.template["launch_timeout"] = guestRegistration, guestLaunch
	conf.template["userdata"] = object{"content": strings.NewReplacer("@release@", conf.release, "@protocol@", c.protocol).Replace(guestUserData)}
}

func (c *qemuCloud) open(context.Context) (nstance.Provider, error) { return c.Cloud, nil }

func (c *qemuCloud) kinds() provider.Kinds { return provider.Kinds{qemu.Kind()} }

// serve is not called: scenarios with servers in other processes are refused.
func (c *qemuCloud) serve(context.Context) error {
	return nstance.Errorf(nstance.Invalid, "virtual machines cannot be shared with other processes here")
}

func (c *qemuCloud) interrupt(id nstance.InstanceID) error {
	return c.Interrupt(id, "terminate", noticeAhead)
}

func (c *qemuCloud) announce(id nstance.InstanceID, action string, after time.Duration) error {
	return c.Interrupt(id, action, after)
}

func (c *qemuCloud) holds(context.Context, int) error { return nil }

func (c *qemuCloud) crash(id nstance.InstanceID) error {
	ctx, cancel := context.WithTimeout(context.Background(), guestPatience)
	defer cancel()
	return c.Kill(ctx, id)
}

func (c *qemuCloud) machines(ctx context.Context, owner nstance.Owner) ([]nstance.Machine, error) {
	var out []nstance.Machine
	for m, err := range c.List(ctx, owner) {
		if err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	return out, nil
}

func (c *qemuCloud) front() *gate { return c.gate }

func (c *qemuCloud) close() error { return c.Close() }

// checkQEMU refuses what virtual machines cannot do here.
func (o *Options) checkQEMU() error {
	switch {
	case o.QEMU == nil:
		return nil
	case o.Cloud != nil:
		return nstance.FieldError("qemu", "leave out the cloud", "machines cannot be in two places")
	case o.paired() || o.Scenario == Mass:
		return nstance.FieldError("scenario", "use interrupt, crash or rollout", "scenario %s is not for virtual machines", o.Scenario)
	case o.QEMU.Kernel == "" || o.QEMU.Initrd == "":
		return nstance.FieldError("kernel", "run make qemu-guest, and name .bin/qemu/vmlinuz and .bin/qemu/initrd", "virtual machines need a kernel and an initramfs")
	case o.Protocol != imds.AWS && o.Protocol != imds.GCP:
		return nstance.FieldError("metadata", "use aws or gcp", "virtual machines have no metadata service of %.64q", o.Protocol)
	}
	return nil
}
