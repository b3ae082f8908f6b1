package proxmox

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/nstance-go/nstance"
)

// A found machine is one that is ours by all of its marks.
type found struct {
	marks
	node   string
	tags   string
	lock   string
	silent bool // its node does not answer: nothing is known but its marks
	listed resource
	config map[string]string // every option; nil: it was not read
}

// errNameless says that a VMID which the machine may have is in use by a clone,
// or something half deleted, that does not show its name: nothing is known.
var errNameless = errors.New("its VMID is in use by a machine that shows no name yet")

// find looks for a machine in a listing and reads its configuration on the node
// that has it: names and statuses in listings are up to 10 s old. Nil without
// an error means that no machine in the listing has that ID.
func (p *Provider) find(ctx context.Context, list []resource, id nstance.InstanceID) (*found, error) {
	may, err := p.mayHave(ctx, list, id)
	if err != nil {
		return nil, err
	}
	for _, r := range list {
		if r.Type != "qemu" || r.Template == 1 {
			continue
		}
		if r.Name != string(id) && !slices.Contains(splitTags(r.Tags), tagID+string(id)) && !may[r.VMID] {
			continue
		}
		if m, tagged := parseTags(r.Tags); tagged && m.VMID == r.VMID && m.ID != id && r.Name != string(id) {
			continue // another one, whether or not its node answers
		}
		c, err := p.api.config(ctx, r.Node, r.VMID)
		if err != nil {
			return nil, movedOrGone(r, err)
		}
		if f := identify(r, c); f != nil && f.ID == id {
			return f, nil
		}
		if altered(r, c, id, may[r.VMID]) {
			return nil, &nstance.Error{Code: nstance.Conflict, Msg: "the marks of machine " + string(id) + ", VMID " + itoa(r.VMID) + ", were changed",
				Remedy: "give it its name, tags and notes back, or delete it by hand"}
		}
		if may[r.VMID] && c.Name == "" && (c.Lock == "clone" || c.Lock == "destroyed") {
			return nil, nstance.Errorf(nstance.Unavailable, "machine %s, VMID %d: %w", id, r.VMID, errNameless)
		}
	}
	return nil, nil
}

// mayHave returns the VMIDs in a listing that a machine may have although nothing else in
// the listing says so.
func (p *Provider) mayHave(ctx context.Context, list []resource, id nstance.InstanceID) (map[int]bool, error) {
	may := map[int]bool{}
	for _, vmid := range p.o.vmids(id) {
		may[vmid] = true
	}
	if !slices.ContainsFunc(list, func(r resource) bool { return r.nameless() && !p.worksOnOther(id, r.VMID) }) {
		return may, nil
	}
	static, err := p.intended(ctx, list, id)
	maps.Copy(may, static)
	return may, err
}

// nameless reports whether a machine may have a static address and does not show its name
// yet. pvestatd makes a name of the VMID where there is none (qemu-server, QemuServer.pm
// vmstatus).
func (r resource) nameless() bool {
	_, tagged := parseTags(r.Tags)
	return r.Type == "qemu" && pooled(r.VMID) && !tagged && (r.Name == "" || r.Name == "VM "+itoa(r.VMID) || r.Lock == "clone" || r.Lock == "destroyed")
}

// read returns the machine behind a line of a listing, or nil if it is not ours.
func (p *Provider) read(ctx context.Context, r resource) (*found, error) {
	c, err := p.api.config(ctx, r.Node, r.VMID)
	if err != nil {
		return nil, movedOrGone(r, err)
	}
	return identify(r, c), nil
}

// identify requires name, notes or tags, and the VMID in them to agree. A copy
// that was made of a machine of ours has its notes and tags, but not its VMID.
func identify(r resource, c vmConfig) *found {
	m, ok := parseNotes(c.Description)
	if !ok {
		m, ok = parseTags(c.Tags)
	}
	if !ok || m.VMID != r.VMID || c.Name != string(m.ID) {
		return nil
	}
	if t, tagged := parseTags(c.Tags); tagged && (t.ID != m.ID || t.Owner != m.Owner) {
		return nil
	}
	return &found{marks: m, node: r.Node, tags: c.Tags, lock: c.Lock, listed: r, config: c.all}
}

// altered reports whether some of a machine's marks are there and others are
// not: it is neither to be touched nor gone. A copy is not meant, whose marks
// name another VMID.
func altered(r resource, c vmConfig, id nstance.InstanceID, mayBe bool) bool {
	notes, _ := parseNotes(c.Description)
	tags, _ := parseTags(c.Tags)
	return notes.ID == id && notes.VMID == r.VMID || tags.ID == id && tags.VMID == r.VMID || mayBe && c.Name == string(id)
}

func movedOrGone(r resource, err error) error {
	if missing(err) {
		return nstance.Errorf(nstance.Unavailable, "machine %d is not on node %s any more: %w", r.VMID, r.Node, err)
	}
	return err
}

// absent makes sure that a listing without a machine means that there is none:
// Proxmox VE leaves out what the token may not see, without an error. What a node has that
// left the cluster is listed, and after five minutes no longer as a template.
func (p *Provider) absent(ctx context.Context, list []resource) error {
	const remedy = "give the token VM.Audit on /vms, with propagation"
	gone := offline(list)
	mayBeTemplate := func(r resource) bool {
		return r.Type == "qemu" && (r.Template == 1 || gone[r.Node] && r.Status == "unknown" && !ours(r.Tags))
	}
	if !slices.ContainsFunc(list, mayBeTemplate) {
		return &nstance.Error{Code: nstance.Unavailable, Msg: "no template is visible, so the listing proves nothing", Remedy: remedy}
	}
	ok, err := p.api.maySee(ctx)
	if err == nil && !ok {
		err = &nstance.Error{Code: nstance.Unavailable, Msg: "the token may not see all machines, so the listing proves nothing", Remedy: remedy}
	}
	return err
}

// Get implements [nstance.Provider]. A machine that is found half made is
// finished in the background.
func (p *Provider) Get(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
	if ctx.Err() != nil {
		return nstance.Machine{}, nstance.Errorf(nstance.Unavailable, "nothing was asked: %w", ctx.Err())
	}
	list, err := p.api.resources(ctx)
	if err != nil {
		return nstance.Machine{}, err
	}
	f, err := p.find(ctx, list, id)
	w := p.workOf(id)
	switch {
	case f != nil:
		p.resume(f)
		return p.view(ctx, f)
	case w != nil && w.creating() && (err == nil || errors.Is(err, errNameless)):
		return p.explain(w.machine()), nil
	case err != nil:
		return nstance.Machine{}, err
	}
	if err := p.absent(ctx, list); err != nil {
		return nstance.Machine{}, err
	}
	if w != nil && w.failure() != nil {
		return nstance.Machine{}, nstance.Lost(causeOf(w.failure()), "machine %s was not made: %v", id, w.failure())
	}
	return nstance.Machine{}, nstance.Errorf(nstance.NotFound, "no machine %.64s", id)
}

// view returns a found machine. What is listed as stopped is asked itself: a
// listing is late, and a machine that was just started is not dead.
func (p *Provider) view(ctx context.Context, f *found) (nstance.Machine, error) {
	m := p.explain(f.machine())
	if m.Status != nstance.StatusStopped && m.Status != nstance.StatusUnknown && (m.Status != nstance.StatusRunning || f.lock == "") {
		return m, nil
	}
	now, err := p.api.current(ctx, f.node, f.VMID)
	if err != nil {
		return nstance.Machine{}, movedOrGone(f.listed, err)
	}
	f.listed.Status, f.lock = now.Status, now.Lock
	return p.explain(f.machine()), nil
}

// explain says of a machine that is being made what the cluster refuses of that, if it does.
func (p *Provider) explain(m nstance.Machine) nstance.Machine {
	if w := p.workOf(m.ID); m.Status == nstance.StatusPending && w != nil && w.creating() {
		if err := w.obstacle(); err != nil {
			m.CauseText = err.Error()
		}
	}
	return m
}

// machine returns the machine as the listing shows it.
func (f *found) machine() nstance.Machine {
	return nstance.Machine{
		ID: f.ID, ProviderID: itoa(f.VMID), Owner: f.Owner, Group: f.Group, CreatedAt: f.CreatedAt, Epoch: f.Epoch,
		InstanceType: f.InstanceType, Zone: f.node, Market: nstance.OnDemand, Status: f.status(),
	}
}

func (f *found) status() nstance.MachineStatus {
	switch {
	case f.silent:
		return nstance.StatusUnknown
	case f.lock == "destroyed":
		return nstance.StatusDeleting
	case f.lock == "suspending":
		return nstance.StatusStopping
	case f.listed.Status == "running":
		return nstance.StatusRunning
	case f.unfinished():
		return nstance.StatusPending
	case f.listed.Status == "stopped":
		return nstance.StatusStopped
	}
	return nstance.StatusUnknown
}

// unfinished reports whether the machine was never started.
func (f *found) unfinished() bool {
	all := splitTags(f.tags)
	return f.lock == "clone" || !slices.Contains(all, tag) || slices.Contains(all, tagNew)
}

// sameOwner fails with Conflict for another owner's machine.
func (f *found) sameOwner(o nstance.Owner) error {
	if f.Owner != o {
		return nstance.Errorf(nstance.Conflict, "machine %s, VMID %d, belongs to %s/%s of another owner", f.ID, f.VMID, f.Owner.Cluster, f.Owner.Shard)
	}
	return nil
}

// parsesAsID reports whether a name is one that we give.
func parsesAsID(name string) bool {
	_, err := nstance.ParseInstanceID(strings.TrimSpace(name))
	return err == nil
}
