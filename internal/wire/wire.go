// Package wire converts between the domain types of package nstance and the
// protobuf messages of api/v1. What only the operators' API has is converted in
// server/internal/operators: the agent links this package.
package wire

import (
	"math"
	"net/netip"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/clip"
)

// ReportVersion is the version of the form of reports.
const ReportVersion = "1.0.0"

// Bounds on what one message may carry; the rest is cut off.
const (
	// MaxNotices is how many notices of a machine may stand at once.
	MaxNotices = 16
	// MaxMachines is how many machines of one event are passed on. Of an event with more
	// none are, and so it is not acknowledged.
	MaxMachines = 32

	maxText   = 256
	maxProbes = 64
)

// Time returns nil for the zero time.
func Time(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// TimeOf returns the zero time for nil or an invalid timestamp.
func TimeOf(t *timestamppb.Timestamp) time.Time {
	if t == nil || !t.IsValid() {
		return time.Time{}
	}
	return t.AsTime()
}

// Report returns the wire form of r.
func Report(r nstance.Report) *apiv1.HealthReport {
	w := &apiv1.HealthReport{
		Version: valid(r.Version), Software: valid(r.Software), Timestamp: Time(r.Timestamp),
		Uptime:   durationpb.New(time.Duration(r.UptimeSeconds * float64(time.Second))),
		CpuUsage: r.OneMinute.CPUPercent, MemoryUsage: r.OneMinute.MemoryPercent,
		DiskUsage: r.OneMinute.DiskPercent, Load: r.OneMinute.Load,
		ConfigHash: valid(r.ConfigHash), CanDrain: r.CanDrain, FilesError: valid(r.FilesError),
	}
	if r.MetadataError != "" {
		w.MetadataError = new(valid(r.MetadataError))
	}
	if len(r.Files) > 0 {
		w.Files = FileStatuses(r.Files)
	}
	if len(r.Notices) > 0 {
		w.Notices = &apiv1.StandingNotices{}
	}
	for _, n := range r.Notices {
		w.Notices.Notices = append(w.Notices.Notices, Notice(n))
	}
	for _, p := range r.Probes {
		w.Probes = append(w.Probes, &apiv1.ProbeResult{Name: valid(p.Name), Ok: p.OK, Message: valid(p.Message)})
	}
	return w
}

// ReportOf returns the domain form of a report, without its notices, that instance
// id sent as its message number seq. What the sender may make long is cut to fixed
// bounds.
func ReportOf(id nstance.InstanceID, seq uint64, w *apiv1.HealthReport) nstance.Report {
	r := nstance.Report{
		Version: Text(w.GetVersion()), Software: Text(w.GetSoftware()), InstanceID: id, Sequence: seq, Timestamp: TimeOf(w.GetTimestamp()),
		UptimeSeconds: amount(w.GetUptime().AsDuration().Seconds()),
		OneMinute: nstance.Usage{
			CPUPercent: percent(w.GetCpuUsage()), MemoryPercent: percent(w.GetMemoryUsage()),
			DiskPercent: percent(w.GetDiskUsage()), Load: amount(w.GetLoad()),
		},
		ConfigHash: Text(w.GetConfigHash()), CanDrain: w.GetCanDrain(),
		Files: FileStatusesOf(w.GetFiles()), FilesError: Text(w.GetFilesError()), MetadataError: Text(w.GetMetadataError()),
	}
	for _, p := range w.GetProbes()[:min(maxProbes, len(w.GetProbes()))] {
		r.Probes = append(r.Probes, nstance.ProbeResult{Name: Text(p.GetName()), OK: p.GetOk(), Message: Text(p.GetMessage())})
	}
	return r
}

// Unreadable is the condition of an instance whose record cannot be read: nothing else is
// known of it, and its machine may run.
const Unreadable = "unreadable"

// Urgent returns the short form of the most urgent notice that dooms its
// machine, or nil: the one with the earliest deadline, a known deadline first.
func Urgent(notices []nstance.Notice) *nstance.TerminationNotice {
	var best *nstance.TerminationNotice
	for _, n := range notices {
		if !n.Kind.Dooms() || n.Cancelled {
			continue
		}
		if best == nil || best.Deadline.IsZero() || !n.Deadline.IsZero() && n.Deadline.Before(best.Deadline) {
			best = &nstance.TerminationNotice{Action: n.Action, Deadline: n.Deadline}
		}
	}
	return best
}

// Notice returns the wire form of n.
func Notice(n nstance.Notice) *apiv1.Notice {
	return &apiv1.Notice{
		Kind: valid(string(n.Kind)), Action: valid(n.Action), Deadline: Time(n.Deadline), NotBefore: Time(n.NotBefore),
		Source: valid(n.Source), EventId: valid(n.EventID), DetectedAt: Time(n.DetectedAt), Cancelled: n.Cancelled,
		Machines: machineNames(n.Machines),
	}
}

// machineNames returns the names of an event's machines; none, if there are too many or
// one is cut.
func machineNames(names []string) (out []string) {
	if len(names) > MaxMachines {
		return nil
	}
	for _, name := range names {
		if Text(name) != name {
			return nil
		}
		out = append(out, name)
	}
	return out
}

// NoticeOf returns the domain form of w.
func NoticeOf(w *apiv1.Notice) nstance.Notice {
	return nstance.Notice{
		Kind: nstance.NoticeKind(Text(w.GetKind())), Action: Text(w.GetAction()),
		Deadline: TimeOf(w.GetDeadline()), NotBefore: TimeOf(w.GetNotBefore()),
		Source: Text(w.GetSource()), EventID: Text(w.GetEventId()),
		DetectedAt: TimeOf(w.GetDetectedAt()), Cancelled: w.GetCancelled(), Machines: machineNames(w.GetMachines()),
	}
}

// NoticeAt returns what a machine whose clock says now sends of n: how long ago
// it was detected, and how long is left.
func NoticeAt(n nstance.Notice, now time.Time) *apiv1.Notice {
	w := Notice(n)
	if !n.DetectedAt.IsZero() {
		w.SinceDetected = durationpb.New(max(0, now.Sub(n.DetectedAt)))
	}
	if !n.Deadline.IsZero() {
		w.TimeLeft = durationpb.New(n.Deadline.Sub(now))
	}
	return w
}

// NoticeReceived returns the domain form of a notice that arrived at now, with
// its times by the receiver's clock.
func NoticeReceived(w *apiv1.Notice, now time.Time) nstance.Notice {
	n, now := NoticeOf(w), now.UTC().Round(0)
	n.DetectedAt, n.Deadline = now.Add(-max(0, duration(w.GetSinceDetected()))), time.Time{}
	if w.GetTimeLeft() != nil {
		n.Deadline = now.Add(duration(w.GetTimeLeft()))
	}
	return n
}

// DrainLeft sets how much time a drain command leaves at now.
func DrainLeft(w *apiv1.DrainCommand, now time.Time) {
	if d := w.GetDeadline(); d != nil {
		w.TimeLeft = durationpb.New(max(0, d.AsTime().Sub(now)))
	}
}

// DrainDeadline returns the deadline of a drain command that arrived at now, by
// the receiver's clock; zero: it has none.
func DrainDeadline(w *apiv1.DrainCommand, now time.Time) time.Time {
	if w.GetTimeLeft() == nil {
		return time.Time{}
	}
	return now.Add(duration(w.GetTimeLeft()))
}

// maxDuration bounds what others say of durations. Dates that follow from it can
// be written as JSON.
const maxDuration = 100 * 365 * 24 * time.Hour

func duration(d *durationpb.Duration) time.Duration {
	return min(max(d.AsDuration(), -maxDuration), maxDuration)
}

// Drain returns the wire form of d, nil for nil.
func Drain(d *nstance.Drain) *apiv1.Drain {
	if d == nil {
		return nil
	}
	w := &apiv1.Drain{
		Generation: d.Generation, StartedAt: Time(d.StartedAt), Deadline: Time(d.Deadline),
		Voluntary: d.Voluntary, Executor: string(d.Executor), Instance: string(d.Instance),
		Tenant: string(d.Group.Tenant), Group: string(d.Group.Group), ProviderId: d.ProviderID, CordonOnly: d.CordonOnly,
	}
	w.Causes = Causes(d.Causes)
	return w
}

// Causes returns the wire form of causes.
func Causes(causes []nstance.Cause) (out []*apiv1.Cause) {
	for _, c := range causes {
		out = append(out, &apiv1.Cause{Kind: string(c.Kind), EventId: valid(c.EventID), Message: valid(c.Message)})
	}
	return out
}

// CausesOf is the inverse of Causes, with each text bounded.
func CausesOf(causes []*apiv1.Cause) (out []nstance.Cause) {
	for _, c := range causes {
		out = append(out, nstance.Cause{Kind: nstance.CauseKind(Text(c.GetKind())), EventID: Text(c.GetEventId()), Message: Text(c.GetMessage())})
	}
	return out
}

// DrainOf returns the domain form of w, nil for nil.
func DrainOf(w *apiv1.Drain) *nstance.Drain {
	if w == nil {
		return nil
	}
	d := &nstance.Drain{
		Instance: nstance.InstanceID(w.GetInstance()), ProviderID: w.GetProviderId(),
		Group:      nstance.GroupKey{Tenant: nstance.TenantID(w.GetTenant()), Group: nstance.GroupID(w.GetGroup())},
		Generation: w.GetGeneration(), StartedAt: TimeOf(w.GetStartedAt()), Deadline: TimeOf(w.GetDeadline()),
		Voluntary: w.GetVoluntary(), Executor: nstance.Executor(w.GetExecutor()), CordonOnly: w.GetCordonOnly(),
	}
	d.Causes = CausesOf(w.GetCauses())
	return d
}

// Event returns the wire form of e.
func Event(e nstance.Event) *apiv1.Event {
	w := &apiv1.Event{
		Seq: uint64(e.Seq), Time: Time(e.Time), Type: string(e.Type), Tenant: string(e.Tenant), Group: string(e.Group),
		Instance: string(e.Instance), Replaces: string(e.Replaces), Reason: valid(e.Reason), Code: string(e.Code), Error: valid(e.Error),
		Drain: Drain(e.Drain), Count: e.Count,
	}
	if e.Notice != nil {
		w.Notice = Notice(*e.Notice)
	}
	return w
}

// EventOf returns the domain form of w.
func EventOf(w *apiv1.Event) nstance.Event {
	e := nstance.Event{
		Seq: nstance.Seq(w.GetSeq()), Time: TimeOf(w.GetTime()), Type: nstance.EventType(w.GetType()),
		Tenant: nstance.TenantID(w.GetTenant()), Group: nstance.GroupID(w.GetGroup()),
		Instance: nstance.InstanceID(w.GetInstance()), Replaces: nstance.InstanceID(w.GetReplaces()),
		Reason: w.GetReason(), Code: nstance.Code(w.GetCode()), Error: w.GetError(), Drain: DrainOf(w.GetDrain()), Count: w.GetCount(),
	}
	if w.GetNotice() != nil {
		n := NoticeOf(w.GetNotice())
		e.Notice = &n
	}
	return e
}

// Credential returns the wire form of c.
func Credential(c nstance.Credential) *apiv1.Credential {
	return &apiv1.Credential{Chain: c.Chain, Roots: c.Roots, Serial: c.Serial, NotAfter: Time(c.NotAfter)}
}

// CredentialOf returns the domain form of w.
func CredentialOf(w *apiv1.Credential) nstance.Credential {
	return nstance.Credential{Chain: w.GetChain(), Roots: w.GetRoots(), Serial: w.GetSerial(), NotAfter: TimeOf(w.GetNotAfter())}
}

// Addresses returns the wire form of a list of addresses.
func Addresses(addrs []netip.Addr) []string {
	out := make([]string, 0, len(addrs))
	for _, a := range addrs {
		out = append(out, a.String())
	}
	return out
}

// AddressesOf returns the addresses among in that parse, sixteen at most.
func AddressesOf(in []string) []netip.Addr {
	var out []netip.Addr
	for _, s := range in[:min(16, len(in))] {
		if a, err := netip.ParseAddr(s); err == nil {
			out = append(out, a)
		}
	}
	return out
}

// valid returns s as protobuf insists on it: one message of a provider with a
// stray byte in it must not end the streams of everybody who is told of it.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// percent returns v within 0 to 100, and amount v or 0, so that what one agent
// makes up spoils no one's arithmetic, and no JSON, which knows no NaN.
func percent(v float64) float64 { return min(amount(v), 100) }

func amount(v float64) float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
		return 0
	}
	return v
}

// Text cuts s to the 256 bytes that a message carries of a text.
func Text(s string) string { return clip.Text(s, maxText) }

// GroupKeyOf returns the key of the group that a message names.
func GroupKeyOf(w interface {
	GetTenant() string
	GetGroup() string
}) nstance.GroupKey {
	return nstance.GroupKey{Tenant: nstance.TenantID(w.GetTenant()), Group: nstance.GroupID(w.GetGroup())}
}
