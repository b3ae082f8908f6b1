package operators

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/ledger"
	"github.com/nstance-go/nstance/internal/loop"
	"github.com/nstance-go/nstance/internal/notice"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/journal"
)

// An interruptionQuery selects interruptions.
type interruptionQuery struct {
	tenant       nstance.TenantID // empty: all
	group        nstance.GroupID
	instance     string // beginning of its ID
	eventID      string
	since, until time.Time
	after        position // of the last one of the page before
	limit        int
}

// A position orders interruptions, the latest first.
type position struct {
	at       time.Time
	instance string
	event    string
}

func positionOf(i *apiv1.Interruption) position {
	at := wire.TimeOf(i.GetReceivedAt())
	if at.IsZero() {
		at = wire.TimeOf(i.GetDetectedAt())
	}
	return position{at, i.GetInstance(), i.GetEventId()}
}

func (p position) compare(q position) int {
	return cmp.Or(q.at.Compare(p.at), cmp.Compare(q.instance, p.instance), cmp.Compare(q.event, p.event))
}

func (p position) String() string {
	return p.at.UTC().Format(time.RFC3339Nano) + "|" + p.instance + "|" + p.event
}

func parsePosition(page string) (p position, err error) {
	parts := strings.SplitN(page, "|", 3)
	if len(parts) == 3 {
		p.instance, p.event = parts[1], parts[2]
		p.at, err = time.Parse(time.RFC3339Nano, parts[0])
	}
	if len(parts) != 3 || err != nil {
		return p, nstance.FieldError("page", "use next_page of the answer before, or leave it out", "%.64q is no page", page)
	}
	return p, nil
}

func newInterruptionQuery(c caller, req *apiv1.ListInterruptionsRequest) (q interruptionQuery, err error) {
	q = interruptionQuery{
		group: nstance.GroupID(req.GetGroup()), instance: req.GetInstance(), eventID: req.GetEventId(),
		since: wire.TimeOf(req.GetSince()), until: wire.TimeOf(req.GetUntil()), limit: cmp.Or(int(req.GetLimit()), 100),
	}
	if q.tenant, err = c.journalTenant(""); err != nil {
		return q, err
	}
	switch {
	case q.limit < 0 || q.limit > journalPage:
		return q, nstance.FieldError("limit", "use 1 to 1000", "%d is out of range", q.limit)
	case len(q.instance) > maxIDLen || strings.Trim(q.instance, idChars) != "":
		return q, nstance.FieldError("instance", "use an instance ID, or the beginning of one", "%.64q is none", q.instance)
	case len(q.instance) == maxIDLen:
		_, err = nstance.ParseInstanceID(q.instance)
	}
	if err == nil && req.GetPage() != "" {
		q.after, err = parsePosition(req.GetPage())
	}
	return q, err
}

const (
	maxIDLen = 29
	idChars  = "0123456789abcdefghijklmnopqrstuvwxyz"
)

func (q *interruptionQuery) matches(i *apiv1.Interruption) bool {
	p := positionOf(i)
	switch {
	case q.tenant != "" && i.GetTenant() != string(q.tenant), q.group != "" && i.GetGroup() != string(q.group):
	case !strings.HasPrefix(i.GetInstance(), q.instance), q.eventID != "" && i.GetEventId() != q.eventID:
	case !q.since.IsZero() && p.at.Before(q.since), !q.until.IsZero() && !p.at.Before(q.until):
	case q.after != (position{}) && p.compare(q.after) <= 0:
	default:
		return true
	}
	return false
}

// journalFilter selects at least the notices that q does.
func (q *interruptionQuery) journalFilter() journal.Filter {
	f := journal.Filter{Tenant: q.tenant, Group: q.group, EventID: q.eventID, Types: noticeTypes, Since: q.since, Until: q.until, Limit: q.limit + 1}
	if len(q.instance) == maxIDLen {
		f.Instance = nstance.InstanceID(q.instance)
	}
	if q.after != (position{}) {
		if end := q.after.at.Truncate(time.Second).Add(time.Second); f.Until.IsZero() || end.Before(f.Until) {
			f.Until = end
		}
	}
	if q.after != (position{}) || q.instance != "" || !q.until.IsZero() { // which the journal does not compare exactly
		f.Limit = journal.MaxLimit
	}
	return f
}

// from is the first day of the ledger that matters.
func (q *interruptionQuery) from() time.Time {
	from := q.since
	if id, err := nstance.ParseInstanceID(q.instance); err == nil && id.Time().After(from) {
		from = id.Time()
	}
	return from
}

// A selection gathers the interruptions that a query selects, from several sources.
// The first source wins where two differ.
type selection struct {
	q     interruptionQuery
	known map[eventKey][]*apiv1.Interruption
	size  int // of known
	links
}

// An eventKey is an event about one instance. It may be withdrawn, and return.
type eventKey struct{ instance, event string }

func keyOf(i *apiv1.Interruption) eventKey { return eventKey{i.GetInstance(), i.GetEventId()} }

func newSelection(q interruptionQuery) *selection {
	return &selection{q: q, known: map[eventKey][]*apiv1.Interruption{}, links: newLinks()}
}

// add adds an interruption. Of one source, what was withdrawn is added before what stands.
func (s *selection) add(i *apiv1.Interruption) {
	for _, was := range s.known[keyOf(i)] {
		if sameOccurrence(was, i) {
			combine(was, i)
			return
		}
	}
	if !s.q.matches(i) {
		return
	}
	s.keep(i)
	if s.size > 4*(s.q.limit+1) {
		latest := s.sorted()[:s.q.limit+1]
		clear(s.known)
		s.size = 0
		s.keep(latest...)
	}
}

func (s *selection) keep(list ...*apiv1.Interruption) {
	for _, i := range list {
		s.known[keyOf(i)] = append(s.known[keyOf(i)], i)
	}
	s.size += len(list)
}

// sameOccurrence reports whether interruptions of one event are one. A record may have a
// later receipt than the journal: that of a tighter deadline, or by another leader. But of
// an event only the latest occurrence is not withdrawn.
func sameOccurrence(a, b *apiv1.Interruption) bool {
	switch {
	case proto.Equal(a.GetReceivedAt(), b.GetReceivedAt()):
		return true
	case a.GetWithdrawn() != b.GetWithdrawn():
		return false
	}
	return !a.GetWithdrawn() || proto.Equal(a.GetDetectedAt(), b.GetDetectedAt())
}

// combine adds to an interruption what another source knows. A journal that missed a
// withdrawal attributes to it what followed its return.
func combine(known, other *apiv1.Interruption) {
	if other.GetWithdrawn() && !known.GetWithdrawn() {
		proto.Reset(known)
	}
	complement(known, other)
}

// complement sets the fields of a message that are not set, from another one.
func complement(m, other proto.Message) {
	to := m.ProtoReflect()
	other.ProtoReflect().Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if !to.Has(field) {
			to.Set(field, v)
		}
		return true
	})
}

func (s *selection) addAll(list []ledger.Interruption) {
	for i := range list {
		s.add(interruptionMessage(&list[i]))
	}
}

// addLedger adds the latest days of a ledger that fill a page.
func (s *selection) addLedger(ctx context.Context, from *ledger.Reader) (problems []string, err error) {
	for day, err := range from.Days(ctx, s.q.from(), time.Time{}) {
		if err != nil {
			return nil, err
		}
		problems = append(problems, problemTexts(day.Problems)...)
		s.learnDay(&day)
		for i := range day.Lives {
			s.addAll(day.Lives[i].Interruptions())
		}
		for i := range day.Ignored {
			s.addAll([]ledger.Interruption{day.Ignored[i].Interruption()})
		}
		if s.complete(day.Date) {
			break
		}
	}
	return problems, nil
}

func (s *selection) addRunning(live []records.Instance) {
	for i := range live {
		if len(live[i].Notices)+len(live[i].Cancelled) > 0 {
			l := ledger.Open(live[i], "")
			s.addAll(l.Interruptions())
		}
	}
}

func (s *selection) sorted() []*apiv1.Interruption {
	out := make([]*apiv1.Interruption, 0, s.size)
	for _, list := range s.known {
		out = append(out, list...)
	}
	slices.SortFunc(out, func(a, b *apiv1.Interruption) int { return positionOf(a).compare(positionOf(b)) })
	return out
}

// complete reports whether a page is full of interruptions from the beginning of a day
// on: what was written on earlier days comes after them.
func (s *selection) complete(date string) bool {
	day, err := time.Parse(time.DateOnly, date)
	n := 0
	for _, list := range s.known {
		for _, i := range list {
			if !positionOf(i).at.Before(day) {
				n++
			}
		}
	}
	return err == nil && n > s.q.limit
}

// answer returns one page.
func (s *selection) answer() *apiv1.ListInterruptionsResponse {
	list := s.sorted()
	kept := fitting(list[:min(len(list), s.q.limit)])
	for _, i := range kept {
		s.link(i)
	}
	resp := &apiv1.ListInterruptionsResponse{Interruptions: kept}
	if len(kept) < len(list) && len(kept) > 0 {
		resp.NextPage = positionOf(kept[len(kept)-1]).String()
	}
	return resp
}

// links are which instance replaces which, and when each became ready.
type links struct {
	replacement map[nstance.InstanceID]nstance.InstanceID
	ready       map[nstance.InstanceID]time.Time
}

func newLinks() links {
	return links{map[nstance.InstanceID]nstance.InstanceID{}, map[nstance.InstanceID]time.Time{}}
}

func (k *links) learn(id, replaces nstance.InstanceID, readyAt time.Time) {
	if replaces != "" {
		k.replacement[replaces] = max(k.replacement[replaces], id)
	}
	if was := k.ready[id]; !readyAt.IsZero() && (was.IsZero() || readyAt.Before(was)) {
		k.ready[id] = readyAt
	}
}

func (k *links) learnDay(day *ledger.Day) {
	for _, r := range day.Ready {
		k.learn(r.ID, r.Replaces, r.At)
	}
	for i := range day.Lives {
		l := &day.Lives[i]
		k.learn(l.ID, l.Replaces, l.ReadyAt)
	}
}

func (k *links) learnRecords(all []records.Instance) {
	for i := range all {
		k.learn(all[i].ID, all[i].Replaces, all[i].ReadyAt)
	}
}

// link adds what replaced the instance of an interruption.
func (k *links) link(i *apiv1.Interruption) {
	if i.GetWithdrawn() || i.GetIgnored() != "" {
		return
	}
	id := cmp.Or(nstance.InstanceID(i.GetReplacement()), k.replacement[nstance.InstanceID(i.GetInstance())])
	if id == "" {
		return
	}
	i.Replacement = string(id)
	first(&i.ReplacementRequestedAt, wire.Time(id.Time()))
	first(&i.ReplacementReadyAt, wire.Time(k.ready[id]))
}

// ListInterruptions implements the RPC: from this server's journal, the records of
// instances that live, and the ledger.
func (o *Service) ListInterruptions(ctx context.Context, req *apiv1.ListInterruptionsRequest) (*apiv1.ListInterruptionsResponse, error) {
	c := callerOf(ctx)
	q, err := newInterruptionQuery(c, req)
	if err != nil {
		return nil, err
	}
	s := newSelection(q)
	journalled, err := interruptions(ctx, o.Events, q.journalFilter())
	if err != nil {
		return nil, err
	}
	for _, i := range journalled {
		s.add(i)
	}
	live := c.term.Internals.LivingRecords()
	s.learnRecords(live)
	s.addRunning(live)
	problems, err := s.addLedger(ctx, o.Ledger)
	if err != nil {
		return nil, err
	}
	resp := s.answer()
	resp.Problems = fitProblems(problems)
	return resp, nil
}

// GetInterruptionRates implements the RPC.
func (o *Service) GetInterruptionRates(ctx context.Context, req *apiv1.GetInterruptionRatesRequest) (*apiv1.GetInterruptionRatesResponse, error) {
	c := callerOf(ctx)
	until := cmp.Or(wire.TimeOf(req.GetUntil()), o.Now().UTC())
	since := cmp.Or(wire.TimeOf(req.GetSince()), until.Add(-ledger.RatePeriod))
	if !since.Before(until) {
		return nil, nstance.FieldError("since", "name a time before until, which is now unless set", "%s is not before %s", since.Format(time.RFC3339), until.Format(time.RFC3339))
	}
	rates, err := o.Ledger.Rates(ctx, since, until, ledger.OpenAll(c.term.Internals.LivingRecords()), c.sees)
	if err != nil {
		return nil, err
	}
	resp := &apiv1.GetInterruptionRatesResponse{Since: wire.Time(rates.Since), Until: wire.Time(rates.Until), Problems: fitProblems(problemTexts(rates.Problems))}
	for i := range rates.Pools {
		resp.Rates = append(resp.Rates, rateMessage(&rates.Pools[i], rates.Until.Sub(rates.Since)))
	}
	resp.Rates = fitting(resp.GetRates())
	return resp, nil
}

func rateMessage(r *ledger.Rate, period time.Duration) *apiv1.InterruptionRate {
	m := &apiv1.InterruptionRate{
		InstanceType: r.Pool.InstanceType, Zone: r.Pool.Zone, Market: string(r.Pool.Market), MachineTime: durationpb.New(r.MachineTime),
		Reclaims: int32(r.Reclaims), Unwarned: int32(r.Unwarned), TooLate: int32(r.TooLate),
		ReclaimsPerDay: r.PerDay(period), ReclaimsPer_100Hours: r.PerHundredHours(),
		Drains: int32(r.Drains), DrainsInTime: int32(r.DrainsInTime),
		Cost: r.Cost, PricedTime: durationpb.New(r.PricedTime), Recommended: int32(r.Recommended), RecommendedReclaimed: int32(r.RecommendedReclaimed),
	}
	for kind, n := range r.Notices {
		if m.Notices == nil {
			m.Notices = map[string]int32{}
		}
		m.Notices[string(kind)] = int32(n)
	}
	if r.Measured > 0 {
		m.MedianNotice, m.P10Notice = durationpb.New(r.MedianNotice), durationpb.New(r.P10Notice)
	}
	return m
}

// RememberInterruptions reads the latest interruptions of every tenant from the ledger, for
// LatestInterruptions.
func (o *Service) RememberInterruptions(ctx context.Context, limit int) error {
	s := newSelection(interruptionQuery{limit: limit})
	if _, err := s.addLedger(ctx, o.Ledger); err != nil { // what cannot be read is shown by ListInterruptions
		return err
	}
	list := s.answer().GetInterruptions()
	o.remembered.Store(&list)
	return nil
}

// LatestInterruptions returns interruptions of every tenant, the latest first: all that are
// running, from the records of r, and the latest others, from this server's journal or as they
// were remembered. Of each of these two at most limit. It costs no call of storage.
func (o *Service) LatestInterruptions(ctx context.Context, r loop.Internals, limit int) ([]*apiv1.Interruption, error) {
	live := r.LivingRecords()
	s := newSelection(interruptionQuery{limit: 2*limit + noticesOf(live)}) // so many are added at most
	journalled, err := o.journalled(ctx, limit)
	for _, i := range journalled {
		s.add(proto.CloneOf(i))
	}
	s.learnRecords(live)
	s.addRunning(live)
	if remembered := o.remembered.Load(); remembered != nil {
		for _, i := range slices.Backward(*remembered) {
			s.add(proto.CloneOf(i))
		}
	}
	list := s.sorted()
	for _, i := range list {
		s.link(i)
	}
	return list, err
}

// noticesOf counts the notices of records.
func noticesOf(live []records.Instance) (n int) {
	for i := range live {
		n += len(live[i].Notices)
		for _, c := range live[i].Cancelled {
			n += len(c.Notices)
		}
	}
	return n
}

// A journalCache is the latest interruptions by the journal, as of one of its events. The
// status page asks every second, and mostly nothing has happened since.
type journalCache struct {
	mu   sync.Mutex
	seq  nstance.Seq
	list []*apiv1.Interruption // not to be changed
}

// journalled returns the latest interruptions by the journal. The caller must not change them.
func (o *Service) journalled(ctx context.Context, limit int) ([]*apiv1.Interruption, error) {
	newest, err := o.Events.Events(ctx, journal.Filter{Types: interruptionTypes, Limit: 1, Newest: true})
	if err != nil || len(newest) == 0 {
		return nil, err
	}
	c := &o.journalCache
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seq == newest[0].Seq {
		return c.list, nil
	}
	list, err := interruptions(ctx, o.Events, journal.Filter{Types: noticeTypes, Limit: limit})
	if err == nil {
		c.seq, c.list = newest[0].Seq, list
	}
	return list, err
}

func problemTexts(all []ledger.Problem) (out []string) {
	for _, p := range all {
		out = append(out, fmt.Sprintf("%s: %v", p.Key, p.Err))
	}
	return out
}

func interruptionMessage(i *ledger.Interruption) *apiv1.Interruption {
	return &apiv1.Interruption{
		EventId: i.Notice.EventID, Tenant: string(i.Tenant), Group: string(i.Group), Instance: string(i.ID), Notice: wire.Notice(i.Notice),
		Rehearsal: notice.Rehearsed(i.Notice), DetectedAt: wire.Time(i.Notice.DetectedAt), ReceivedAt: wire.Time(i.Notice.ReceivedAt),
		Replacement: string(i.Replacement), DrainStartedAt: wire.Time(i.DrainStarted), DrainedAt: wire.Time(i.DrainEnded), DrainOutcome: i.DrainOutcome,
		GoneAt: wire.Time(i.GoneAt), DeletedAt: wire.Time(i.DeletedAt), Withdrawn: i.Withdrawn, Ignored: i.Ignored, Outcome: string(i.Outcome),
		InstanceType: i.Pool.InstanceType, Zone: i.Pool.Zone, Market: string(i.Pool.Market),
	}
}

// lifeMessage returns a life with its interruptions.
func (k *links) lifeMessage(l *ledger.Life) *apiv1.Life {
	k.learn(l.ID, l.Replaces, l.ReadyAt)
	m := &apiv1.Life{
		Id: string(l.ID), Tenant: string(l.Tenant), Group: string(l.Group), OnDemand: l.OnDemand, Reason: l.Reason,
		InstanceType: l.Pool.InstanceType, Zone: l.Pool.Zone, Market: string(l.Pool.Market), ProviderId: l.ProviderID, PricePerHour: l.Price,
		CreatedAt: wire.Time(l.CreatedAt), LaunchedAt: wire.Time(l.LaunchedAt), RegisteredAt: wire.Time(l.RegisteredAt), ReadyAt: wire.Time(k.ready[l.ID]),
		Replaces: string(l.Replaces), ReplacedBy: string(cmp.Or(l.ReplacedBy, k.replacement[l.ID])), Drifted: l.Drifted,
		GoneAt: wire.Time(l.GoneAt), Loss: string(l.Loss), DeleteAt: wire.Time(l.DeleteAt), DeletedAt: wire.Time(l.DeletedAt), Outcome: string(l.Outcome),
	}
	if l.Drain != nil {
		m.DrainStartedAt = wire.Time(l.Drain.StartedAt)
	}
	if l.Drained != nil {
		m.DrainedAt, m.DrainOutcome, m.DrainedBy = wire.Time(l.Drained.At), string(l.Drained.Outcome), string(l.Drained.By)
	}
	if l.Why.Kind != "" {
		m.Why = wire.Causes([]nstance.Cause{l.Why})[0]
	}
	for _, i := range l.Interruptions() {
		im := interruptionMessage(&i)
		k.link(im)
		m.Interruptions = append(m.Interruptions, im)
	}
	return m
}

// openLife returns the story so far of an instance with a record; nil if it has none.
func (c caller) openLife(id nstance.InstanceID, events []nstance.Event) *apiv1.Life {
	all := c.term.Internals.LivingRecords()
	k := newLinks()
	k.learnRecords(all)
	registered := false
	for _, e := range events { // what the record does not say yet
		registered = registered || e.Type == nstance.EventRegistered
		if registered && e.Type == nstance.EventReady {
			k.learn(id, "", e.Time)
			break
		}
	}
	for i := range all {
		if all[i].ID == id {
			l := ledger.Open(all[i], "")
			return k.lifeMessage(&l)
		}
	}
	return nil
}

// endedLife returns the story of an instance that has ended; nil if the ledger does not
// have it, or the caller may not see it.
func (o *Service) endedLife(ctx context.Context, c caller, id nstance.InstanceID) (life *apiv1.Life, problems []string, err error) {
	var found *ledger.Life
	settled := false // nothing more is to be found but an earlier copy, of the day before
	k := newLinks()
	k.learnRecords(c.term.Internals.LivingRecords())
	for day, err := range o.Ledger.Days(ctx, id.Time(), time.Time{}) {
		if err != nil {
			return nil, problems, err
		}
		problems = append(problems, problemTexts(day.Problems)...)
		k.learnDay(&day)
		for i := range day.Lives {
			if l := &day.Lives[i]; l.ID == id && c.sees(l.Tenant) && (found == nil || l.DeletedAt.Before(found.DeletedAt)) {
				found = l
			}
		}
		if settled {
			break
		}
		settled = found != nil && (found.RegisteredAt.IsZero() || !k.ready[id].IsZero())
	}
	if found == nil {
		return nil, fitProblems(problems), nil
	}
	return k.lifeMessage(found), fitProblems(problems), nil
}

// endedInstance is what GetInstance says of an instance that has ended.
func endedInstance(l *apiv1.Life) *apiv1.Instance {
	return &apiv1.Instance{
		Id: l.GetId(), Tenant: l.GetTenant(), Group: l.GetGroup(), State: string(nstance.Deleted), CreatedAt: l.GetCreatedAt(),
		RegisteredAt: l.GetRegisteredAt(), OnDemand: l.GetOnDemand(), Reason: l.GetReason(), ProviderId: l.GetProviderId(), InstanceType: l.GetInstanceType(), Zone: l.GetZone(), Market: l.GetMarket(),
	}
}
