package proxmox

import (
	"context"
	"errors"
	"fmt"
	"maps"
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

// clone uploads the image with the user data and starts the clone.
func (p *Provider) clone(ctx context.Context, list []resource, pl plan) (nstance.Machine, error) {
	i := slices.IndexFunc(p.o.vmids(pl.spec.ID), func(vmid int) bool {
		return !slices.ContainsFunc(list, func(r resource) bool { return r.VMID == vmid })
	})
	if i < 0 {
		return nstance.Machine{}, nstance.FieldError("options.vmid_max", "widen vmid_min to vmid_max in shard.provider.options", "all %d VMIDs that %s may have are taken", maxProbes, pl.spec.ID)
	}
	m := pl.marks(p.o.vmids(pl.spec.ID)[i])
	image := imageName(m.ID, pl.print)
	m.Config[pl.seedDrive()] = p.o.ISOStorage + ":iso/" + image + ",media=cdrom"
	notes, err := m.notes()
	if err != nil {
		return nstance.Machine{}, err
	}
	p.mu.Lock()
	at, err := p.place(list, pl)
	w := newWork(workCreate, m, at.node)
	if w.reserved = at.memory; err == nil {
		p.enter(w)
	}
	p.mu.Unlock()
	if err == nil {
		if err = p.checkInherited(ctx, at.template); err != nil {
			close(w.done)
			p.drop(w)
		}
	}
	if err != nil {
		return nstance.Machine{}, err
	}
	if err = p.startClone(ctx, w, pl, at, image, notes); err != nil {
		close(w.done)
		p.drop(w)
		// After a Conflict it may be the image of the same machine, which another
		// server makes.
		if !errors.Is(err, nstance.Ambiguous) && !errors.Is(err, nstance.Conflict) {
			p.discardImage(ctx, w.node, image)
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

// checkInherited refuses a template with a hook script. Its clones would run it on their
// node, and no token may take it from them: only root@pam itself can (qemu-server,
// API2/Qemu.pm check_vm_modify_config_perm).
func (p *Provider) checkInherited(ctx context.Context, template resource) error {
	c, err := p.api.config(ctx, template.Node, template.VMID)
	if err != nil {
		return movedOrGone(template, err)
	}
	if hook := c.all["hookscript"]; hook != "" {
		return nstance.FieldError("args.template", "remove it from the template with qm set "+itoa(template.VMID)+" --delete hookscript",
			"template %d has the hook script %.64q, which clones inherit and no token can remove", template.VMID, hook)
	}
	return nil
}

func (p *Provider) startClone(ctx context.Context, w *work, pl plan, at placement, image, notes string) error {
	seed, err := nocloud.Seed(string(w.marks.ID), string(w.marks.ID), pl.spec.UserData, nil)
	if err != nil {
		return nstance.Errorf(nstance.Internal, "the image with the user data: %w", err)
	}
	p.mu.Lock()
	w.seed = seed
	p.mu.Unlock()
	// Its name has the fingerprint of the spec: what it may overwrite is the same.
	if err = p.api.upload(ctx, w.node, p.o.ISOStorage, image, seed); err != nil {
		return err
	}
	params := map[string]string{"newid": itoa(w.marks.VMID), "name": string(w.marks.ID), "description": notes, "full": "0"}
	if pl.args.Full {
		params["full"] = "1"
	}
	if pl.args.Storage != "" {
		params["storage"] = pl.args.Storage
	}
	if p.o.Pool != "" {
		params["pool"] = p.o.Pool
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
			p.discardImage(ctx, w.node, imageName(w.marks.ID, w.marks.Print))
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
	path := vmPath(f.node, f.VMID)
	if !f.configured() {
		if err := p.unprotect(ctx, f); err != nil {
			return false, err
		}
		if err := p.configure(ctx, w, f, f.firstConfig()); err != nil {
			return false, err
		}
	}
	if err := p.start(ctx, f); err != nil {
		return false, err
	}
	return true, p.api.do(ctx, path+"/config", map[string]string{"tags": f.marks.tags(false)})
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
	return p.api.do(ctx, vmPath(f.node, f.VMID)+"/config", map[string]string{"protection": "0"})
}

// inherited are options that a clone must not have from its template, although it gets
// every option of it (qemu-server, API2/Qemu.pm clone_vm: "copy everything else"): a guest
// that does not run, that ends when it reboots, or whose clock is wrong.
var inherited = []string{"freeze", "reboot", "startdate", "autostart"}

// firstConfig returns what is set after the clone: marks, size, image, and what the
// template would decide otherwise.
func (f *found) firstConfig() map[string]string {
	config := map[string]string{"tags": f.marks.tags(true)}
	var remove []string
	for _, key := range inherited {
		if f.config[key] != "" {
			remove = append(remove, key)
		}
	}
	if f.Config["cores"] != "" { // the type's cores are all that it has
		config["sockets"] = "1"
		if f.config["vcpus"] != "" {
			remove = append(remove, "vcpus")
		}
	}
	if memory := f.Config["memory"]; memory != "" && atoi(f.config["balloon"]) > 0 {
		config["balloon"] = memory // the template's may be more, which is refused
	}
	for key, value := range f.config { // another one would be read in place of the image
		if driveName.MatchString(key) && strings.Contains(value, "cloudinit") && f.Config[key] == "" {
			config[key] = "none,media=cdrom"
		}
	}
	if maps.Copy(config, f.Config); len(remove) > 0 {
		config["delete"] = strings.Join(remove, ",")
	}
	return config
}

// configure writes a machine's first configuration. The image may be gone: a
// server whose create of the same machine failed has removed its own.
func (p *Provider) configure(ctx context.Context, w *work, f *found, config map[string]string) error {
	err := p.api.do(ctx, vmPath(f.node, f.VMID)+"/config", config)
	if err == nil || w.seed == nil || !strings.Contains(err.Error(), ":iso/") {
		return err
	}
	return errors.Join(err, p.api.upload(ctx, f.node, p.o.ISOStorage, imageName(f.ID, f.Print), w.seed))
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

// imageName names the image with a machine's user data.
func imageName(id nstance.InstanceID, fingerprint string) string {
	return imagePrefix(id) + fingerprint + ".iso"
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
