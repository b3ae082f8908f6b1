package proxmox

import (
	"context"
	"iter"

	"github.com/nstance-go/nstance"
)

// List implements [nstance.Provider] with one call for all machines: Proxmox VE
// has no pages, and its tags are in the listing. Only machines whose tags are
// not set yet, and those listed as stopped, cost a call each.
func (p *Provider) List(ctx context.Context, owner nstance.Owner) iter.Seq2[nstance.Machine, error] {
	return func(yield func(nstance.Machine, error) bool) {
		if ctx.Err() != nil {
			yield(nstance.Machine{}, nstance.Errorf(nstance.Unavailable, "nothing was asked: %w", ctx.Err()))
			return
		}
		list, err := p.api.resources(ctx, "vm")
		if err == nil {
			err = p.absent(ctx, list)
		}
		if err != nil {
			yield(nstance.Machine{}, err)
			return
		}
		seen := map[nstance.InstanceID]bool{}
		for _, r := range list {
			m, ok, err := p.listed(ctx, r, owner)
			if err == nil && ctx.Err() != nil {
				err = nstance.Errorf(nstance.Unavailable, "the listing is incomplete: %w", ctx.Err())
			}
			if err != nil {
				yield(nstance.Machine{}, err)
				return
			}
			seen[m.ID] = true
			if ok && !yield(m, nil) {
				return
			}
		}
		for _, m := range p.underway(owner) {
			if !seen[m.ID] && !yield(m, nil) {
				return
			}
		}
	}
}

// listed returns the machine behind a line of the listing, if it is the owner's.
func (p *Provider) listed(ctx context.Context, r resource, owner nstance.Owner) (nstance.Machine, bool, error) {
	if r.Type != "qemu" || r.Template == 1 {
		return nstance.Machine{}, false, nil
	}
	m, tagged := parseTags(r.Tags)
	var f *found
	switch {
	case tagged && m.VMID == r.VMID: // a copy has another VMID
		f = &found{marks: m, node: r.Node, tags: r.Tags, lock: r.Lock, listed: r}
	case !tagged && (parsesAsID(r.Name) || r.Name == "" && r.VMID >= p.o.MinVMID && r.VMID <= p.o.MaxVMID):
		var err error
		if f, err = p.read(ctx, r); err != nil {
			return nstance.Machine{}, false, err
		}
	}
	if f == nil || !owner.Owns(f.Owner) {
		return nstance.Machine{}, false, nil
	}
	if f.unfinished() {
		if whole, err := p.read(ctx, r); err == nil && whole != nil { // tags do not have all marks
			p.resume(whole)
		}
	}
	view, err := p.view(ctx, f)
	return view, true, err
}
