package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/nearest"
)

// A Tenant says what operators of one tenant may name through the API.
type Tenant struct {
	Templates     []TemplateName `name:"templates" none:"true" absent:"none" doc:"templates that its groups may name"`
	SubnetPools   []PoolName     `name:"subnet_pools" none:"true" absent:"none" doc:"subnet pools that its groups may name; a template's own need not be named"`
	LoadBalancers []BalancerName `name:"load_balancers" none:"true" absent:"none" doc:"load balancers that its groups may name; a template's own need not be named"`
	InstanceTypes []string       `name:"instance_types" none:"true" absent:"none" doc:"machine types that its groups and instances may name; a template's own need not be named"`
	AllowArgs     []string       `name:"allow_args" none:"true" absent:"none" doc:"arguments that its groups and instances may set, as paths such as disk.size; paths below are permitted too"`
	MaxInstances  *int           `name:"max_instances" min:"0" max:"1000000" absent:"no limit" doc:"largest sum of its groups' sizes and its instances on demand; existing ones stay"`

	CertificateDomains []DNSSuffix `name:"certificate_domains" none:"true" absent:"dns_suffix of the certificate" doc:"domains of the names in certificates for files that its variables or its machines choose, instead of the certificate's dns_suffix"`

	MaxGroups         int     `name:"max_groups" default:"1000" min:"0" max:"5000" doc:"groups that its operators may create through the API; existing ones stay"`
	MaxGroupBytes     int     `name:"max_group_bytes" default:"1048576" min:"0" max:"67108864" doc:"total bytes of its operators' group changes through the API; existing ones stay"`
	MaxWatches        int     `name:"max_watches" default:"32" min:"1" max:"10000" doc:"watches that its operators may hold open at the same time"`
	RequestsPerSecond float64 `name:"requests_per_second" default:"100" min:"0.1" max:"100000" doc:"calls of its operators per second on average"`
	RequestBurst      int     `name:"request_burst" default:"1000" min:"1" max:"1000000" doc:"calls of its operators at once after a pause"`
}

// unlisted is what a tenant has that the configuration does not list.
var unlisted = func() (t Tenant) {
	setDefaults(reflect.ValueOf(&t).Elem())
	return t
}()

// CertificateDomains returns the domains of names in certificates that a tenant, or its
// machines, choose; none: the certificate's own.
func (c *Config) CertificateDomains(id nstance.TenantID) (domains []string) {
	for _, d := range c.Tenants[id].CertificateDomains {
		domains = append(domains, string(d))
	}
	return domains
}

// A Budget is what the operators of one tenant may use of a shard.
type Budget struct {
	Tenant                   nstance.TenantID
	MaxGroups, MaxGroupBytes int
	MaxWatches               int
	RequestsPerSecond        float64
	RequestBurst             int
}

// Budget returns what operators of a tenant may use. One that is not listed has
// the defaults.
func (c *Config) Budget(id nstance.TenantID) Budget {
	t, ok := c.Tenants[id]
	if !ok {
		t = unlisted
	}
	return Budget{id, t.MaxGroups, t.MaxGroupBytes, t.MaxWatches, t.RequestsPerSecond, t.RequestBurst}
}

// Exceeded returns the error of a call beyond the budget: what says what the
// tenant does.
func (b Budget) Exceeded(code nstance.Code, setting, what string) error {
	field := fmt.Sprintf("tenants.%s.%s", b.Tenant, setting)
	return &nstance.Error{
		Code: code, Field: field, Msg: fmt.Sprintf("tenant %s %s", b.Tenant, what),
		Remedy: fmt.Sprintf("use less, or raise %s in the configuration", field),
	}
}

// Grown fails with Quota if a tenant's groups would be too many, or what is said
// of them too long, and would be more than before.
func (b Budget) Grown(groupsBefore, groups, bytesBefore, bytes int) error {
	switch {
	case groups > groupsBefore && groups > b.MaxGroups:
		return b.Exceeded(nstance.Quota, "max_groups", fmt.Sprintf("may make %d groups", b.MaxGroups))
	case bytes > bytesBefore && bytes > b.MaxGroupBytes:
		return b.Exceeded(nstance.Quota, "max_group_bytes", fmt.Sprintf("its groups have %d bytes, the limit is %d", bytes, b.MaxGroupBytes))
	}
	return nil
}

// Bytes returns how long o is.
func (o Override) Bytes() int {
	data, err := json.Marshal(o)
	if err != nil {
		panic("config: an override is not JSON: " + err.Error()) // its args are canonical
	}
	return len(data)
}

func (d *decoder) tenant(c *Config, path string, t Tenant) {
	for i, name := range t.Templates {
		if _, ok := c.Templates[name]; !ok {
			d.wrong(index(join(path, "templates"), i), nearest.Remedy(string(name), plain(c.templateNames())), "template %q is not defined", name)
		}
	}
	d.pools(c, join(path, "subnet_pools"), t.SubnetPools)
	d.balancers(c, path, plain(t.LoadBalancers))
	for i, arg := range t.AllowArgs {
		if slices.Contains(strings.Split(arg, "."), "") {
			d.wrong(index(join(path, "allow_args"), i), "write names with a dot between them, such as disk.size", "%q has an empty name", clip.Quote(arg))
		}
	}
}

// pools reports names that are no subnet pools.
func (d *decoder) pools(c *Config, path string, pools []PoolName) {
	for i, name := range pools {
		if _, ok := c.Shard.SubnetPools[name]; !ok {
			d.wrong(index(path, i), nearest.Remedy(string(name), plain(c.poolNames())), "subnet pool %q is not in shard.subnet_pools", name)
		}
	}
}

func (c *Config) templateNames() []TemplateName { return slices.Sorted(maps.Keys(c.Templates)) }

func (c *Config) poolNames() []PoolName { return slices.Sorted(maps.Keys(c.Shard.SubnetPools)) }

func (c *Config) balancerNames() []BalancerName { return slices.Sorted(maps.Keys(c.LoadBalancers)) }

func sortedKeys(m map[string]any) []string { return slices.Sorted(maps.Keys(m)) }

// An Allowance is what a tenant may name through the API. The zero Allowance is
// everything.
type Allowance struct {
	tenant *Tenant // nil: everything
	id     nstance.TenantID
}

// Allowance returns what operators of a tenant may name. The default tenant may
// name everything unless it is listed, any other one only what is listed.
func (c *Config) Allowance(id nstance.TenantID) Allowance {
	t, ok := c.Tenants[id]
	if !ok && id == nstance.DefaultTenant {
		return Allowance{}
	}
	return Allowance{&t, id}
}

// Check fails with Denied, naming the field, if o names what is not permitted.
func (a Allowance) Check(o Override) error {
	if a.tenant == nil {
		return nil
	}
	if o.Template != "" && !slices.Contains(a.tenant.Templates, o.Template) {
		return a.deny("template", "templates", string(o.Template))
	}
	if o.SubnetPool != "" && !slices.Contains(a.tenant.SubnetPools, o.SubnetPool) {
		return a.deny("subnet_pool", "subnet_pools", string(o.SubnetPool))
	}
	if o.InstanceType != nil && !slices.Contains(a.tenant.InstanceTypes, *o.InstanceType) {
		return a.deny("instance_type", "instance_types", *o.InstanceType)
	}
	for _, t := range o.InstanceTypes {
		if !slices.Contains(a.tenant.InstanceTypes, t) {
			return a.deny("instance_types", "instance_types", t)
		}
	}
	for _, lb := range o.LoadBalancers {
		if !slices.Contains(a.tenant.LoadBalancers, BalancerName(lb)) {
			return a.deny("load_balancers", "load_balancers", lb)
		}
	}
	return a.checkArgs(o.Args)
}

func (a Allowance) deny(field, list, name string) error {
	return &nstance.Error{
		Code: nstance.Denied, Field: field, Msg: fmt.Sprintf("tenant %s may not name %q", a.id, clip.Quote(name)),
		Remedy: fmt.Sprintf("list it in tenants.%s.%s of the configuration", a.id, list),
	}
}

// checkArgs looks at every argument that is set.
func (a Allowance) checkArgs(args json.RawMessage) error {
	if len(args) == 0 {
		return nil
	}
	canonical, err := ParseArgs(args)
	if err != nil {
		return err
	}
	return a.checkBelow(nil, decodeArgs(canonical))
}

// checkBelow looks at every argument at and below path.
func (a Allowance) checkBelow(path []string, v any) error {
	if a.permits(path) {
		return nil
	}
	below, ok := v.(map[string]any)
	if !ok || len(below) == 0 && len(path) > 0 {
		field := "args"
		for _, name := range path {
			field = join(field, name)
		}
		return a.deny(field, "allow_args", strings.TrimPrefix(field, "args."))
	}
	for _, key := range sortedKeys(below) {
		if err := a.checkBelow(append(slices.Clip(path), key), below[key]); err != nil {
			return err
		}
	}
	return nil
}

func (a Allowance) permits(path []string) bool {
	return slices.ContainsFunc(a.tenant.AllowArgs, func(allowed string) bool {
		return slices.Equal(strings.Split(allowed, "."), path)
	})
}

// Room fails with Quota, naming the field, if more instances than the tenant
// has would be too many.
func (a Allowance) Room(field string, has, more int) error {
	if a.tenant == nil || a.tenant.MaxInstances == nil || more <= 0 || has+more <= *a.tenant.MaxInstances {
		return nil
	}
	return &nstance.Error{
		Code: nstance.Quota, Field: field, Remedy: fmt.Sprintf("raise tenants.%s.max_instances in the configuration", a.id),
		Msg: fmt.Sprintf("tenant %s may have %d instances: it has, or asks for, %d, and %d more are too many", a.id, *a.tenant.MaxInstances, has, more),
	}
}

// MayDynamic fails with Invalid unless dynamic groups may be in the subnet pool
// of g.
func (c *Config) MayDynamic(g nstance.Group) error {
	pool := PoolName(g.Definition.SubnetPool)
	if pool == "" || slices.Contains(c.Shard.DynamicSubnetPools, pool) {
		return nil
	}
	return nstance.FieldError("subnet_pool", "list it in shard.dynamic_subnet_pools of the configuration, or use one of those",
		"subnet pool %q is not for groups made through the API", pool)
}

// A Changer is the caller on whose behalf groups are changed.
type Changer struct {
	Subject   string
	Allowance Allowance // what it may name
	Budget    *Budget   // nil: no limit
	Owner     string    // of groups that it may change beside those without owner; empty: none
	AnyOwner  bool      // it may change groups of every owner
	Release   bool      // the group has no owner afterwards
}
