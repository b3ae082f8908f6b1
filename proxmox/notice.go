package proxmox

import (
	"context"
	"iter"
	"maps"
	"slices"
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
// it. So the notice is a stop. That of a fenced node stands until the node is back. What
// an earlier watch announced, and has ended since, is withdrawn too.
func (p *Provider) WatchNotices(ctx context.Context, owner nstance.Owner) iter.Seq2[nstance.MachineNotice, error] {
	return func(yield func(nstance.MachineNotice, error) bool) {
		w := &nodeWatch{p: p, owner: owner, yield: yield, nodes: map[string]string{}, standing: map[nstance.InstanceID]nstance.MachineNotice{}}
		for {
			r, err := w.read(ctx)
			if err != nil {
				if ctx.Err() != nil || !yield(nstance.MachineNotice{}, err) {
					return
				}
			} else if !w.announce(w.notices(r)) || !w.withdrawEarlier(r) {
				return
			}
			if !sleep.For(ctx, time.Duration(p.o.NoticeInterval)) {
				return
			}
		}
	}
}

// A nodeWatch is one watch of the nodes that an owner's machines run on.
type nodeWatch struct {
	p        *Provider
	owner    nstance.Owner
	yield    func(nstance.MachineNotice, error) bool
	nodes    map[string]string // those in trouble, by the state that announced it
	standing map[nstance.InstanceID]nstance.MachineNotice

	// earlier are the troubles that an earlier watch may have announced, of each machine
	// in the first reading. nil: nothing was read yet.
	earlier map[nstance.InstanceID][]string
}

// A reading is what one listing says.
type reading struct {
	nodeOf  map[nstance.InstanceID]string // of the owner's machines
	haState map[string]string             // of nodes
}

// read lists the owner's machines and all nodes, and keeps which nodes are in trouble.
func (w *nodeWatch) read(ctx context.Context) (reading, error) {
	list, err := w.p.api.resources(ctx)
	if err != nil {
		return reading{}, err
	}
	if err := w.p.absent(ctx, list); err != nil {
		return reading{}, err
	}
	out := reading{nodeOf: map[nstance.InstanceID]string{}, haState: map[string]string{}}
	for _, r := range list {
		if r.Type == "node" {
			out.haState[r.Node] = r.HAState
			w.keep(r.Node, r.HAState)
		} else if m, ok := parseTags(r.Tags); ok && r.Type == "qemu" && r.Template != 1 && m.VMID == r.VMID && w.owner.Owns(m.Owner) {
			out.nodeOf[m.ID] = r.Node
		}
	}
	return out, nil
}

// keep keeps whether a node is in trouble. A state that does not decide it ends no trouble.
func (w *nodeWatch) keep(node, state string) {
	if !decides(state) {
		return
	}
	if delete(w.nodes, node); state != haOnline {
		w.nodes[node] = state
	}
}

// notices returns a notice for each machine on a node in trouble.
func (w *nodeWatch) notices(r reading) map[nstance.InstanceID]nstance.MachineNotice {
	out := map[nstance.InstanceID]nstance.MachineNotice{}
	for id, node := range r.nodeOf {
		if state, trouble := w.nodes[node]; trouble {
			out[id] = noticeOf(id, state)
		}
	}
	return out
}

// noticeOf returns the notice of a machine whose node is in trouble. Proxmox VE names no
// deadline and no event. The event ID does not name the node: a watch that begins later
// must be able to withdraw it, and the machine may have moved by then.
func noticeOf(id nstance.InstanceID, state string) nstance.MachineNotice {
	what := troubles[state]
	return nstance.MachineNotice{ID: id, Notice: nstance.Notice{Kind: nstance.Stop, Action: what.action, Source: what.source,
		EventID: what.source + "/" + string(id), DetectedAt: time.Now().UTC()}}
}

// announce yields what is new in now and withdraws what is not in it any more.
func (w *nodeWatch) announce(now map[nstance.InstanceID]nstance.MachineNotice) bool {
	for id, n := range w.standing {
		if next, ok := now[id]; ok && next.Notice.EventID == n.Notice.EventID {
			continue
		}
		delete(w.standing, id)
		if !w.withdraw(n) {
			return false
		}
	}
	for id, n := range now {
		if _, known := w.standing[id]; known {
			continue
		}
		w.standing[id] = n
		if !w.yield(n, nil) {
			return false
		}
	}
	return true
}

func (w *nodeWatch) withdraw(n nstance.MachineNotice) bool {
	n.Notice.Cancelled = true
	return w.yield(n, nil)
}

// withdrawEarlier withdraws what an earlier watch may have announced: such a notice is on
// record, and this watch has not seen it begin. A machine of which there is none is not
// affected.
func (w *nodeWatch) withdrawEarlier(r reading) bool {
	if w.earlier == nil {
		w.earlier = map[nstance.InstanceID][]string{}
		for id := range r.nodeOf {
			w.earlier[id] = slices.Sorted(maps.Keys(troubles))
		}
	}
	for id, states := range w.earlier {
		var undecided []string
		for _, state := range states {
			switch now := r.haState[r.nodeOf[id]]; {
			case w.standing[id].Notice.EventID == noticeOf(id, state).Notice.EventID: // it is withdrawn when it ends
			case !decides(now):
				undecided = append(undecided, state)
			case !w.withdraw(noticeOf(id, state)):
				return false
			}
		}
		if w.earlier[id] = undecided; undecided == nil {
			delete(w.earlier, id)
		}
	}
	return true
}

// decides reports whether the state of a node excludes all troubles but itself. A fenced
// node is unknown until it is back, and one that high availability does not watch has no
// state.
func decides(state string) bool {
	_, trouble := troubles[state]
	return trouble || state == haOnline
}
