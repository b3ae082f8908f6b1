package config

import (
	"cmp"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/render"
	"github.com/nstance-go/nstance/provider"
)

// trySpecs has the provider check, with samples, the machines that a group may
// ask for: each instance type, each subnet and each market once.
func (r trial) trySpecs(at string, g nstance.Group, args any, userData []byte) {
	kind := r.conf.kind
	if kind == nil {
		return
	}
	spec, err := r.sampleSpec(g, args, userData)
	if err != nil {
		return // args came out of JSON
	}
	for i, name := range g.Definition.InstanceTypes {
		spec.InstanceType = name
		r.trySpec(at, r.typePath(at, g, i), g, spec)
	}
	if len(g.Definition.InstanceTypes) == 0 {
		r.trySpec(at, join(at, "instance_type"), g, spec)
	}
	for _, subnet := range g.Definition.Subnets {
		spec.Subnet = subnet
		r.trySpec(at, join(at, "instance_type"), g, spec)
	}
	if spec.Market == nstance.Spot && g.Definition.Market.Fallback != "" {
		spec.Market, spec.MaxPrice = g.Definition.Market.Fallback, ""
		r.trySpec(at, join(at, "instance_type"), g, spec)
	}
	if mode := g.WarmPool.Mode; g.WarmPool.Size > 0 && mode != nstance.ParkRunning {
		spec.Market, spec.MaxPrice, spec.Park = nstance.OnDemand, "", mode
		r.trySpec(at, join(at, "instance_type"), g, spec)
	}
}

// fitting returns user data as a server sends them to the provider.
func (r trial) fitting(userData []byte) []byte {
	if r.conf.kind == nil || r.conf.kind.MaxUserData == 0 {
		return userData
	}
	return render.Fit(userData, r.conf.kind.MaxUserData)
}

func (r trial) sampleSpec(g nstance.Group, args any, userData []byte) (nstance.MachineSpec, error) {
	def := g.Definition
	sampled := sample(def, nil)
	raw, err := json.Marshal(args)
	if string(raw) == "null" {
		raw = nil
	}
	image := def.Image
	if _, named, ok := r.conf.Image(TemplateName(g.Template)); ok && named.ID == "" {
		image = cmp.Or(r.conf.kind.SampleImage, sampled.Image)
	}
	spec := nstance.MachineSpec{
		ID: sampled.Instance.ID, Group: g.Key.Group, CreatedAt: time.Unix(1_748_000_000, 0).UTC(), Epoch: 1, Arch: def.Arch, Image: image,
		Owner:  nstance.Owner{Installation: "0123456789abcdef0123456789abcdef", Cluster: r.conf.Cluster.ID, Shard: r.conf.Shard.ID, Tenant: g.Key.Tenant},
		Market: def.Market.Type, MaxPrice: def.Market.MaxPrice, Args: raw, UserData: userData, Token: string(sampled.Instance.ID) + "-01234567",
	}
	if len(def.Subnets) > 0 {
		spec.Subnet = def.Subnets[0]
	}
	return spec, err
}

// trySpec has the provider check one spec. typePath is where its instance type
// comes from.
func (r trial) trySpec(at, typePath string, g nstance.Group, spec nstance.MachineSpec) {
	key := strings.Join([]string{at, spec.InstanceType, spec.Subnet, string(spec.Market), string(spec.Park)}, "\x00")
	if r.checked[key] {
		return
	}
	r.checked[key] = true
	kind := r.conf.kind
	err := provider.ValidateSpec(spec, kind.MaxUserData)
	if err == nil {
		err = kind.CheckSpec(r.conf.Shard.Provider.Settings(nil), spec)
	}
	e, ok := errors.AsType[*nstance.Error](err)
	if !ok || e.Code != nstance.Invalid {
		return
	}
	path := r.specPath(at, typePath, g, e.Field)
	if _, given := r.at[path]; given || g.Size > 0 { // what is missing may come with a request
		r.wrong(path, e.Remedy, "%s", e.Msg)
	}
}

// specPath returns where the file has what a provider calls field of a group's
// machines: what the group says itself, else its template, else the defaults.
func (r trial) specPath(at, typePath string, g nstance.Group, field string) string {
	field = strings.TrimPrefix(field, "spec.")
	first, _, _ := strings.Cut(field, ".")
	first, _, _ = strings.Cut(first, "[")
	if first == "instance_type" {
		return typePath
	}
	if first == "subnet" {
		field = "subnet_pool"
	}
	return r.inherited(at, g.Template, field)
}

// typePath returns where the instance type with that index is in the file.
func (r trial) typePath(at string, g nstance.Group, i int) string {
	for _, base := range []string{at, join("templates", g.Template)} {
		for _, path := range []string{join(base, "instance_type"), index(join(base, "instance_types"), i)} {
			if _, ok := r.at[path]; ok {
				return path
			}
		}
	}
	return join(at, "instance_type")
}
