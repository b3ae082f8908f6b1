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
}

// place chooses the template and the node with the most free memory: that of
// all machines assigned to it counts, running or not, since Proxmox VE gives out
// more than there is. Between equals the less busy processors decide. It needs
// p.mu.
func (p *Provider) place(list []resource, pl plan) (placement, error) {
	templates, err := templatesFor(list, pl)
	if err != nil {
		return placement{}, err
	}
	used := p.assigned(list)
	var best *placement
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
		memory := cmp.Or(pl.memory, t.MaxMem)
		free := float64(n.MaxMem) - float64(used[n.Node]+memory)
		if free < 0 {
			continue
		}
		if best == nil || free > best.free || free == best.free && n.CPU < best.cpu {
			best = &placement{template: t, node: n.Node, memory: memory, free: free, cpu: n.CPU}
		}
	}
	if best == nil {
		return placement{}, nstance.Errorf(nstance.Capacity, "no node that has the template, or may have a clone of it, is online, free of maintenance, and has the memory")
	}
	return *best, nil
}

// templatesFor returns the templates that a plan names.
func templatesFor(list []resource, pl plan) ([]resource, error) {
	var out []resource
	for _, r := range list {
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
