package reconcile

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
)

// Observe records a fact and returns at once. Facts about instances that
// the shard does not know are dropped, as all are before it is read: they are sent again,
// and a notice until its Ack is called.
func (r *Reconciler) Observe(f nstance.Fact) {
	if d, ok := f.(nstance.Desired); ok {
		r.recordDesired(r.desire(d))
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.opts.Now()
	switch f := f.(type) {
	case nstance.Balancing:
		r.balance.Configure(f.LoadBalancers)
	case nstance.Registered:
		r.withMember(f.ID, func(m *member) { r.handleRegistered(m, now) })
	case nstance.Connected:
		r.withMember(f.ID, func(m *member) { m.connected, m.streamBrokenAt = true, time.Time{}; m.healthTrack.Connected(now) })
	case nstance.Disconnected:
		r.withMember(f.ID, func(m *member) { r.handleDisconnected(m, f.Clean, now) })
	case nstance.Reported:
		r.withMember(f.Report.InstanceID, func(m *member) { r.handleReport(m, f.Report, now) })
	case nstance.FilesReported:
		r.withMember(f.ID, func(m *member) { m.updateFiles(f) })
	case nstance.Noticed:
		r.withMember(f.ID, func(m *member) { r.handleNotice(m, f) })
	case nstance.DrainedWithoutServer:
		r.withMember(f.ID, func(m *member) { r.handleLoneDrain(m, f) })
	case nstance.MachineSeen:
		r.handleMachine(f.Machine, now)
	case nstance.MachineMissing:
		r.withMember(f.ID, func(m *member) { r.handleMissing(m, absence{cause: f.Cause}, now) })
	}
}

// Desire replaces the desired values of every group, as Observe does with a
// Desired. It fails with Invalid, and changes nothing, when one of them has no
// proper name or a definition without a hash.
func (r *Reconciler) Desire(groups []nstance.Group) error {
	return r.desire(nstance.Desired{Groups: groups})
}

// Remove requests that a group's managed members are drained and deleted. Then the
// group is gone. Instances on demand stay until they have reached their age. It holds
// for this term, until a Desired names the group again:
// a caller that stores groups sets Removing there. Fails with NotFound.
func (r *Reconciler) Remove(key nstance.GroupKey) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.groups[key]
	if g == nil || g.isGone() {
		return nstance.Errorf(nstance.NotFound, "no group %s", key)
	}
	r.setRemoving(g, true)
	r.queue.add(key, false)
	return nil
}

// recordDesired records whether desired groups were refused: what Observe cannot
// return is an alarm, and needs attention until others are accepted.
func (r *Reconciler) recordDesired(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refusedGroups = err
	if err == nil {
		return
	}
	r.log.Error("desired groups refused", "err", err)
	r.opts.Journal(nstance.Event{
		Type: nstance.EventAlarm, Time: r.opts.Now().UTC(), Reason: "desired groups are refused, the former ones stay", Code: nstance.CodeOf(err), Error: err.Error(),
	})
}

// desire replaces the desired values of all groups. A group that is not among
// them keeps its values: nothing is removed by omission. An unchanged group costs
// nothing.
func (r *Reconciler) desire(d nstance.Desired) error {
	specs, news, err := r.desiredSpecsFor(d.Groups)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, w := range specs {
		if !news[i] {
			continue
		}
		g := r.groupOf(w.spec.Key)
		r.changeBalancers(g, w.spec.Definition.LoadBalancers)
		r.setRemoving(g, w.spec.Removing)
		g.configure(w, r.opts.Now().UTC())
		r.resolveDesired(g)
		r.queue.add(g.key, false)
	}
	r.dropUndefined(d.Groups)
	r.spot.ask()
	return nil
}

// desiredSpecsFor returns what groups are to be, and which of them differ from what is
// known. Hashes are computed only for those: that is expensive.
func (r *Reconciler) desiredSpecsFor(groups []nstance.Group) (specs []desiredSpec, news []bool, err error) {
	if err := checkKeys(groups); err != nil {
		return nil, nil, err
	}
	specs, news = r.configured(groups)
	for i, spec := range groups {
		if news[i] = news[i] || !reflect.DeepEqual(specs[i].spec, spec); !news[i] {
			continue
		}
		if err = spec.Validate(""); err == nil {
			specs[i], err = desiredSpecFor(spec)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("group %s: %w", spec.Key, err)
		}
	}
	return specs, news, nil
}

// checkKeys refuses groups with the same key.
func checkKeys(groups []nstance.Group) error {
	seen := make(map[nstance.GroupKey]bool, len(groups))
	for i := range groups {
		if key := groups[i].Key; seen[key] {
			return nstance.FieldError("group", "name each group once", "group %s is listed twice", key)
		}
		seen[groups[i].Key] = true
	}
	return nil
}

// configured returns what groups should have been so far, and which of them must be
// resolved again in any case.
func (r *Reconciler) configured(groups []nstance.Group) (was []desiredSpec, anew []bool) {
	was, anew = make([]desiredSpec, len(groups)), make([]bool, len(groups))
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range groups {
		g := r.groups[groups[i].Key]
		if anew[i] = g == nil; !anew[i] {
			was[i] = g.configured
		}
	}
	return was, anew
}

// planMembers plans the groups of the given members.
func (r *Reconciler) planMembers(ids []nstance.InstanceID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range ids {
		r.withMember(id, func(m *member) { r.queue.add(m.group.key, true) })
	}
}

// subnetsInUse returns the subnets among which some group can choose, and others,
// sorted.
func (r *Reconciler) subnetsInUse(others []string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	used := map[string]bool{}
	for _, name := range others {
		used[name] = true
	}
	for _, g := range r.groups {
		if s := g.spec.Definition.Subnets; len(s) > 1 {
			for _, name := range s {
				used[name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(used))
}

// recordAddresses records free addresses as they were counted by a question that was
// asked then. What creates have taken since may not be in the count.
func (r *Reconciler) recordAddresses(free map[string]int, asked time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.admission.SetAddresses(free, asked)
	for _, m := range r.members {
		if m.subnet != "" && (!m.machineKnown() || !m.machineSince.Before(asked)) {
			r.admission.TakeAddress(m.subnet)
		}
	}
}

// recordZones records in which zones subnets are.
func (r *Reconciler) recordZones(zones map[string]string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.admission.SetZones(zones)
}
