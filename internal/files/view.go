package files

import (
	"encoding/json"
	"maps"
	"net/netip"
	"slices"

	"github.com/nstance-go/nstance"
)

// Common is what templates see that is alike on all machines of a group.
type Common struct {
	Cluster  Cluster
	Server   Server
	Provider Provider
}

// Cluster is .Cluster.
type Cluster struct {
	ID     nstance.ClusterID
	CACert string // PEM of the identity authority
}

// Server is .Server.
type Server struct {
	Shard                                     nstance.ShardID
	RegistrationAddr, AgentAddr, OperatorAddr string
}

// Provider is .Provider.
type Provider struct{ Kind, Region, Zone string }

// Instance is .Instance. What is not known is empty.
type Instance struct {
	ID       nstance.InstanceID
	Kind     nstance.InstanceKind
	Arch     nstance.Arch
	Type     string
	Hostname string
	FQDN     string
	IP4, IP6 string
}

// A Machine is the one that a set is for.
type Machine struct {
	Instance  Instance
	Image     string
	Tenant    nstance.TenantID
	Addresses []netip.Addr // for certificates: as the provider reports them

	GivenVars []string // variables that were set through the API
	Domains   []string // of names that those, or the machine, choose; none: dns_suffix of the certificate
}

// known returns m without what the machine itself has claimed.
func (m *Machine) known() *Machine {
	known := *m
	known.Instance.Hostname, known.Instance.FQDN = "", ""
	for _, ip := range []*string{&known.Instance.IP4, &known.Instance.IP6} {
		if !slices.ContainsFunc(m.Addresses, func(a netip.Addr) bool { return a.Unmap().String() == *ip }) {
			*ip = ""
		}
	}
	return &known
}

// knownVars returns vars without those that were set through the API.
func (m *Machine) knownVars(vars map[string]string) map[string]string {
	known := maps.Clone(vars)
	for _, name := range m.GivenVars {
		delete(known, name)
	}
	return known
}

// A view is what a template sees. Its methods are the template's fields, so
// that it is noticed when one looks at what differs from machine to machine.
type view struct {
	common  *Common
	vars    map[string]string
	machine *Machine // nil: that of none
	own     bool     // the machine was looked at
}

// Cluster is a field of templates, as are the methods that follow.
func (v *view) Cluster() Cluster { return v.common.Cluster }

func (v *view) Server() Server { return v.common.Server }

func (v *view) Provider() Provider { return v.common.Provider }

func (v *view) Vars() map[string]string { return v.vars }

func (v *view) Instance() Instance {
	if v.own = true; v.machine == nil {
		return Instance{}
	}
	return v.machine.Instance
}

func (v *view) Image() string {
	if v.own = true; v.machine == nil {
		return ""
	}
	return v.machine.Image
}

// String is what a template prints that prints everything.
func (v *view) String() string {
	data, err := v.MarshalJSON()
	if err != nil {
		return "" // unreachable: strings always encode
	}
	return string(data)
}

// MarshalJSON is what a template gets that encodes everything.
func (v *view) MarshalJSON() ([]byte, error) {
	return json.Marshal(map[string]any{
		"Cluster": v.common.Cluster, "Server": v.common.Server, "Provider": v.common.Provider, "Vars": v.vars,
		"Instance": v.Instance(), "Image": v.Image(),
	})
}
