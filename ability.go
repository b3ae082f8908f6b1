package nstance

import (
	"context"
	"encoding/json"
	"iter"
	"time"
)

// Abilities are what a Provider may be able to do beside its own methods, one
// small interface each. Package provider finds them by type assertion, in one
// place, and puts the same bounds around them as around every other call. As
// for a Provider: implementations are safe for concurrent use, return promptly
// when ctx is done, and classify every error with a Code. provider/providertest
// checks these contracts too.

// An AccountNamer is a Provider that names the place in which it sees machines. With
// credentials for another place every machine would be NotFound, by a definite answer. A
// reconciler remembers the name together with its records, and acts on nothing where the
// names differ. It is safe for concurrent use.
type AccountNamer interface {
	// Account returns that place: an account and region, a project and zone. It is
	// the same for the provider's whole life, and two providers that see the same
	// machines give the same. Several places are separated by commas, in one order:
	// a reconciler goes on where places were added, and not where one is missing.
	// Fails as a read does.
	Account(ctx context.Context) (string, error)
}

// A NodeNamer is a Provider for whose machines something in the cloud, such as its
// controller manager, sets spec.providerID of their Kubernetes Nodes. Nodes of other
// providers have nstance:/// and the instance ID, which kubelet is started with. It is
// safe for concurrent use.
type NodeNamer interface {
	// NodeProviderID returns what the Node of m has there, letter by letter: Cluster
	// API compares it so. It is the same for the machine's whole life, no two machines
	// have the same, and neither the same part after the last slash, by which the
	// cluster autoscaler compares. It is made of ProviderID and Zone of a machine that
	// the provider has answered with, and empty if m lacks one that is needed. It asks
	// the cloud nothing.
	NodeProviderID(m Machine) string
}

// An ImageResolver is a Provider that finds machine images by name. It is safe for
// concurrent use.
type ImageResolver interface {
	// ResolveImage returns the provider's ID of the newest image that fits q.
	// Two calls may give different IDs once a newer image was published. Fails
	// with NotFound when none fits, Invalid when q makes no sense.
	ResolveImage(ctx context.Context, q ImageQuery) (string, error)
}

// An ImageQuery says which images fit: those that fit in every field that is
// not empty.
type ImageQuery struct {
	Owner string `json:"owner,omitempty"` // account or project that published it, as the provider spells it
	Name  string `json:"name"`            // a * stands for any run of characters
	Arch  Arch   `json:"arch"`
}

// A SubnetCounter is a Provider that knows how many addresses are free. It is safe for
// concurrent use.
type SubnetCounter interface {
	// FreeAddresses returns how many more machines would get an address in each
	// subnet. Subnets whose count the cloud does not report are left out. An
	// error, as of a read, says nothing about any subnet.
	FreeAddresses(ctx context.Context, subnets []string) (map[string]int, error)
}

// A SubnetLocator is a Provider that knows in which zones subnets are. It is safe for
// concurrent use.
type SubnetLocator interface {
	// SubnetZones returns the zone of each subnet. Subnets in several zones, and
	// those that the cloud does not know, are left out. An error, as of a read,
	// says nothing about any subnet.
	SubnetZones(ctx context.Context, subnets []string) (map[string]string, error)
}

// A PriceLister is a Provider whose cloud says what machines cost now. It is safe for
// concurrent use.
type PriceLister interface {
	// Prices returns the present prices of the named instance types in each zone,
	// those of spot machines at least. What the cloud does not say is left out. An
	// error, as of a read, says nothing about any price.
	Prices(ctx context.Context, types []string) ([]Price, error)
}

// A Price is what one machine costs for an hour.
type Price struct {
	InstanceType string     `json:"instance_type"`
	Zone         string     `json:"zone"`
	Market       MarketType `json:"market"`
	PerHour      float64    `json:"per_hour"` // in the cloud's currency, for a machine with Linux
}

// A ZoneScorer is a Provider whose cloud estimates where spot machines can be had. It is
// safe for concurrent use.
type ZoneScorer interface {
	// ZoneScores returns, for each zone that the cloud knows, how likely it is that
	// this many spot machines of the types together can be had and stay: 1, unlikely,
	// to 10. Clouds permit few different questions in a day: callers ask about one
	// set of types at most once in an hour. An error, as of a read, says nothing.
	ZoneScores(ctx context.Context, types []string, machines int) (map[string]int, error)
}

// A ZoneShifter is a Provider whose cloud says which zones are shifted away from, because
// something is wrong there. No machine is made in them. It is safe for concurrent use.
type ZoneShifter interface {
	// ShiftedZones returns the zones that are shifted away from now, each once, by the
	// names that machines and subnets have for them. An error, as of a read, says nothing
	// about any zone.
	ShiftedZones(ctx context.Context) ([]ZoneShift, error)
}

// A ZoneShift is a zone that is shifted away from.
type ZoneShift struct {
	Zone   string    `json:"zone"`
	Since  time.Time `json:"since,omitzero"` // zero: not known
	Until  time.Time `json:"until,omitzero"` // when it ends by itself; zero: not known
	Reason string    `json:"reason,omitempty"`
}

// A TypeLister is a Provider that knows its machine types. It is safe for concurrent
// use.
type TypeLister interface {
	// TypeArchs returns which architectures each of the named instance types
	// can run. A name that is missing in the answer is unknown to the provider.
	// An error, as of a read, says nothing about any type.
	TypeArchs(ctx context.Context, names []string) (map[string][]Arch, error)
}

// A Balancer is a Provider with load balancers whose members can be changed. It is safe
// for concurrent use.
type Balancer interface {
	// BalancerMembers returns the provider's IDs of all machines that lb sends
	// traffic to, or is about to, including members that Nstance did not add.
	// Fails with NotFound when there is no such load balancer: it has no
	// members then.
	BalancerMembers(ctx context.Context, lb LoadBalancer) ([]string, error)

	// JoinBalancer makes the machines members of lb, all or, if it fails, any
	// part of them. One that is a member already stays one. It is called with
	// up to 100 machines. Fails with NotFound when there is no such
	// load balancer, or one of the machines is gone.
	JoinBalancer(ctx context.Context, lb LoadBalancer, machines []Machine) error

	// LeaveBalancer ends the membership of the machines, all or, if it fails,
	// any part of them. A machine that is not a member, or does not exist any
	// more, is skipped. Nil means that no new connection goes to them. It is called with
	// up to 100 machines. Fails with NotFound when there is no such
	// load balancer.
	LeaveBalancer(ctx context.Context, lb LoadBalancer, machines []Machine) error
}

// A LoadBalancer is what machines join to be sent traffic: a target group, a
// backend, a pool.
type LoadBalancer struct {
	Name string          `json:"name"`           // as the configuration calls it
	ID   string          `json:"id,omitempty"`   // as the provider calls it
	Args json.RawMessage `json:"args,omitempty"` // provider-specific, decoded strictly by the provider; may be nil
}

// A Parker is a Provider whose machines can be kept for later without running. The mode
// of a machine is that of its spec: some clouds prepare it at launch. It is safe for
// concurrent use.
type Parker interface {
	// ParkModes returns the modes that machines of this provider can have.
	ParkModes() []ParkMode

	// Park stops or hibernates m, as its spec said. Nil means that the cloud has
	// accepted it; the machine is parked when Get says StatusStopped. Parking a
	// parked machine changes nothing. Fails with NotFound when the machine is
	// gone, Invalid when this machine cannot be parked, Conflict when it is in a
	// state that must change first or is not m's.
	Park(ctx context.Context, m Machine, mode ParkMode) error

	// Wake starts a parked machine. Nil means that the cloud has accepted it.
	// Waking a running machine changes nothing. Fails as Park does, and with
	// Capacity when there is none to start it, which is ordinary.
	Wake(ctx context.Context, m Machine) error
}

// A ConsoleReader is a Provider that keeps what machines print while they boot. It is
// safe for concurrent use.
type ConsoleReader interface {
	// ConsoleOutput returns the end of what m has printed to its console, at
	// most 64 KiB; clouds deliver it minutes late, and empty until
	// then. Fails with NotFound when the machine is gone.
	ConsoleOutput(ctx context.Context, m Machine) ([]byte, error)
}

// A NoticeWatcher is a Provider that knows of interruptions which its machines cannot
// learn from inside, such as the maintenance of the node they run on, or which it learns
// by another way than they do: the server combines both ([Notice.SameEvent]). It is safe
// for concurrent use.
type NoticeWatcher interface {
	// WatchNotices yields notices about the owner's machines as they appear,
	// change or are withdrawn, until ctx ends. An error is for the log: the watch
	// goes on, and no notice is withdrawn. Notices that stand at the same time for
	// one machine have different event IDs. A notice without deadline may reuse
	// the ID of an earlier one that was withdrawn, unless it has an Ack. One with
	// an Ack is yielded again, by this watch or a later one, until that is called.
	WatchNotices(ctx context.Context, owner Owner) iter.Seq2[MachineNotice, error]
}

// A MachineNotice is a notice about one machine.
type MachineNotice struct {
	ID     InstanceID `json:"id"`
	Notice Notice     `json:"notice"`

	// Ack is called at most once for each yield: when the notice's consequence is
	// durable, or there is none. It is not called when the term ends first. It must
	// not block, and may be called after the watch has ended. Nil: the provider
	// repeats what stands to each watch.
	Ack func() `json:"-"`
}
