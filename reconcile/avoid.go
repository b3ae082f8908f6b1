package reconcile

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/internal/admission"
	"github.com/nstance-go/nstance/reconcile/plan"
)

const (
	maxAvoided       = 64 // pools, by request
	longestAvoidance = 30 * 24 * time.Hour
	maxPoolName      = 128 // bytes of a zone or an instance type
)

// A Pool is capacity that machines are made from: of a zone, of an instance type, in a
// market, or of several of these together. An empty field stands for all.
type Pool struct {
	Zone         string             `json:"zone,omitempty"`
	InstanceType string             `json:"instance_type,omitempty"`
	Market       nstance.MarketType `json:"market,omitempty"`
}

// String returns the pool as nstance-admin pool takes it, such as "zone=a market=spot".
func (p Pool) String() string {
	var out []string
	for _, part := range []struct{ name, value string }{{"zone", p.Zone}, {"type", p.InstanceType}, {"market", string(p.Market)}} {
		if part.value != "" {
			out = append(out, part.name+"="+part.value)
		}
	}
	return strings.Join(out, " ")
}

// validate fails with Invalid unless p names something, in words that have no spaces.
func (p Pool) validate() error {
	if p == (Pool{}) {
		return nstance.FieldError("pool", "name a zone, an instance type or a market", "is empty")
	}
	for field, name := range map[string]string{"zone": p.Zone, "instance_type": p.InstanceType} {
		if len(name) > maxPoolName || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == '=' || r > '~' }) {
			return nstance.FieldError(field, "name it as the provider does", "%.40q is no name", name)
		}
	}
	switch p.Market {
	case "", nstance.Spot, nstance.OnDemand:
		return nil
	}
	return nstance.FieldError("market", "use spot or on-demand", "%.40q is no market", string(p.Market))
}

// An AvoidedPool is a pool in which no machine is made for a while.
type AvoidedPool struct {
	Pool
	Since  time.Time `json:"since"`
	Until  time.Time `json:"until,omitzero"` // zero: the cloud does not say
	Reason string    `json:"reason,omitempty"`
	By     string    `json:"by,omitempty"`    // the identity that asked for it
	Drain  bool      `json:"drain,omitempty"` // members that were made there before are replaced, as a rollout does
	Cloud  bool      `json:"cloud,omitempty"` // the cloud asks for it: it is not stored, and not for operators to end
}

// repeats reports whether other asks for what p is, as a call does whose answer was lost.
func (p AvoidedPool) repeats(other AvoidedPool) bool {
	near := p.Until.Sub(other.Until).Abs() < time.Minute
	p.Until = other.Until
	return near && p == other
}

// stands reports whether p is still avoided.
func (s *shard) stands(p *AvoidedPool, now time.Time) bool {
	return p.Until.IsZero() || !s.reached(p.Until, now)
}

// hold returns the hold of the whole shard that p is.
func (p *AvoidedPool) hold() HoldView {
	why := "no machine is made in " + p.String()
	if p.Drain {
		why += ", members there are replaced"
	}
	return HoldView{Hold: plan.Hold{Kind: plan.HoldAvoided, Reason: why + withMessage(p.because()) + "; " + p.remedy(), Until: p.Until}, Since: p.Since}
}

// name says in a hold of a group what is avoided, why, until when and what ends it.
func (p *AvoidedPool) name() string {
	text := p.String()
	if !p.Until.IsZero() {
		text += " until " + p.Until.UTC().Format(time.RFC3339)
	}
	return text + withMessage(p.because()) + ", " + p.remedy()
}

func (p *AvoidedPool) because() string {
	switch {
	case p.By == "":
		return p.Reason
	case p.Reason == "":
		return "asked for by " + p.By
	}
	return p.Reason + " (asked for by " + p.By + ")"
}

func (p *AvoidedPool) remedy() string {
	if p.Cloud {
		return "the cloud ends it"
	}
	return "nstance-admin pool release " + p.String() + " ends it"
}

// AvoidPool has no machine made in a pool until p.Until, in no group, not even to replace a
// loss. With p.Drain members that are there are replaced, as a rollout does, unless nothing
// else is permitted for them. For a pool that is avoided already it replaces duration,
// reason and drain; one that differs by less than a minute changes nothing. It returns what
// is avoided and whether that has changed, once it is durable. Fails with Invalid for a pool
// that makes no sense or more than 30 days, with Conflict when 64 pools are avoided already,
// and with Unavailable as Pause does. A dry run only checks.
func (r *Admin) AvoidPool(ctx context.Context, p AvoidedPool, dryRun bool) (stands AvoidedPool, changed bool, err error) {
	err = r.changePools(ctx, func(now time.Time) (bool, error) {
		stands, changed, err = r.checkAvoided(p, now)
		if err != nil || !changed || dryRun {
			return false, err
		}
		r.avoided = append(r.withoutPool(p.Pool), stands)
		r.publishShard(nstance.Event{Type: nstance.EventHoldStarted, Reason: stands.hold().text()})
		return true, nil
	})
	return stands, changed, err
}

// checkAvoided returns what is avoided if a request is accepted, and whether it changes
// anything.
func (s *shard) checkAvoided(p AvoidedPool, now time.Time) (stands AvoidedPool, changed bool, err error) {
	if err := p.validate(); err != nil {
		return p, false, err
	}
	if left := p.Until.Sub(now); left <= 0 || left > longestAvoidance+time.Minute { // the caller has another clock
		return p, false, nstance.FieldError("duration", "use more than 0 and at most 720h", "a pool cannot be avoided until %s", p.Until.UTC().Format(time.RFC3339))
	}
	p.Since, p.Until, p.Cloud = now.UTC(), p.Until.UTC(), false
	switch known := s.avoidedIndex(p.Pool); {
	case known >= 0:
		p.Since = s.avoided[known].Since
		if s.avoided[known].repeats(p) {
			return s.avoided[known], false, nil
		}
	case len(s.avoided) >= maxAvoided:
		return p, false, &nstance.Error{
			Code: nstance.Conflict, Remedy: "nstance-admin pool release",
			Msg: fmt.Sprintf("%d pools are avoided already, which is the most", maxAvoided),
		}
	}
	return p, true, nil
}

// ReleasePool ends the avoidance of a pool, and returns once that is durable. It reports
// whether it was avoided. The reason is for the journal. Fails with Invalid for a pool that
// makes no sense, with Conflict when only the cloud avoids it, and with Unavailable as Pause does. A dry run only checks.
func (r *Admin) ReleasePool(ctx context.Context, p Pool, reason string, dryRun bool) (released bool, err error) {
	if err := p.validate(); err != nil {
		return false, err
	}
	err = r.changePools(ctx, func(now time.Time) (bool, error) {
		i := r.avoidedIndex(p)
		switch released = i >= 0; {
		case released && !dryRun:
			r.publishReleased(r.avoided[i], now, reason)
			r.avoided = r.withoutPool(p)
			return true, nil
		case !released && containsPool(r.shifted, p):
			return false, &nstance.Error{Code: nstance.Conflict, Remedy: "end the zonal shift there", Msg: p.String() + " is avoided for the cloud"}
		}
		return false, nil
	})
	return released, err
}

// AvoidedPools returns the pools that are avoided, those of operators first.
func (r *Admin) AvoidedPools() []AvoidedPool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.opts.Now()
	return slices.DeleteFunc(r.allAvoided(), func(p AvoidedPool) bool { return !r.stands(&p, now) })
}

// changePools changes what is avoided on request, and returns once that is durable.
func (r *Reconciler) changePools(ctx context.Context, change func(now time.Time) (changed bool, err error)) error {
	r.mu.Lock()
	if !r.loaded {
		r.mu.Unlock()
		return errUnread
	}
	changed, err := change(r.opts.Now())
	if changed {
		r.saver.Changed()
		r.avoidPools()
	}
	edit := r.saver.Edits()
	r.mu.Unlock()
	if err != nil {
		return err
	}
	return r.saver.Await(ctx, edit)
}

func (s *shard) avoidedIndex(p Pool) int {
	return slices.IndexFunc(s.avoided, func(a AvoidedPool) bool { return a.Pool == p })
}

// withoutPool returns a copy of what operators avoid, without one pool.
func (s *shard) withoutPool(p Pool) []AvoidedPool {
	return slices.DeleteFunc(slices.Clone(s.avoided), func(a AvoidedPool) bool { return a.Pool == p })
}

// allAvoided returns what operators and the cloud avoid, sorted.
func (s *shard) allAvoided() []AvoidedPool {
	out := slices.Concat(s.avoided, s.shifted)
	slices.SortFunc(out, func(a, b AvoidedPool) int {
		return cmp.Or(oneIf(a.Cloud)-oneIf(b.Cloud), strings.Compare(a.String(), b.String()))
	})
	return out
}

// avoidPools has everything that depends on it look at what is avoided now.
func (s *shard) avoidPools() {
	var all []admission.Avoidance
	for _, p := range s.allAvoided() {
		a := avoidanceOf(p.Pool, p.Until, p.name())
		if s.clock.Distrust() != "" {
			a.Until = time.Time{} // the queue compares it with the time
		}
		all = append(all, a)
	}
	s.admission.Avoid(all)
	for _, m := range s.members {
		s.refuseAvoided(m)
	}
	for key := range s.groups {
		s.queue.Add(key, true)
	}
	select {
	case s.poolWake <- struct{}{}:
	default:
	}
}

func avoidanceOf(p Pool, until time.Time, name string) admission.Avoidance {
	return admission.Avoidance{Zone: p.Zone, InstanceType: p.InstanceType, Market: p.Market, Until: until, Name: name}
}

// refuseAvoided has the create of m refused that was throttled, and would be repeated as it
// was, if its pool is avoided now: its group demands another.
func (s *shard) refuseAvoided(m *member) {
	if m.throttled && m.grant == grantWanted && m.step == stepCreate && s.admission.Avoided(capacityShape(m.shape), s.opts.Now()) {
		m.grant, m.throttled, m.retryDue = granted, false, time.Time{}
	}
}

// expireAvoided ends what is avoided when its time is over, until ctx ends.
func (r *Reconciler) expireAvoided(ctx context.Context) {
	end := time.NewTimer(time.Hour)
	defer end.Stop()
	for {
		end.Reset(max(0, r.endAvoided()))
		select {
		case <-ctx.Done():
			return
		case <-r.poolWake:
		case <-end.C:
		}
	}
}

// endAvoided ends what is avoided when its time is over. It returns how long to wait until
// it is to be called again.
func (r *Reconciler) endAvoided() (wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.opts.Now()
	avoided := r.standing(r.avoided, now)
	shifted := r.standing(r.readable(now), now)
	if len(avoided) < len(r.avoided) {
		r.saver.Changed()
	}
	if len(avoided) < len(r.avoided) || len(shifted) < len(r.shifted) {
		r.avoided, r.shifted = avoided, shifted
		r.avoidPools()
	}
	wait = time.Hour
	for _, p := range slices.Concat(avoided, shifted) {
		wait = min(wait, time.Minute) // the clock may be set
		if left := p.Until.Sub(now); left > 0 {
			wait = min(wait, left)
		}
	}
	return wait
}

// standing returns what of a list still stands, and publishes the end of the others.
func (s *shard) standing(all []AvoidedPool, now time.Time) (out []AvoidedPool) {
	for _, p := range all {
		if s.stands(&p, now) {
			out = append(out, p)
		} else {
			s.publishReleased(p, now, "its time is over")
		}
	}
	return out
}

func (s *shard) publishReleased(p AvoidedPool, now time.Time, why string) {
	text := string(plan.HoldAvoided) + ": " + p.String() + ", after " + now.Sub(p.Since).Round(time.Second).String() + withMessage(why)
	s.publishShard(nstance.Event{Type: nstance.EventHoldEnded, Reason: text})
}

// publishShard writes an event about the whole shard to the journal.
func (s *shard) publishShard(e nstance.Event) {
	e.Time = s.opts.Now().UTC()
	s.opts.Journal(e)
}

// restoreAvoided restores what operators avoid. Another leader's clock may have been ahead.
func (s *shard) restoreAvoided(all []AvoidedPool) {
	s.avoided = slices.Clone(all)
	right := s.clockRight()
	for i := range s.avoided {
		if latest := s.opts.Now().Add(longestAvoidance); right && s.avoided[i].Until.After(latest) {
			s.avoided[i].Until = latest.UTC()
		}
	}
	s.avoidPools()
}

// errAvoided refuses a create whose pool is avoided since it was granted.
var errAvoided error = &nstance.Error{Code: nstance.Capacity, Msg: "the granted shape is in a pool that is avoided meanwhile"}

// avoidedAttention lists the pools that are avoided.
func (s *shard) avoidedAttention() (out []Attention) {
	now := s.opts.Now()
	for _, p := range s.allAvoided() {
		if h := p.hold(); s.stands(&p, now) {
			out = append(out, Attention{Kind: AttentionKind(plan.HoldAvoided), Subject: "shard", Since: h.Since, Until: h.Until, Why: h.Reason, Remedy: p.attentionRemedy()})
		}
	}
	return out
}

func (p *AvoidedPool) attentionRemedy() string {
	if p.Cloud {
		return ""
	}
	return "nstance-admin pool release " + p.String()
}
