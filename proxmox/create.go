package proxmox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/nocloud"
)

// cloneGrace is how long Create waits for a clone, so that what fails at once is
// the answer to the create. A linked clone is often done by then.
const cloneGrace = 3 * time.Second

// Create implements [nstance.Provider]: it returns when the cluster clones the
// template.
func (p *Provider) Create(ctx context.Context, spec nstance.MachineSpec) (nstance.Machine, error) {
	pl, err := p.o.plan(spec)
	if err != nil {
		return nstance.Machine{}, err
	}
	unlock, err := p.lock(ctx, spec.ID)
	if err != nil {
		return nstance.Machine{}, err
	}
	defer unlock()
	if w := p.workOf(spec.ID); w != nil && w.active() {
		if w.kind != workCreate {
			return nstance.Machine{}, nstance.Errorf(nstance.Conflict, "machine %s is being changed: %s", spec.ID, w.kind)
		}
		return w.machine(), pl.same(w.marks)
	}
	for range maxProbes {
		var m nstance.Machine
		if m, err = p.createOnce(ctx, pl); !errors.Is(err, errTaken) {
			return m, err
		}
	}
	return nstance.Machine{}, err
}

// errTaken says that another machine got the VMID first.
var errTaken = errors.New("the VMID was taken meanwhile")

// createOnce returns the machine that exists, or clones one.
func (p *Provider) createOnce(ctx context.Context, pl plan) (nstance.Machine, error) {
	list, err := p.api.resources(ctx)
	if err != nil {
		return nstance.Machine{}, err
	}
	f, err := p.find(ctx, list, pl.spec.ID)
	if err != nil {
		return nstance.Machine{}, err
	}
	if f != nil {
		if err := pl.same(f.marks); err != nil {
			return nstance.Machine{}, err
		}
		p.resume(f)
		return p.view(ctx, f)
	}
	if err := p.absent(ctx, list); err != nil {
		return nstance.Machine{}, err
	}
	return p.clone(ctx, list, pl)
}

// same fails with Conflict when a machine with these marks is not what the plan
// asks for.
func (pl plan) same(m marks) error {
	f := found{marks: m}
	if err := f.sameOwner(pl.spec.Owner); err != nil {
		return err
	}
	if m.Print != "" && m.Print != pl.print {
		return nstance.Errorf(nstance.Conflict, "machine %s exists with other parameters", m.ID)
	}
	return nil
}

// claim chooses the VMID of a machine, and with it a static address if it is to have one. It
// needs p.mu.
func (p *Provider) claim(list []resource, pl plan) (marks, error) {
	taken := map[int]bool{}
	for _, r := range list {
		taken[r.VMID] = true
	}
	var m marks
	if pl.pool == nil {
		may := p.o.vmids(pl.spec.ID)
		i := slices.IndexFunc(may, func(vmid int) bool { return !taken[vmid] })
		if i < 0 {
			return m, nstance.FieldError("options.vmid_max", "widen vmid_min to vmid_max in shard.provider.options", "all %d VMIDs that %s may have are taken", maxProbes, pl.spec.ID)
		}
		m = pl.marks(may[i])
	} else {
		for _, w := range p.works { // what a listing does not have yet
			taken[w.marks.VMID] = taken[w.marks.VMID] || w.creating()
		}
		a, ok := pl.pool.free(pl.spec.ID, taken)
		if !ok {
			return m, nstance.Errorf(nstance.Capacity, "all %d addresses of address pool %s are in use", pl.pool.size(), pl.pool.name)
		}
		m = pl.marks(vmidOf(a))
		m.Config["ipconfig0"] = pl.pool.ipConfig(a)
	}
	m.Config[pl.seedDrive()] = p.o.ISOStorage + ":iso/" + m.image() + ",media=cdrom"
	return m, nil
}

// reserve chooses VMID, template and node of a machine and records the work of making it.
func (p *Provider) reserve(list []resource, pl plan, mapped mapping) (w *work, at placement, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m, err := p.claim(list, pl)
	if err != nil {
		return nil, at, err
	}
	if at, err = p.place(list, pl, mapped); err != nil {
		return nil, at, err
	}
	w = newWork(workCreate, m, at.node)
	w.reserved = at.memory
	p.enter(w)
	return w, at, nil
}

// clone uploads the image with the user data and starts the clone.
func (p *Provider) clone(ctx context.Context, list []resource, pl plan) (nstance.Machine, error) {
	mapped, err := p.mapped(ctx, pl)
	if err != nil {
		return nstance.Machine{}, err
	}
	w, at, err := p.reserve(list, pl, mapped)
	if err != nil {
		return nstance.Machine{}, err
	}
	if err = p.checkInherited(ctx, at.template, pl); err == nil {
		err = p.startClone(ctx, w, pl, at)
	}
	if err != nil {
		close(w.done)
		p.drop(w)
		// After a Conflict it may be the image of the same machine, which another
		// server makes.
		if w.seed != nil && !errors.Is(err, nstance.Ambiguous) && !errors.Is(err, nstance.Conflict) {
			p.discardImage(ctx, w.node, w.marks.image())
		}
		return nstance.Machine{}, taken(err)
	}
	p.begin(w, p.finish)
	grace := time.NewTimer(cloneGrace)
	defer grace.Stop()
	select {
	case <-w.cloned:
	case <-grace.C:
	case <-ctx.Done():
	}
	if err := w.failure(); err != nil && !errors.Is(err, context.Canceled) {
		return nstance.Machine{}, taken(err)
	}
	return w.machine(), nil
}

func (p *Provider) startClone(ctx context.Context, w *work, pl plan, at placement) error {
	notes, err := w.marks.notes()
	if err != nil {
		return err
	}
	var network []byte
	if pl.pool != nil {
		if network, err = pl.networkConfig(pl.pool.addressOf(w.marks.VMID)); err != nil {
			return nstance.Errorf(nstance.Internal, "the configuration of the network: %w", err)
		}
	}
	seed, err := nocloud.Seed(string(w.marks.ID), string(w.marks.ID), pl.spec.UserData, network)
	if err != nil {
		return nstance.Errorf(nstance.Internal, "the image with the user data: %w", err)
	}
	p.mu.Lock()
	w.seed = seed
	p.mu.Unlock()
	if err = p.api.upload(ctx, w.node, p.o.ISOStorage, w.marks.image(), seed); err != nil {
		return err
	}
	params := map[string]string{"newid": itoa(w.marks.VMID), "name": string(w.marks.ID), "description": notes, "full": "0"}
	if pl.args.Full {
		params["full"] = "1"
	}
	if pl.args.Storage != "" {
		params["storage"] = pl.args.Storage
	}
	if pool := cmp.Or(pl.args.Pool, p.o.Pool); pool != "" {
		params["pool"] = pool
	}
	if at.node != at.template.Node {
		params["target"] = at.node
	}
	upid, err := p.api.post(ctx, vmPath(at.template.Node, at.template.VMID)+"/clone", params)
	if err == nil && upid == "" {
		err = nstance.Errorf(nstance.Ambiguous, "the cluster named no task for the clone")
	}
	p.mu.Lock()
	w.upid = upid
	p.mu.Unlock()
	return err
}

// taken marks the errors after which the next VMID is tried.
func taken(err error) error {
	if errors.Is(err, nstance.Conflict) {
		return fmt.Errorf("%w: %w", errTaken, err)
	}
	return err
}

func (pl plan) seedDrive() string {
	if pl.args.SeedDrive != "" {
		return pl.args.SeedDrive
	}
	return "ide2"
}

// finish follows the clone, then configures, marks and starts the machine.
func (p *Provider) finish(ctx context.Context, w *work) error {
	if err := p.api.wait(ctx, w.upid); err != nil && !errors.Is(err, nstance.Ambiguous) {
		if !errors.Is(err, nstance.Conflict) { // the task frees disks and configuration itself
			p.discardImage(ctx, w.node, w.marks.image())
		}
		return err
	}
	close(w.cloned)
	return p.retry(ctx, w, p.finishStep)
}

// resume finishes a machine that an earlier provider left half made.
func (p *Provider) resume(f *found) {
	if !f.unfinished() || f.lock == "destroyed" {
		return
	}
	former := p.workOf(f.ID)
	if former != nil && former.active() {
		return
	}
	w := newWork(workCreate, f.marks, f.node)
	w.resumed = true
	if former != nil && former.kind == workCreate && !errors.Is(former.failure(), context.Canceled) { // a listing may be older than its end
		w.before = former.failure()
	}
	p.begin(w, p.finish)
}

// finishStep does what is left of making a machine, as far as it can be done
// now. Each act follows a fresh look at the machine and its identity.
func (p *Provider) finishStep(ctx context.Context, w *work) (done bool, err error) {
	f, err := p.reread(ctx, w)
	switch {
	case err != nil:
		return false, err
	case f == nil && w.before != nil:
		return true, w.before
	case f == nil:
		return true, nstance.Errorf(nstance.Conflict, "machine %s is gone", w.marks.ID)
	case f.lock == "destroyed":
		return true, nstance.Errorf(nstance.Conflict, "machine %s is being deleted", w.marks.ID)
	case !f.unfinished():
		return true, nil
	case f.lock == "clone":
		return false, nil
	}
	if !f.configured() {
		if err := p.unprotect(ctx, f); err != nil {
			return false, err
		}
		if err := p.grow(ctx, f); err != nil {
			return false, err
		}
		if err := p.configure(ctx, w, f, f.firstConfig()); err != nil {
			return false, err
		}
	}
	if err := p.start(ctx, f); err != nil {
		return false, err
	}
	return true, p.api.configure(ctx, f.node, f.VMID, map[string]string{"tags": f.marks.tags(false)})
}

// configured reports whether the machine has had its first configuration: what it has then
// was set by this provider, or by an operator later.
func (f *found) configured() bool {
	_, tagged := parseTags(f.tags)
	return tagged
}

// unprotect ends the protection that a clone has from its template, in a call of its own:
// while it stands no drive may be removed, nor the machine (qemu-server, QemuConfig.pm
// check_protection).
func (p *Provider) unprotect(ctx context.Context, f *found) error {
	if f.config["protection"] != "1" {
		return nil
	}
	return p.api.configure(ctx, f.node, f.VMID, map[string]string{"protection": "0"})
}

// configure writes a machine's first configuration. The image may be gone: a
// server whose create of the same machine failed has removed its own.
func (p *Provider) configure(ctx context.Context, w *work, f *found, config map[string]string) error {
	err := p.api.configure(ctx, f.node, f.VMID, config)
	if err == nil || w.seed == nil || !strings.Contains(err.Error(), ":iso/") {
		return err
	}
	return errors.Join(err, p.api.upload(ctx, f.node, p.o.ISOStorage, f.image(), w.seed))
}

// start starts a machine unless it runs. What it does afterwards decides, not
// the task: one that failed may have started it all the same.
func (p *Provider) start(ctx context.Context, f *found) error {
	now, err := p.unmanaged(ctx, f)
	if err != nil || now.Status == "running" {
		return err
	}
	failed := p.api.do(ctx, vmPath(f.node, f.VMID)+"/status/start", nil)
	if now, err = p.unmanaged(ctx, f); err != nil || now.Status == "running" {
		return err
	}
	if failed == nil {
		failed = nstance.Errorf(nstance.Unavailable, "machine %s is %s after its start", f.ID, now.Status)
	}
	return failed
}

// unmanaged reads what a machine does, and refuses one under high availability:
// both would start and stop it.
func (p *Provider) unmanaged(ctx context.Context, f *found) (current, error) {
	now, err := p.api.current(ctx, f.node, f.VMID)
	if err == nil && now.HA.Managed != 0 {
		err = &nstance.Error{Code: nstance.Conflict, Msg: "machine " + string(f.ID) + ", VMID " + itoa(f.VMID) + ", is under high availability",
			Remedy: "remove it with ha-manager remove vm:" + itoa(f.VMID)}
	}
	return now, err
}

// discardImage deletes an image whose machine was not made. Where it fails,
// Delete does it.
func (p *Provider) discardImage(ctx context.Context, node, image string) {
	err := p.api.removeImage(ctx, node, p.o.ISOStorage, p.o.ISOStorage+":iso/"+image)
	if err != nil {
		p.log.Warn("image stays until its instance is deleted", "image", image, "node", node, "code", nstance.CodeOf(err), "err", err)
	}
}

func imagePrefix(id nstance.InstanceID) string { return "nstance-" + string(id) + "-" }
