package proxmox

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

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

// A mapping has how many devices of each mapping that a plan asks for are on each node.
type mapping map[string]map[string]int

// mapped returns where the PCI devices are that a plan asks for.
func (p *Provider) mapped(ctx context.Context, pl plan) (mapping, error) {
	if len(pl.args.PCI) == 0 {
		return nil, nil
	}
	all, err := p.api.mappings(ctx)
	if err != nil {
		return nil, err
	}
	for i, d := range pl.args.PCI {
		if all[d.Mapping] == nil {
			return nil, nstance.FieldError(fmt.Sprintf("args.pci[%d].mapping", i), "create it, or give the token Mapping.Use on /mapping/pci/"+d.Mapping, "mapping %s is not visible", d.Mapping)
		}
	}
	return all, nil
}

// A search looks for the node of one machine.
type search struct {
	pl        plan
	templates []resource
	list      []resource
	percent   uint64                    // of a node's memory that may be assigned
	used      map[string]uint64         // bytes of memory by node
	members   map[string]int            // machines of the group by node
	mapped    mapping                   // devices that there are
	devices   map[string]map[string]int // those that machines have, by node and mapping

	mostCPUs, tooFewCPUs float64
}

// place chooses the template and the node with the most free memory among those that
// have not reached the group's limit. Between equals the less busy processors decide. It
// needs p.mu.
func (p *Provider) place(list []resource, pl plan, mapped mapping) (placement, error) {
	templates, err := templatesFor(list, pl)
	if err == nil {
		err = pl.checkStorages(list)
	}
	if err != nil {
		return placement{}, err
	}
	p.forget()
	s := &search{pl: pl, templates: templates, list: list, percent: uint64(p.o.MemoryPercent), used: p.assigned(list),
		members: p.members(list, pl.spec), mapped: mapped, devices: p.devices(list)}
	var best *placement
	if !slices.ContainsFunc(list, func(r resource) bool { return r.Type == "node" && r.MaxMem > 0 }) {
		return placement{}, &nstance.Error{Code: nstance.Denied, Msg: "no node shows its memory", Remedy: "give the token Sys.Audit on /nodes"}
	}
	for _, n := range list {
		if n.Type != "node" || n.Status != "online" || troubles[n.HAState].source != "" || !permits(p.o.Nodes, n.Node) || !permits(pl.args.Nodes, n.Node) {
			continue
		}
		if found := s.on(n); found != nil && (best == nil || found.better(best)) {
			best = found
		}
	}
	if best == nil {
		return placement{}, s.refusal()
	}
	return *best, nil
}

// permits reports whether a list of nodes has one. An empty list has all.
func permits(nodes []string, node string) bool {
	return len(nodes) == 0 || slices.Contains(nodes, node)
}

// on returns the placement on a node, or nil if the machine cannot be there.
func (s *search) on(n resource) *placement {
	i := slices.IndexFunc(s.templates, func(t resource) bool { return t.Node == n.Node })
	if i < 0 && !s.pl.args.AnyNode {
		return nil
	}
	t := s.templates[max(i, 0)]
	// A start is refused where the node has fewer (qemu-server, QemuServer.pm
	// config_to_command: "MAX n vcpus allowed per VM on this node").
	cpus := cmp.Or(float64(s.pl.cpus), t.MaxCPU)
	if s.mostCPUs = max(s.mostCPUs, n.MaxCPU); n.MaxCPU > 0 && cpus > n.MaxCPU {
		s.tooFewCPUs = cpus
		return nil
	}
	memory := cmp.Or(s.pl.memory, t.MaxMem)
	free := float64(n.MaxMem*s.percent/100) - float64(s.used[n.Node]+memory)
	if free < 0 || !s.hasDevices(n.Node) || !s.hasStorages(n.Node) {
		return nil
	}
	found := &placement{template: t, node: n.Node, memory: memory, free: free, cpu: n.CPU}
	if limit := s.pl.spec.HostLimit; limit > 0 {
		found.excess = max(0, s.members[n.Node]+1-limit)
	}
	return found
}

// hasDevices reports whether a node has the PCI devices that the machine is to get, free of
// those that machines of this system have. Of mediated devices it must have one.
func (s *search) hasDevices(node string) bool {
	whole := map[string]int{}
	for _, d := range s.pl.args.PCI {
		there := s.mapped[d.Mapping][node]
		if d.MDev == "" {
			whole[d.Mapping]++
			there -= s.devices[node][strings.ToLower(d.Mapping)]
		}
		if there < max(whole[d.Mapping], 1) {
			return false
		}
	}
	return true
}

// hasStorages reports whether a node has the storages of the further disks.
func (s *search) hasStorages(node string) bool {
	for _, d := range s.pl.args.Disks {
		if !slices.ContainsFunc(s.list, func(r resource) bool { return r.Type == "storage" && r.Node == node && r.Storage == d.Storage }) {
			return false
		}
	}
	return true
}

// refusal says why there is no node for the machine.
func (s *search) refusal() error {
	a := &s.pl.args
	if s.tooFewCPUs > s.mostCPUs {
		return nstance.FieldError("args.cores", "use fewer cores, in args.cores or the instance type", "no node that may have the machine has %.0f processors; the largest has %.0f", s.tooFewCPUs, s.mostCPUs)
	}
	if !a.AnyNode && !slices.ContainsFunc(s.templates, func(t resource) bool { return permits(a.Nodes, t.Node) }) {
		return nstance.FieldError("args.nodes", "set args.any_node, or name "+s.templates[0].Node, "the template is on none of them")
	}
	needs := "the memory"
	if len(a.PCI) > 0 {
		needs += ", free PCI devices"
	}
	if len(a.Disks) > 0 {
		needs += ", the storages of its disks"
	}
	return nstance.Errorf(nstance.Capacity, "no node that has the template, or may have a clone of it, is online, free of maintenance, and has %s", needs)
}

// checkStorages refuses storages of further disks that no node has, or that take no disks.
func (pl plan) checkStorages(list []resource) error {
	for i, d := range pl.args.Disks {
		field := fmt.Sprintf("args.disks[%d].storage", i)
		at := slices.IndexFunc(list, func(r resource) bool { return r.Type == "storage" && r.Storage == d.Storage })
		if at < 0 {
			return nstance.FieldError(field, "create it, or give the token Datastore.AllocateSpace on /storage/"+d.Storage, "storage %s is not visible", d.Storage)
		}
		if content := strings.Split(list[at].Content, ","); !slices.Contains(content, "images") {
			return nstance.FieldError(field, "use a storage with content type images", "storage %s has content %.64s", d.Storage, list[at].Content)
		}
	}
	return nil
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

// assigned sums the memory of the machines on each node: of those that run, of all of this
// system, and of clones. What this system has stopped counts, since it is woken on its node
// at any time. Machines of others that are switched off do not: when they are started is
// their owner's decision, and Proxmox VE gives out more memory than there is. A clone is
// listed on the template's node until it is done: those under way count where they will be.
// It needs p.mu.
func (p *Provider) assigned(list []resource) map[string]uint64 {
	used, pending := map[string]uint64{}, map[int]bool{}
	for _, w := range p.works {
		if w.reserved > 0 {
			used[w.node] += w.reserved
			pending[w.marks.VMID] = true
		}
	}
	for _, r := range list {
		if r.Type == "qemu" && r.Template != 1 && !pending[r.VMID] && !r.switchedOff() {
			used[r.Node] += r.MaxMem
		}
	}
	return used
}

// switchedOff reports whether a machine is none of this system's and does not run. A clone
// that is not finished may be this system's without a tag yet, and one whose status is
// unknown may run. Hibernated ones are switched off too.
func (r resource) switchedOff() bool {
	locked := r.Lock != "" && r.Lock != "suspended"
	return r.Status == "stopped" && !locked && !ours(r.Tags) && r.Name != "" && !parsesAsID(r.Name)
}

// devices counts the PCI devices of this system's machines, by node and mapping. The last
// work of a machine knows more than the listing, as for members. It needs p.mu.
func (p *Provider) devices(list []resource) map[string]map[string]int {
	out, known := map[string]map[string]int{}, map[int]bool{}
	add := func(node string, devices map[string]int) {
		for name, n := range devices {
			if out[node] == nil {
				out[node] = map[string]int{}
			}
			out[node][name] += n
		}
	}
	for _, w := range p.works {
		if w.kind == workCreate && w.failure() == nil {
			add(w.node, w.marks.devices())
			known[w.marks.VMID] = true
		}
	}
	for _, r := range list {
		if m, tagged := parseTags(r.Tags); r.Type == "qemu" && r.Template != 1 && tagged && m.VMID == r.VMID && !known[r.VMID] {
			add(r.Node, taggedDevices(r.Tags))
		}
	}
	return out
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
