package proxmox

import (
	"context"
	"iter"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
)

// noticeSource is the source of notices about nodes under maintenance.
const noticeSource = "proxmox/maintenance"

// WatchNotices implements [nstance.NoticeWatcher]: machines cannot learn from
// inside that their node is put under maintenance. That ends them: maintenance
// mode moves what high availability manages to other nodes and nothing else
// (pve-docs, ha-manager.adoc, "Maintenance Mode"), and these machines are not
// managed by it. So the notice is a stop.
func (p *Provider) WatchNotices(ctx context.Context, owner nstance.Owner) iter.Seq2[nstance.MachineNotice, error] {
	return func(yield func(nstance.MachineNotice, error) bool) {
		standing := map[nstance.InstanceID]nstance.MachineNotice{}
		for {
			now, err := p.maintained(ctx, owner)
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

// maintained returns a notice for each of the owner's machines on a node under
// maintenance. Proxmox VE names no deadline and no event: the notice is the same
// for as long as the machine is on that node.
func (p *Provider) maintained(ctx context.Context, owner nstance.Owner) (map[nstance.InstanceID]nstance.MachineNotice, error) {
	list, err := p.api.resources(ctx, "")
	if err != nil {
		return nil, err
	}
	if err := p.absent(ctx, list); err != nil {
		return nil, err
	}
	under := map[string]bool{}
	for _, r := range list {
		under[r.Node] = under[r.Node] || r.Type == "node" && r.HAState == "maintenance"
	}
	out := map[nstance.InstanceID]nstance.MachineNotice{}
	for _, r := range list {
		m, ok := parseTags(r.Tags)
		if r.Type != "qemu" || r.Template == 1 || !ok || m.VMID != r.VMID || !under[r.Node] || !owner.Owns(m.Owner) {
			continue
		}
		out[m.ID] = nstance.MachineNotice{ID: m.ID, Notice: nstance.Notice{Kind: nstance.Stop, Action: "node maintenance", Source: noticeSource,
			EventID: noticeSource + "/" + r.Node + "/" + string(m.ID), DetectedAt: time.Now().UTC()}}
	}
	return out, nil
}
