package proxmox

import (
	"context"
	"errors"
	"maps"
	"strings"

	"github.com/nstance-go/nstance"
)

// Delete implements [nstance.Provider]: the machine is stopped and destroyed in
// the background, its image goes before NotFound is the answer. While the cluster refuses
// that, its words are the answer, and the work goes on. A protection that an operator has set
// is such a refusal.
func (p *Provider) Delete(ctx context.Context, m nstance.Machine) error {
	if ctx.Err() != nil {
		return nstance.Errorf(nstance.Unavailable, "nothing was sent: %w", ctx.Err())
	}
	unlock, err := p.lock(ctx, m.ID)
	if err != nil {
		return err
	}
	defer unlock()
	w := p.workOf(m.ID)
	if w != nil {
		if err := claims(w.marks, m); err != nil {
			return err
		}
		switch {
		case w.kind == workDelete && w.active():
			return notYet(w.obstacle())
		case w.kind == workDelete && w.err != nil:
			p.drop(w) // the next call tries again
			return notYet(w.err)
		case w.active():
			if err := w.stop(ctx); err != nil {
				return err
			}
		}
	}
	list, err := p.api.resources(ctx)
	if err != nil {
		return err
	}
	f, err := p.find(ctx, list, m.ID)
	switch {
	case errors.Is(err, errNameless) && w != nil: // our own clone, or what is left of it
		p.begin(newWork(workDelete, w.marks, w.node), p.destroy)
		return nil
	case err != nil:
		return err
	case f == nil:
		return p.gone(ctx, list, m)
	}
	if err := claims(f.marks, m); err != nil {
		return err
	}
	if _, err := p.unmanaged(ctx, f); err != nil {
		return notYet(err)
	}
	p.begin(newWork(workDelete, f.marks, f.node), p.destroy)
	return nil
}

// notYet is why a machine cannot be deleted. Conflict would say that it is another's.
func notYet(err error) error {
	if errors.Is(err, nstance.Conflict) {
		return nstance.Errorf(nstance.Unavailable, "%v", err)
	}
	return err
}

// claims fails with Conflict when the machine with these marks is not the one
// that the caller means.
func claims(is marks, m nstance.Machine) error {
	f := found{marks: is}
	if err := f.sameOwner(m.Owner); err != nil {
		return err
	}
	if m.ProviderID != "" && m.ProviderID != itoa(is.VMID) {
		return nstance.Errorf(nstance.Conflict, "machine %s has VMID %d, not %s", is.ID, is.VMID, m.ProviderID)
	}
	return nil
}

// gone proves that there is no machine with that ID, removes its image, and
// fails with NotFound. A VMID that another of our machines has is a Conflict;
// one that a foreign machine has was used again.
func (p *Provider) gone(ctx context.Context, list []resource, m nstance.Machine) error {
	for _, r := range list {
		if r.Type != "qemu" || itoa(r.VMID) != m.ProviderID {
			continue
		}
		other, err := p.read(ctx, r)
		if err != nil {
			return err
		}
		if other != nil {
			return nstance.Errorf(nstance.Conflict, "VMID %s is machine %s, not %s", m.ProviderID, other.ID, m.ID)
		}
	}
	if err := p.absent(ctx, list); err != nil {
		return err
	}
	if err := p.removeImages(ctx, list, m.ID); err != nil {
		return err
	}
	return nstance.Errorf(nstance.NotFound, "no machine %s", m.ID)
}

// removeImages deletes the images of a machine, in shared storage once and else
// on each node. One on a node that is offline stays: the node may never come back, and must
// not keep the machine from being gone.
func (p *Provider) removeImages(ctx context.Context, list []resource, id nstance.InstanceID) error {
	p.reportUnsearched(list)
	return p.eachImage(ctx, list, id, func(at resource, volume string) error {
		return p.api.removeImage(ctx, at.Node, at.Storage, volume)
	})
}

// reportUnsearched logs, once for each time that a node is offline, that its storage is not
// searched for images.
func (p *Provider) reportUnsearched(list []resource) {
	p.mu.Lock()
	defer p.mu.Unlock()
	online := onlineNodes(list)
	maps.DeleteFunc(p.unsearched, func(node string, _ bool) bool { return online[node] })
	for _, r := range list {
		if r.Type != "storage" || r.Storage != p.o.ISOStorage || r.Shared == 1 || online[r.Node] || p.unsearched[r.Node] {
			continue
		}
		p.unsearched[r.Node] = true
		p.log.Warn("node is offline: images of machines that are deleted now may stay on it", "node", r.Node, "storage", r.Storage, "remedy", "delete them by hand: "+imagePrefix("<instance ID>")+"*.iso")
	}
}

// onlineNodes returns the nodes that are online in a listing.
func onlineNodes(list []resource) map[string]bool {
	out := map[string]bool{}
	for _, r := range list {
		if r.Type == "node" && r.Status == "online" {
			out[r.Node] = true
		}
	}
	return out
}

// eachImage calls f with the images of a machine on nodes that are online, until it fails.
func (p *Provider) eachImage(ctx context.Context, list []resource, id nstance.InstanceID, f func(at resource, volume string) error) error {
	online, visible := onlineNodes(list), false
	for _, r := range list {
		if r.Type != "storage" || r.Storage != p.o.ISOStorage || !online[r.Node] {
			continue
		}
		visible = true
		volumes, err := p.api.images(ctx, r.Node, r.Storage)
		if err != nil {
			return err
		}
		for _, v := range volumes {
			if strings.HasPrefix(v, p.o.ISOStorage+":iso/"+imagePrefix(id)) {
				if err := f(r, v); err != nil {
					return err
				}
			}
		}
		if r.Shared == 1 {
			return nil
		}
	}
	if !visible {
		return &nstance.Error{Code: nstance.Unavailable, Msg: "storage " + p.o.ISOStorage + " is not visible, so images may be left in it",
			Remedy: "give the token Datastore.Audit on /storage/" + p.o.ISOStorage}
	}
	return nil
}

// destroy stops a machine and removes it with its disks.
func (p *Provider) destroy(ctx context.Context, w *work) error { return p.retry(ctx, w, p.destroyStep) }

func (p *Provider) destroyStep(ctx context.Context, w *work) (done bool, err error) {
	f, err := p.reread(ctx, w)
	if err != nil || f == nil {
		return err == nil, err
	}
	if f.lock == "clone" { // a task has it; if that died, an operator has to unlock it
		return false, nstance.Errorf(nstance.Unavailable, "VMID %d is locked (clone): if no task works on it, use qm unlock %d", f.VMID, f.VMID)
	}
	now, err := p.unmanaged(ctx, f)
	if err != nil {
		return false, err
	}
	path := vmPath(f.node, f.VMID)
	if now.Status == "running" {
		if err := p.api.do(ctx, path+"/status/stop", map[string]string{"overrule-shutdown": "1"}); err != nil {
			return false, err
		}
		if f, err = p.reread(ctx, w); err != nil || f == nil {
			return err == nil, err
		}
	}
	if !f.configured() {
		if err := p.unprotect(ctx, f); err != nil {
			return false, err
		}
	}
	// Never destroy-unreferenced-disks: it destroys every disk whose name has the VMID, on
	// all storage, and another cluster that shares the storage has VMIDs of its own
	// (qemu-server, QemuServer.pm destroy_vm). What the configuration names goes without it.
	upid, err := p.api.remove(ctx, path+"?purge=1")
	if err == nil {
		err = p.api.wait(ctx, upid)
	}
	return false, err // until it is seen to be gone
}
