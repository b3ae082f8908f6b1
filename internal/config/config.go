package config

import (
	"encoding/json"
	"reflect"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
)

// A Config is a whole configuration, checked, with defaults filled in. Only
// Parse makes one; encoding/json does not know its names. It is not changed
// after Parse and safe for concurrent use.
type Config struct {
	Schema       string                                         `name:"$schema" empty:"true" absent:"none" doc:"where an editor finds the JSON Schema of this file; not read"`
	Cluster      Cluster                                        `name:"cluster" required:"true"`
	Shard        Shard                                          `name:"shard" required:"true"`
	Defaults     Defaults                                       `name:"defaults"`
	Certificates map[CertificateName]Certificate                `name:"certificates" key:"certificate"`
	Templates    map[TemplateName]Template                      `name:"templates" key:"template"`
	Declared     map[nstance.TenantID]map[nstance.GroupID]Group `name:"groups" key:"tenant,group"` // as written; Groups returns them merged
	Tenants      map[nstance.TenantID]Tenant                    `name:"tenants" key:"tenant"`

	Images        map[ImageName]Image           `name:"images" key:"image"`
	LoadBalancers map[BalancerName]LoadBalancer `name:"load_balancers" key:"load_balancer"`
	Webhooks      map[WebhookName]Webhook       `name:"webhooks" key:"webhook"`

	kind   *provider.Kind // nil: not known
	groups []nstance.Group
	digest string
}

// later marks a setting of the specification that this version refuses.
type later struct{}

// TemplateName names a template.
type TemplateName string

// PoolName names a subnet pool.
type PoolName string

// Cluster is the installation.
type Cluster struct {
	ID nstance.ClusterID `name:"id" required:"true" doc:"name of the installation; part of every machine's metadata, so never change it" restart:"never"`
}

// Shard is the part of a zone that this configuration is for.
type Shard struct {
	ID                  nstance.ShardID       `name:"id" required:"true" doc:"name of the shard; part of every machine's metadata and of every storage key, so never change it" restart:"never"`
	Provider            Provider              `name:"provider" required:"true"`
	Bind                Bind                  `name:"bind"`
	Advertise           Advertise             `name:"advertise"`
	Connections         Connections           `name:"connections"`
	StatusPage          StatusPage            `name:"status_page"`
	SubnetPools         map[PoolName][]string `name:"subnet_pools" key:"pool" doc:"the provider's IDs of the subnets in this pool"`
	DynamicSubnetPools  []PoolName            `name:"dynamic_subnet_pools" none:"true" absent:"none" doc:"subnet pools that groups created through the API may use"`
	RequestTimeout      time.Duration         `name:"request_timeout" default:"30s" min:"1ms" max:"7d" doc:"longest single call to the provider"`
	UserDataNetworks    []string              `name:"userdata_networks" none:"true" absent:"none" doc:"networks such as 127.0.0.0/8 that user data may be fetched from although they are loopback, link-local or of a metadata service"`
	CreateRate          CreateRate            `name:"create_rate"`
	HealthInterval      time.Duration         `name:"health_interval" default:"60s" min:"1ms" max:"7d" doc:"how often an agent must report; three missed reports make a machine unhealthy"`
	DefaultDrainTimeout time.Duration         `name:"default_drain_timeout" default:"5m" doc:"drain_timeout of groups that set none"`
	ShutdownTimeout     time.Duration         `name:"shutdown_timeout" default:"10s" min:"1ms" doc:"how long the server may take to stop"`
	Breaker             Breaker               `name:"breaker"`
	Secrets             Secrets               `name:"secrets"`
	FileRefresh         time.Duration         `name:"file_refresh" default:"5m" min:"1s" doc:"interval at which secrets and stored objects of files are read again"`
	Expiry              Expiry                `name:"expiry"`
	Election            Election              `name:"election"`
	LeaderAddress       string                `name:"leader_address" doc:"address that the cloud moves to the server that leads, as the cloud spells it" restart:"true"`
	ImageRefresh        time.Duration         `name:"image_refresh" default:"6h" min:"1m" doc:"interval at which images are looked up again, and user data without sha256 is fetched again"`
	GC                  GC                    `name:"gc"`
	Ledger              Ledger                `name:"ledger"`
	MaxChange           *nstance.Count        `name:"max_change" absent:"20% of the members, or 10 if that is more" doc:"members that one reload may remove or replace, a count or a percentage; a reload beyond it is held until it is confirmed"`

	_ later `name:"spot" doc:"margins and estimates for interruptions"`
}

// Provider is the cloud.
type Provider struct {
	Kind    string          `name:"kind" required:"true" doc:"the cloud: aws, gcp, azure, proxmox, qemu, local (child processes), sim (in memory), or another kind of the program; it cannot be changed later" restart:"never"`
	Region  string          `name:"region" doc:"the cloud's region" restart:"true"`
	Zone    string          `name:"zone" doc:"the cloud's zone" restart:"true"`
	Options json.RawMessage `name:"options" doc:"settings of that provider, which checks them itself" restart:"true"` // canonical JSON or nil
}

// Bind is where the server listens.
type Bind struct {
	HTTP         ListenAddr `name:"http" default:"127.0.0.1:8990" doc:"health, metrics and status page, read-only and without authentication" restart:"true"`
	Registration ListenAddr `name:"registration" default:":8992" doc:"registration of agents and operators (TLS)" restart:"true"`
	Operator     ListenAddr `name:"operator" default:":8993" doc:"operators and administrators (mutual TLS)" restart:"true"`
	Agent        ListenAddr `name:"agent" default:":8994" doc:"agents (mutual TLS)" restart:"true"`
	Peer         ListenAddr `name:"peer" default:":8991" doc:"other servers of the shard (mutual TLS)" restart:"true"`
}

// DefaultBind returns where a server listens whose configuration does not say.
func DefaultBind() (b Bind) {
	setDefaults(reflect.ValueOf(&b).Elem())
	return b
}

// Advertise is where others reach the server. What is absent is the port that it
// listens on, at an address of its own.
type Advertise struct {
	Registration DialAddr `name:"registration" absent:"the server's own" doc:"address for registration that machines get" restart:"true"`
	Operator     DialAddr `name:"operator" absent:"the server's own" doc:"address that operators get, also from servers that do not lead" restart:"true"`
	Agent        DialAddr `name:"agent" absent:"the server's own" doc:"address that agents get" restart:"true"`
	Peer         DialAddr `name:"peer" absent:"the server's own" doc:"address that the other servers of the shard get" restart:"true"`
}

// Connections bounds what clients hold open. An anonymous client has shown no
// certificate, or not yet.
type Connections struct {
	Max          int           `name:"max" default:"20000" min:"1" max:"1000000" doc:"connections to all ports together; each agent holds one" restart:"true"`
	Anonymous    int           `name:"anonymous" default:"1024" min:"1" max:"1000000" doc:"of them, those of anonymous clients; one more closes the oldest, last of all those in the middle of a handshake" restart:"true"`
	PerSource    int           `name:"per_source" default:"256" min:"1" max:"1000000" doc:"connections of anonymous clients from one address, or one /64 of IPv6; one more closes the oldest likewise" restart:"true"`
	PerClient    int           `name:"per_client" default:"64" min:"1" max:"1000000" doc:"connections of one agent, operator, administrator or shard's servers; one more closes the oldest" restart:"true"`
	Handshake    time.Duration `name:"handshake" default:"10s" min:"1ms" max:"5m" doc:"how long a client may take to show its certificate" restart:"true"`
	AnonymousAge time.Duration `name:"anonymous_age" default:"1m" min:"1ms" max:"1h" doc:"how long a connection to the ports for registration and HTTP may last, where clients stay anonymous" restart:"true"`
}

// StatusPage is about the HTTP port, which has no authentication.
type StatusPage struct {
	Detail StatusDetail `name:"detail" default:"summary" enum:"summary|full" doc:"what the status page shows, without authentication: summary, what every operator may see; or full, the groups, instances, interruptions and events of all tenants"`
	Hosts  []HostName   `name:"hosts" none:"true" absent:"none" doc:"names by which the HTTP port may be reached, in addition to localhost, IP addresses and the names in bind and advertise"`
}

// StatusDetail is how much the status page shows.
type StatusDetail string

// The status page shows what every operator may see, or everything.
const (
	StatusSummary StatusDetail = "summary"
	StatusFull    StatusDetail = "full"
)

// CreateRate is the token bucket that creates are taken from.
type CreateRate struct {
	PerSecond float64 `name:"per_second" default:"100" min:"0.001" max:"10000" doc:"machines created per second on average; a cloud's provider may have another default; halves while the provider throttles"`
	Burst     int     `name:"burst" default:"1000" min:"1" max:"100000" doc:"machines created at once after a pause; a cloud's provider may have another default"`
}

// Secrets says where the secrets are that become files.
type Secrets struct {
	Source SecretSource `name:"source" default:"store:" doc:"where files of kind secret come from: store: (the cluster's storage), env://PREFIX_, file:///directory, awssecretsmanager://, awsparamstore://, gcpsecretmanager://projects/PROJECT or azurekeyvault://VAULT" restart:"true"`
}

// Expiry replaces machines because of their age.
type Expiry struct {
	EligibleAge time.Duration `name:"eligible_age" default:"0s" doc:"age from which machines are replaced, oldest first, one at a time; 0 means never"`
	ForcedAge   time.Duration `name:"forced_age" default:"0s" doc:"age at which machines are replaced in any case; 0 means never"`
	OnDemandAge time.Duration `name:"on_demand_age" default:"0s" doc:"age at which instances on demand are drained; 0 means never"`
}

// Breaker keeps silent machines from being replaced when too many fall silent at
// once: the cause is then more likely the network than each of them.
type Breaker struct {
	MaxUnhealthy nstance.Count `name:"max_unhealthy" default:"20%" doc:"members of the shard, a count or a percentage but never less than 2, that may become silent within one health_interval while the provider reports that they run; beyond that, and beyond half of a group of three or more, none of them is replaced for it"`
}

// Election is about leadership of the shard.
type Election struct {
	TTL time.Duration `name:"ttl" default:"6s" min:"1s" max:"60s" doc:"how long a leader's term lasts without renewal" restart:"true"`
}

// GC is about what is of no use any more: machines that carry the shard's marks
// and have no record, and stored objects.
type GC struct {
	Interval            time.Duration `name:"interval" default:"2m" min:"1s" max:"7d" doc:"interval at which machines without a record are listed; two lists this far apart must both contain one before it is deleted"`
	RegistrationTimeout time.Duration `name:"registration_timeout" default:"5m" min:"1s" doc:"how old a machine without a record must be before it is deleted"`
	Retention           time.Duration `name:"retention" default:"30m" min:"1s" doc:"how long operators and their nonces are kept after they have expired, and a day more; garbage is collected as often, and every 30m at least"`
}

// Ledger says how long the stories of instances that have ended are kept.
type Ledger struct {
	Keep   time.Duration `name:"keep" default:"400d" min:"24h" doc:"how long stories of ended instances are kept"`
	MaxMiB int           `name:"max_mib" default:"1024" min:"1" max:"1048576" doc:"size of all of them, in MiB; beyond it the oldest days are deleted"`
}

// Defaults come before every template.
type Defaults struct {
	Args json.RawMessage   `name:"args" rendered:"true" doc:"arguments of every template; objects merge"`
	Vars map[string]string `name:"vars" doc:"variables of every template"`
}

// A Template is what machines are made from.
type Template struct {
	Kind                nstance.InstanceKind `name:"kind" required:"true" doc:"three letters that begin the IDs of its instances"`
	Arch                nstance.Arch         `name:"arch" required:"true" enum:"amd64|arm64" doc:"processor architecture"`
	Role                nstance.MachineRole  `name:"role" default:"worker" enum:"worker|control-plane" doc:"control-plane machines are refused on spot capacity"`
	UserData            *UserData            `name:"userdata" absent:"no user data" doc:"template of the user data for the first boot"`
	LaunchTimeout       time.Duration        `name:"launch_timeout" default:"15m" min:"1ms" doc:"from the request for a machine until it is ready, rollout.min_ready apart; then it is replaced"`
	RegistrationTimeout time.Duration        `name:"registration_timeout" default:"5m" min:"1ms" doc:"from the start of a machine until it has registered; then it is replaced"`
	Files               map[FilePath]File    `name:"files" key:"path"`
	Image               ImageName            `name:"image" absent:"what args or the provider say" doc:"name of its image"`
	Track               []nstance.Tracked    `name:"track" absent:"none of them" enum:"vars|image|userdata|secrets" doc:"further changes that replace a machine: variables that user data or args name, another image under the same name, other user data at the same URL, another content of a secret in files"`
	PostApply           Command              `name:"post_apply" doc:"program and arguments that the agent runs, without a shell, after files have changed"`
	Shape
}

// A Group is a named set of machines, as written.
type Group struct {
	Template       TemplateName               `name:"template" required:"true" doc:"name of its template"`
	DrainTimeout   *time.Duration             `name:"drain_timeout" absent:"shard.default_drain_timeout" doc:"longest drain of a machine; 0 deletes without one"`
	Rollout        Rollout                    `name:"rollout"`
	Protect        bool                       `name:"protect" default:"false" doc:"refuse deletion of the group"`
	Spread         *Spread                    `name:"spread" absent:"none" doc:"how many of its machines are in one place, as far as there is capacity elsewhere"`
	Order          nstance.ShapeOrder         `name:"order" default:"listed" enum:"listed|cheapest|steadiest" doc:"which of the permitted shapes with capacity a new machine has: the first one as listed; the one that costs least now, reclaims included; the one whose pool is reclaimed least often"`
	WarmPool       *WarmPool                  `name:"warm_pool" absent:"none" doc:"stand-by machines beside its members, which are woken for those that are lost until their replacements are ready"`
	Drill          *Drill                     `name:"drill" absent:"none" doc:"rehearsals of an interruption at regular times, while the group is healthy"`
	OnReclaim      nstance.ReclaimAction      `name:"on_reclaim" default:"drain" enum:"drain|cordon" doc:"what is done with the work on a machine that is reclaimed: it is drained, or only gets no new work and may end by itself"`
	OnRebalance    nstance.NoticeAction       `name:"on_rebalance" default:"ignore" enum:"ignore|replace|cordon" doc:"what a recommendation to rebalance does, which says that a machine is likely to be reclaimed: nothing; replace the machine as a rollout does; or replace it likewise, while its work gets until drain_timeout to end by itself"`
	OnMaintenance  nstance.NoticeAction       `name:"on_maintenance" default:"replace" enum:"ignore|replace" doc:"what planned maintenance does that ends or restarts a machine: nothing, or replace the machine as a rollout does, from a day before"`
	OnDrainTimeout nstance.DrainTimeoutAction `name:"on_drain_timeout" default:"delete" enum:"delete|wait" doc:"what is done with a machine that is not empty when drain_timeout has passed, in a drain for a rollout, a surplus or a request: it is deleted, what disruption budgets protect on it has been stopped in time; or the drain waits without limit, and the group says for what. A machine that the cloud takes waits for nothing"`
	Shape
}

// A Shape is what both a template and a group may say. A group's wins.
type Shape struct {
	Size          *int              `name:"size" inherits:"the template's; required in one of the two" min:"0" max:"100000" doc:"desired number of machines; 0 is valid"`
	InstanceType  string            `name:"instance_type" inherits:"the template's" doc:"the cloud's machine type"`
	InstanceTypes []string          `name:"instance_types" inherits:"the template's" doc:"machine types in order of preference, instead of instance_type"`
	SubnetPool    PoolName          `name:"subnet_pool" inherits:"the template's" doc:"name of the subnet pool"`
	LoadBalancers []string          `name:"load_balancers" inherits:"the template's" doc:"names of the load balancers that its machines join; a change concerns machines that run, and replaces none"`
	Args          json.RawMessage   `name:"args" rendered:"true" doc:"arguments of the provider for one machine, which checks them itself; objects merge, anything else replaces"` // canonical JSON or nil
	Vars          map[string]string `name:"vars" doc:"variables for userdata, files and args; merge"`
	Market        *Market           `name:"market" absent:"on-demand" inherits:"the template's" doc:"how capacity is bought; a group's replaces the template's as a whole"`
}

// UserData is the template of the user data for the first boot.
type UserData struct {
	Source   nstance.UserDataSource   `name:"source" default:"inline" enum:"inline|url" doc:"where the content is: in this file, or at a URL"`
	Encoding nstance.UserDataEncoding `name:"encoding" default:"plain" enum:"plain|base64|gzip|base64+gzip" doc:"how content is encoded; it is decoded before it is rendered"`
	Content  string                   `name:"content" required:"true" doc:"template (Go text/template) of the user data; or where to fetch it: https://..., http://... or storage:userdata/... for an object of the shard's own store"`
	SHA256   Digest                   `name:"sha256" absent:"not checked" doc:"digest that fetched content must have, before it is decoded"`
}

// Market is how capacity is bought.
type Market struct {
	Type          nstance.MarketType `name:"type" default:"on-demand" enum:"on-demand|spot" doc:"kind of capacity"`
	MaxPrice      string             `name:"max_price" absent:"the cloud's default" doc:"highest spot price per hour, a decimal in quotes, in the cloud's currency"`
	Fallback      string             `name:"fallback" default:"none" enum:"on-demand|none" doc:"what to buy while spot is sold out"`
	FallbackAfter time.Duration      `name:"fallback_after" default:"0s" doc:"how long spot must have been sold out before falling back"`
	ReturnAfter   time.Duration      `name:"return_after" absent:"30m" doc:"with fallback: how long after a fallback one member returns to spot, if that is not known to be sold out; doubles after each failure, up to a day"`
	OnDemandBase  nstance.Count      `name:"on_demand_base" absent:"0" doc:"with type spot: members that are on-demand in any case, a count or a percentage of size, rounded up; a change replaces no more than it must"`
	FallbackWhen  *ReclaimLimit      `name:"fallback_when" absent:"never" doc:"with fallback: spot capacity that is reclaimed too often"`
}

// ReclaimLimit is a number of reclaims within a time.
type ReclaimLimit struct {
	Reclaims int           `name:"reclaims" required:"true" min:"1" max:"100" doc:"reclaims of spot members of the group within window, from which on machines are made on demand"`
	Window   time.Duration `name:"window" required:"true" min:"1s" doc:"machines are made on spot again when there were fewer reclaims within it"`
}

// Rollout bounds voluntary change of a group.
type Rollout struct {
	MaxSurge  nstance.Count `name:"max_surge" default:"1" doc:"spare machines while replacing, a count or a percentage of size; 0 removes first"`
	MinReady  time.Duration `name:"min_ready" default:"0s" doc:"how long a machine must be healthy before it counts as ready"`
	HaltAfter int           `name:"halt_after" default:"2" min:"0" max:"1000" doc:"failed replacements in a row that stop the rollout; 0 means never"`
}

// Drill rehearses interruptions regularly.
type Drill struct {
	Every  time.Duration      `name:"every" required:"true" min:"10m" doc:"time from one drill to the next; a drill of a group that is not healthy waits until it is"`
	Count  nstance.Count      `name:"count" default:"1" doc:"members that are interrupted together, a count or a percentage of size, rounded up: those that have been there longest"`
	Kind   nstance.NoticeKind `name:"kind" default:"reclaim" enum:"reclaim|rebalance|maintenance" doc:"what is announced"`
	Notice time.Duration      `name:"notice" default:"2m" min:"1s" max:"1h" doc:"from the announcement to the deadline"`
}

// Drills returns the drills of configured groups.
func (c *Config) Drills() map[nstance.GroupKey]Drill {
	out := map[nstance.GroupKey]Drill{}
	for tenant, groups := range c.Declared {
		for name, g := range groups {
			if g.Drill != nil {
				out[nstance.GroupKey{Tenant: tenant, Group: name}] = *g.Drill
			}
		}
	}
	return out
}

// WarmPool is how many stand-by machines a group has.
type WarmPool struct {
	Size   int              `name:"size" required:"true" min:"0" max:"100000" doc:"number of stand-by machines, which are never counted in the size of the group; they are on-demand machines"`
	Mode   nstance.ParkMode `name:"mode" default:"stopped" enum:"stopped|hibernated|running" doc:"how they wait: powered off, with their memory on disk, or running without work; the provider must be able to"`
	MaxAge time.Duration    `name:"max_age" absent:"they do not age" min:"1m" doc:"age from which they are made anew, one at a time"`
	Return bool             `name:"return" default:"true" doc:"one that was woken is parked again; false deletes it, and makes another one"`
}

// Spread bounds how much of a group is in one place.
type Spread struct {
	By       nstance.SpreadBy `name:"by" default:"pool" enum:"pool|type|zone|subnet|market|host" doc:"what counts as one place: an instance type in one zone and market, which clouds reclaim together; an instance type; a zone; a subnet; all of spot, the rest of the group being on-demand; a physical host, where the provider chooses hosts (proxmox)"`
	MaxShare nstance.Count    `name:"max_share" required:"true" doc:"most machines in one place, a percentage of size, rounded up, or a number"`
}
