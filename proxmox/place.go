package proxmox

import (
	"cmp"
	"slices"

	"github.com/nstance-go/nstance"
)

// A placement is a template and the node for its clone.
type placement struct {
	template resource
	node     string
	memory   uint64  // that the machine will have
	free     float64 // what is left on the node then
	cpu      float64 // load of the node
	excess   int     // machines of its group on the node then, beyond the limit of the spec
}

// better reports whether p comes before q: capacity is never given up for the limit of a
// host, so nodes that have reached it come last, the least crowded first.
func (p *placement) better(q *placement) bool {
	return cmp.Or(cmp.Compare(p.excess, q.excess), cmp.Compare(q.free, p.free), cmp.Compare(p.cpu, q.cpu)) < 0
}

// place chooses the template and the node with the most free memory among those that
// have not reached the group's limit: the memory of all machines assigned to a node
// counts, running or not, since Proxmox VE gives out more than there is. Between equals
// the less busy processors decide. It needs p.mu.
func (p *Provider) place(list []resource, pl plan) (placement, error) {
	templates, err := templatesFor(list, pl)
	if err != nil {
		return placement{}, err
	}
	p.forget()
	used, members := p.assigned(list), p.members(list, pl.spec)
	var best *placement
	var mostCPUs, tooFewCPUs float64
	if !slices.ContainsFunc(list, func(r resource) bool { return r.Type == "node" && r.MaxMem > 0 }) {
		return placement{}, &nstance.Error{Code: nstance.Denied, Msg: "no node shows its memory", Remedy: "give the token Sys.Audit on /nodes"}
	}
	for _, n := range list {
		if n.Type != "node" || n.Status != "online" || troubles[n.HAState].source != "" || len(p.o.Nodes) > 0 && !slices.Contains(p.o.Nodes, n.Node) {
			continue
		}
		i := slices.IndexFunc(templates, func(t resource) bool { return t.Node == n.Node })
		if i < 0 && !pl.args.AnyNode {
			continue
		}
		t := templates[max(i, 0)]
		// A start is refused where the node has fewer (qemu-server, QemuServer.pm
		// config_to_command: "MAX n vcpus allowed per VM on this node").
		cores := cmp.Or(float64(pl.cores), t.MaxCPU)
		if mostCPUs = max(mostCPUs, n.MaxCPU); n.MaxCPU > 0 && cores > n.MaxCPU {
			tooFewCPUs = cores
			continue
		}
		memory := cmp.Or(pl.memory, t.MaxMem)
		free := float64(n.MaxMem) - float64(used[n.Node]+memory)
		if free < 0 {
			continue
		}
		found := &placement{template: t, node: n.Node, memory: memory, free: free, cpu: n.CPU}
		if limit := pl.spec.HostLimit; limit > 0 {
			found.excess = max(0, members[n.Node]+1-limit)
		}
		if best == nil || found.better(best) {
			best = found
		}
	}
	if best == nil && tooFewCPUs > mostCPUs {
		return placement{}, nstance.FieldError("args.cores", "use fewer cores, in args.cores or the instance type", "no node that may have the machine has %.0f processors; the largest has %.0f", tooFewCPUs, mostCPUs)
	}
	if best == nil {
		return placement{}, nstance.Errorf(nstance.Capacity, "no node that has the template, or may have a clone of it, is online, free of maintenance, and has the memory")
	}
	return *best, nil
}

// templatesFor returns the templates that a plan names.
func templatesFor(list []resource, pl plan) ([]resource, error) {
	var out []resource
	gone, mayBeGone := offline(list), false
	for _, r := range list {
		if r.Type == "qemu" && gone[r.Node] && r.Status == "unknown" && (r.VMID == pl.args.Template || pl.args.TemplateName != "") {
			mayBeGone = true // its node does not say whether it is the template
			continue
		}
		if r.Type != "qemu" || r.VMID != pl.args.Template && (pl.args.TemplateName == "" || r.Name != pl.args.TemplateName) {
			continue
		}
		if r.Template != 1 {
			if pl.args.Template != 0 {
				return nil, nstance.FieldError("args.template", "convert it with qm template", "machine %d is no template", r.VMID)
			}
			continue
		}
		if ours(r.Tags) {
			return nil, nstance.FieldError("args.template", "remove its tags that begin with nstance: clones inherit them", "template %d carries marks of machines", r.VMID)
		}
		out = append(out, r)
	}
	if len(out) == 0 && mayBeGone {
		return nil, nstance.Errorf(nstance.Capacity, "template %s is not visible, and may be on a node that is offline", cmp.Or(pl.args.TemplateName, itoa(pl.args.Template)))
	}
	if len(out) == 0 {
		return nil, nstance.FieldError("args.template", "create it, or give the token VM.Audit on it", "template %s is not visible", cmp.Or(pl.args.TemplateName, itoa(pl.args.Template)))
	}
	return out, nil
}

// assigned sums the memory of the machines on each node. A clone is listed on
// the template's node until it is done: those under way count where they will
// be. It needs p.mu.
func (p *Provider) assigned(list []resource) map[string]uint64 {
	used, pending := map[string]uint64{}, map[int]bool{}
	for _, w := range p.works {
		if w.reserved > 0 {
			used[w.node] += w.reserved
			pending[w.marks.VMID] = true
		}
	}
	for _, r := range list {
		if r.Type == "qemu" && r.Template != 1 && !pending[r.VMID] {
			used[r.Node] += r.MaxMem
		}
	}
	return used
}

// members counts the machines of the spec's group on each node. The last work of a machine
// knows more than the listing: a new clone has no tags yet and is listed on the template's
// node, and what is being deleted is leaving. It needs p.mu.
func (p *Provider) members(list []resource, spec nstance.MachineSpec) map[string]int {
	count, known := map[string]int{}, map[int]bool{}
	member := func(m marks) bool { return m.Owner == spec.Owner && m.Group == spec.Group }
	for _, w := range p.works {
		made := w.kind == workCreate && w.failure() == nil
		if made && member(w.marks) {
			count[w.node]++
		}
		known[w.marks.VMID] = known[w.marks.VMID] || made || w.kind == workDelete
	}
	for _, r := range list {
		m, tagged := parseTags(r.Tags)
		copied := m.VMID != r.VMID
		if r.Type == "qemu" && r.Template != 1 && tagged && !copied && !known[r.VMID] && member(m) {
			count[r.Node]++
		}
	}
	return count
}
