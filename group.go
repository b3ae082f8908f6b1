package nstance

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/nstance-go/nstance/internal/clip"
)

// A Group is the desired state of one named set of machines, fully merged:
// defaults, template and group have become one Definition, which is whole. A group
// that never had a whole definition has none.
type Group struct {
	Key           GroupKey      `json:"key"`
	Template      string        `json:"template,omitempty"` // where Definition came from; for display
	Size          int           `json:"size"`               // desired members; zero is valid, not a default
	Definition    Definition    `json:"definition"`
	DrainTimeout  time.Duration `json:"drain_timeout"` // longest drain; 0 means delete without one
	Rollout       Rollout       `json:"rollout"`
	Expiry        Expiry        `json:"expiry"`
	Spread        Spread        `json:"spread,omitzero"`          // how much of the group one reclaim may take; the zero Spread bounds nothing
	Order         ShapeOrder    `json:"order,omitempty"`          // which of the permitted shapes a create has; empty: OrderListed
	OnReclaim     ReclaimAction `json:"on_reclaim,omitempty"`     // what is done with the work on a machine that is reclaimed; empty: ReclaimDrain
	OnRebalance   NoticeAction  `json:"on_rebalance,omitempty"`   // to a machine that is likely to be reclaimed; empty: ignore
	OnMaintenance NoticeAction  `json:"on_maintenance,omitempty"` // to a machine that planned maintenance ends or restarts; empty: replace

	// OnDrainTimeout is what is done with a machine that is not empty when DrainTimeout has
	// passed, in a drain for a rollout, a surplus or a request; empty: DrainTimeoutDelete.
	OnDrainTimeout DrainTimeoutAction `json:"on_drain_timeout,omitempty"`

	WarmPool WarmPool `json:"warm_pool,omitzero"` // stand-by machines; the zero WarmPool: none
	Protect  bool     `json:"protect"`            // refuse deletion of the group
	Static   bool     `json:"static"`             // defined in the configuration: only size, instance type, vars and bootstrap data may be changed through the API
	Removing bool     `json:"removing"`           // its managed members are drained and deleted, whatever Size is
	Owner    string   `json:"owner,omitempty"`    // who alone may change it through the API, such as a cluster's UID; empty: none

	// BootstrapData names what user data of machines made from now on has as
	// {{.BootstrapData}}; the data is a secret and stored apart. It changes no hash, and
	// no machine that there is. Empty: there is none.
	BootstrapData string `json:"bootstrap_data,omitempty"`

	// Pending says why another definition that was asked for is not in effect:
	// something that it names is not found yet, or it is invalid. Definition is
	// then the last one that was whole. Empty: none is pending.
	Pending string `json:"pending,omitempty"`
}

// A Definition is what a machine of a group is made from. What the two
// configuration hashes cover is decided in package confighash.
type Definition struct {
	Kind                InstanceKind           `json:"kind"`
	Arch                Arch                   `json:"arch"`
	Role                MachineRole            `json:"role,omitempty"`           // empty: worker
	Image               string                 `json:"image,omitempty"`          // the provider's ID, resolved
	InstanceTypes       []string               `json:"instance_types,omitempty"` // in order of preference
	SubnetPool          string                 `json:"subnet_pool,omitempty"`
	Subnets             []string               `json:"subnets,omitempty"` // the pool's provider subnet IDs
	Args                json.RawMessage        `json:"args,omitempty"`    // canonical JSON
	UserData            UserData               `json:"userdata"`
	Vars                map[string]string      `json:"vars,omitempty"`
	GivenVars           []string               `json:"given_vars,omitempty"` // names of those in Vars that were set through the API, sorted; no part of any hash
	Market              Market                 `json:"market"`
	LoadBalancers       []string               `json:"load_balancers,omitempty"`
	Files               map[string]File        `json:"files,omitempty"`        // by slash-separated path within the receive directory
	Certificates        map[string]Certificate `json:"certificates,omitempty"` // those that Files name
	PostApply           []string               `json:"post_apply,omitempty"`   // command that the agent runs after files have changed; nil: none
	Secrets             map[string]string      `json:"secrets,omitempty"`      // digests of the tracked secrets in Files, by name
	Track               []Tracked              `json:"track,omitempty"`        // what else the infra hash covers
	LaunchTimeout       time.Duration          `json:"launch_timeout"`         // create to ready; 0: no limit
	RegistrationTimeout time.Duration          `json:"registration_timeout"`   // machine exists to registered; 0: no limit
}

// A MachineRole is what machines of a definition are for.
type MachineRole string

// The roles. Machines of a control plane must not be interrupted: spot capacity is refused.
const (
	MachineWorker       MachineRole = "worker"
	MachineControlPlane MachineRole = "control-plane"
)

// A Tracked is what the infra hash covers on request.
type Tracked string

// What can be tracked.
const (
	TrackVars     Tracked = "vars"     // those that user data or Args name
	TrackImage    Tracked = "image"    // resolved
	TrackUserData Tracked = "userdata" // as it was fetched
	TrackSecrets  Tracked = "secrets"  // in Files
)

// A Rollout bounds voluntary change of a group.
type Rollout struct {
	MaxSurge  Count         `json:"max_surge"`  // spare members while replacing; 0 means remove first
	MinReady  time.Duration `json:"min_ready"`  // how long a member must have been well before it counts as ready
	HaltAfter int           `json:"halt_after"` // consecutive failed replacements after which the rollout stops; 0 means never
}

// A NoticeAction is what a notice that dooms nothing does to a machine.
type NoticeAction string

// The actions.
const (
	NoticeIgnore  NoticeAction = "ignore"
	NoticeReplace NoticeAction = "replace" // as a rollout does: few at a time, the replacement first
	NoticeCordon  NoticeAction = "cordon"  // likewise, but its drain is cordon-only; not for maintenance, which ends what runs
)

// A Spread bounds how many members of a group are in one place, as far as there is
// capacity elsewhere: it never costs a member. It moves no member that there is. A spread
// over markets does both, as [Market.OnDemandBase] does.
type Spread struct {
	By       SpreadBy `json:"by"`        // what counts as one place
	MaxShare Count    `json:"max_share"` // members in one place, a percentage of the group's size or a number
}

// A ShapeOrder says which of the permitted shapes that have capacity a create has. It
// moves no machine that there is.
type ShapeOrder string

// The orders. A [Spread] comes before any of them.
const (
	OrderListed    ShapeOrder = "listed"    // the first one, as the definition lists them
	OrderCheapest  ShapeOrder = "cheapest"  // the one that costs least now, with the work that reclaims of its pool cost
	OrderSteadiest ShapeOrder = "steadiest" // the one whose pool is reclaimed least often
)

// A ReclaimAction says what is done with the work on a machine that the cloud reclaims.
// It is replaced at once in either case.
type ReclaimAction string

// The actions.
const (
	ReclaimDrain  ReclaimAction = "drain"  // it is drained
	ReclaimCordon ReclaimAction = "cordon" // it gets no new work, and what runs may end by itself
)

// A DrainTimeoutAction says what is done with a machine that is not empty in time, although
// it could stay longer.
type DrainTimeoutAction string

// The actions.
const (
	DrainTimeoutDelete DrainTimeoutAction = "delete" // it is deleted
	DrainTimeoutWait   DrainTimeoutAction = "wait"   // its drain has no deadline: it waits until the machine is empty
)

// A WarmPool is how many stand-by machines a group has beside its members. They are made
// from its definition, on demand, and are parked once they were ready. One of them is woken
// for each member that is lost, until the replacement is ready. They are never counted in
// the group's size.
type WarmPool struct {
	Size     int           `json:"size"`
	Mode     ParkMode      `json:"mode"`                // how they wait
	MaxAge   time.Duration `json:"max_age,omitempty"`   // then they are made anew, one at a time; 0: they are not
	NoReturn bool          `json:"no_return,omitempty"` // one that was woken is deleted when it is not needed any more, and another one made
}

// A SpreadBy says what counts as one place.
type SpreadBy string

// The places. Where the zone of a subnet is not known, the subnet counts as one.
const (
	SpreadPool   SpreadBy = "pool"   // one instance type in one zone and market: what clouds reclaim together
	SpreadType   SpreadBy = "type"   // one instance type
	SpreadZone   SpreadBy = "zone"   // one zone
	SpreadSubnet SpreadBy = "subnet" // one subnet
	SpreadMarket SpreadBy = "market" // all of spot: what exceeds MaxShare is the on-demand base of the group
	SpreadHost   SpreadBy = "host"   // one physical host, for providers that choose hosts ([MachineSpec])
)

// A Count is an absolute number or a percentage of a group's size. Its text, in JSON too,
// is 2 or 25%.
type Count struct {
	N       int
	Percent bool
}

// Of returns the count for a group of the given size. A percentage rounds up,
// so it is 0 only when it was written as 0 or the group is empty.
func (c Count) Of(size int) int {
	if !c.Percent {
		return c.N
	}
	return (c.N*size + 99) / 100
}

// String returns the count as a configuration spells it: 2 or 25%.
func (c Count) String() string {
	if c.Percent {
		return strconv.Itoa(c.N) + "%"
	}
	return strconv.Itoa(c.N)
}

// MarshalText implements encoding.TextMarshaler: it returns what String does.
func (c Count) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText reads what MarshalText returns. Fails with Invalid for anything else, and
// for more than 100%.
func (c *Count) UnmarshalText(text []byte) error {
	digits, percent := strings.CutSuffix(string(text), "%")
	n, err := strconv.ParseUint(digits, 10, 31)
	if err != nil || percent && n > 100 {
		return FieldError("count", "use a count such as 2 or a percentage such as 25%", "%q is neither", clip.Quote(string(text)))
	}
	*c = Count{N: int(n), Percent: percent}
	return nil
}

// Expiry replaces machines because of their age. Zero durations switch it off.
type Expiry struct {
	EligibleAge time.Duration `json:"eligible_age"`  // may be replaced, oldest first, one at a time
	ForcedAge   time.Duration `json:"forced_age"`    // must be replaced
	OnDemandAge time.Duration `json:"on_demand_age"` // on-demand instances: drained, not replaced
}
