package proxmox

import (
	"context"
	"iter"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
)

// How high availability sees a node (pve-ha-manager, PVE/HA/NodeStatus.pm). One that it has
// fenced is unknown until it has come back.
const (
	haOnline      = "online"
	haMaintenance = "maintenance"
	haFence       = "fence"
)

// troubles are what high availability announces about nodes, by its state: the source of
// the notices and their action.
var troubles = map[string]struct{ source, action string }{
	haMaintenance: {"proxmox/maintenance", "node maintenance"},
	haFence:       {"proxmox/fence", "node fenced"},
}

// WatchNotices implements [nstance.NoticeWatcher]: machines cannot learn from
// inside that their node is put under maintenance, or is fenced. Either ends them:
// high availability moves what it manages to other nodes and nothing else (pve-docs,
// ha-manager.adoc, "Maintenance Mode", "Fencing"), and these machines are not managed by
// it. So the notice is a stop. That of a fenced node stands until the node is back.
func (p *Provider) WatchNotices(ctx context.Context, owner nstance.Owner) iter.Seq2[nstance.MachineNotice, error] {
	return func(yield func(nstance.MachineNotice, error) bool) {
		standing, nodes := map[nstance.InstanceID]nstance.MachineNotice{}, map[string]string{}
		for {
			now, err := p.noticed(ctx, owner, nodes)
			if err != nil {
				if ctx.Err() != nil || !yield(nstance.MachineNotice{}, err) {
					return
				}
			} else if !announce(standing, now, yield) {
				return
			}
			if !sleep.For(ctx, time.Duration(p.o.NoticeInterval)) {
				return
			}
		}
	}
}

// announce yields what is new in now and withdraws what is not in it any more.
func announce(standing, now map[nstance.InstanceID]nstance.MachineNotice, yield func(nstance.MachineNotice, error) bool) bool {
	for id, n := range standing {
		if next, ok := now[id]; ok && next.Notice.EventID == n.Notice.EventID {
			continue
		}
		delete(standing, id)
		n.Notice.Cancelled = true
		if !yield(n, nil) {
			return false
		}
	}
	for id, n := range now {
		if _, known := standing[id]; known {
			continue
		}
		standing[id] = n
		if !yield(n, nil) {
			return false
		}
	}
	return true
}

// noticed returns a notice for each of the owner's machines on a node in trouble, and keeps
// in nodes which those are, by the state that announced it. Proxmox VE names no deadline and
// no event: the notice is the same for as long as the machine is on that node.
func (p *Provider) noticed(ctx context.Context, owner nstance.Owner, nodes map[string]string) (map[nstance.InstanceID]nstance.MachineNotice, error) {
	list, err := p.api.resources(ctx, "")
	if err != nil {
		return nil, err
	}
	if err := p.absent(ctx, list); err != nil {
		return nil, err
	}
	for _, r := range list {
		switch _, trouble := troubles[r.HAState]; {
		case r.Type != "node":
		case trouble:
			nodes[r.Node] = r.HAState
		case r.HAState == haOnline || nodes[r.Node] != haFence:
			delete(nodes, r.Node)
		}
	}
	out := map[nstance.InstanceID]nstance.MachineNotice{}
	for _, r := range list {
		m, ok := parseTags(r.Tags)
		what, trouble := troubles[nodes[r.Node]]
		if r.Type != "qemu" || r.Template == 1 || !ok || m.VMID != r.VMID || !trouble || !owner.Owns(m.Owner) {
			continue
		}
		out[m.ID] = nstance.MachineNotice{ID: m.ID, Notice: nstance.Notice{Kind: nstance.Stop, Action: what.action, Source: what.source,
			EventID: what.source + "/" + r.Node + "/" + string(m.ID), DetectedAt: time.Now().UTC()}}
	}
	return out, nil
}
