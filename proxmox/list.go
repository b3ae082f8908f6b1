package proxmox

import (
	"context"
	"errors"
	"iter"
	"net/http"

	"github.com/nstance-go/nstance"
)

// List implements [nstance.Provider] with one call for all machines: Proxmox VE
// has no pages, and its tags are in the listing. Only machines whose tags are
// not set yet, and those listed as stopped, cost a call each. A node that does not
// answer costs nothing but what is known of its machines: their tags come from the
// cluster's file system, which every node has, so they are listed as unknown
// (pve-cluster, status.c; calls for such a node end as 595 to 599, pve-http-server,
// AnyEvent.pm proxy_request).
func (p *Provider) List(ctx context.Context, owner nstance.Owner) iter.Seq2[nstance.Machine, error] {
	return func(yield func(nstance.Machine, error) bool) {
		if ctx.Err() != nil {
			yield(nstance.Machine{}, nstance.Errorf(nstance.Unavailable, "nothing was asked: %w", ctx.Err()))
			return
		}
		list, err := p.api.resources(ctx)
		if err == nil {
			err = p.absent(ctx, list)
		}
		if err != nil {
			yield(nstance.Machine{}, err)
			return
		}
		var incomplete error
		seen, silent := map[nstance.InstanceID]bool{}, offline(list)
		for _, r := range list {
			m, ok, err := p.listed(ctx, r, owner, silent)
			if err != nil {
				incomplete = err
			}
			if ctx.Err() != nil {
				incomplete = nstance.Errorf(nstance.Unavailable, "the listing is incomplete: %w", ctx.Err())
				break
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
		if incomplete != nil {
			yield(nstance.Machine{}, incomplete)
		}
	}
}

// listed returns the machine behind a line of the listing, if it is the owner's. Nodes
// that do not answer are added to silent and not asked again.
//
// A line without tags on such a node is left out. A machine gets its tags before its first
// start, so it is a clone that broke off: its work lists it, if this provider does one, and
// Get does not say that there is none.
func (p *Provider) listed(ctx context.Context, r resource, owner nstance.Owner, silent map[string]bool) (nstance.Machine, bool, error) {
	if r.Type != "qemu" || r.Template == 1 {
		return nstance.Machine{}, false, nil
	}
	m, tagged := parseTags(r.Tags)
	var f *found
	switch {
	case tagged && m.VMID == r.VMID: // a copy has another VMID
		f = &found{marks: m, node: r.Node, tags: r.Tags, lock: r.Lock, listed: r, silent: silent[r.Node]}
	case !tagged && !silent[r.Node] && (parsesAsID(r.Name) || r.Name == "" && p.o.mayGive(r.VMID)):
		var err error
		if f, err = p.read(ctx, r); err != nil && !p.unread(ctx, r, silent, err) {
			return nstance.Machine{}, false, err
		}
	}
	if f == nil || !owner.Owns(f.Owner) {
		return nstance.Machine{}, false, nil
	}
	if !f.silent && f.unfinished() {
		whole, err := p.read(ctx, r) // tags do not have all marks
		switch {
		case err != nil:
			f.silent = p.unread(ctx, r, silent, err)
		case whole != nil:
			p.resume(whole)
		}
	}
	if !f.silent {
		view, err := p.view(ctx, f)
		if err == nil {
			return view, true, nil
		}
		p.unread(ctx, r, silent, err)
		f.silent = true
	}
	return f.machine(), true, nil
}

// unread records that a machine of a listing could not be read, and reports whether its
// node does not answer.
func (p *Provider) unread(ctx context.Context, r resource, silent map[string]bool, err error) bool {
	if ctx.Err() != nil {
		return false
	}
	p.log.Warn("machine is listed, and cannot be read", "node", r.Node, "vmid", r.VMID, "code", nstance.CodeOf(err), "err", err)
	e, answered := errors.AsType[*apiError](err)
	if answered && e.status > http.StatusNotImplemented || errors.Is(err, context.DeadlineExceeded) && !unsent(err) {
		silent[r.Node] = true
	}
	return silent[r.Node]
}
