package reconcile

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
)

// Observe records a fact, or what a pointer to one points to, and returns at once. Facts
// about instances that the shard does not know are dropped, as all are before it is read:
// they are sent again, and a notice until its Ack is called. What is no fact of package
// nstance is an alarm.
func (r *Reconciler) Observe(f nstance.Fact) {
	if at := reflect.ValueOf(f); at.Kind() == reflect.Pointer && !at.IsNil() {
		f, _ = at.Elem().Interface().(nstance.Fact)
	}
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
		r.withMember(f.ID, func(m *member) { r.handleConnected(m, now) })
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
		r.withMember(f.ID, func(m *member) { r.handleMissing(m, absence{cause: f.Cause, answer: clip.Words(f.CauseText)}, now) })
	default:
		r.log.Error("not a fact", "type", fmt.Sprintf("%T", f))
		r.opts.Journal(nstance.Event{
			Type: nstance.EventAlarm, Time: now.UTC(), Code: nstance.Invalid,
			Reason: fmt.Sprintf("a %T was observed, which is no fact: pass one of package nstance itself", f),
		})
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
		return errNoGroup(key)
	}
	r.setRemoving(g, true)
	r.queue.Add(key, false)
	return nil
}

func (r internals) DesireGroup(g nstance.Group) {
	if err := r.desireSome([]nstance.Group{g}); err != nil {
		r.recordDesired(err)
	}
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
	if err := r.desireSome(d.Groups); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dropUndefined(d.Groups)
	return nil
}

// desireSome replaces the desired values of some groups.
func (r *Reconciler) desireSome(groups []nstance.Group) error {
	specs, news, err := r.desiredSpecsFor(groups)
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
		r.queue.Add(g.key, false)
	}
	r.cloud.GroupsChanged()
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
		if err = errors.Join(spec.Validate(""), r.checkParking(spec.WarmPool)); err == nil {
			specs[i], err = desiredSpecFor(spec)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("group %s: %w", spec.Key, err)
		}
	}
	return specs, news, nil
}

// checkParking refuses stand-by machines that would never be parked.
func (r *Reconciler) checkParking(p nstance.WarmPool) error {
	if p.Size == 0 || p.Mode == nstance.ParkRunning || r.provider.Abilities().Parking != nil {
		return nil
	}
	return nstance.FieldError("warm_pool.mode", "use running, or a provider that is an nstance.Parker", "the provider cannot park machines")
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
		r.withMember(id, func(m *member) { r.queue.Add(m.group.key, true) })
	}
}
