package webhooks

import (
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/validate"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
)

func poolRules(p *infrav1.NstanceMachinePool) field.ErrorList {
	path, group := field.NewPath("spec", "group"), p.Spec.Group
	if group == "" {
		path, group = field.NewPath("metadata", "name"), p.Name
	}
	broken := nameError(path, group, validate.Name("", group))
	if len(broken) > 0 && p.Spec.Group == "" {
		broken[0].Detail += "; or give the group a name of its own in spec.group"
	}
	return append(broken, poolSpecRules(field.NewPath("spec"), &p.Spec)...)
}

// poolSpecRules are the rules that hold for templates of pools too.
func poolSpecRules(spec *field.Path, p *infrav1.NstanceMachinePoolSpec) (broken field.ErrorList) {
	for i, shard := range p.Shards {
		broken = append(broken, nameError(spec.Child("shards").Index(i), shard, validate.Shard("", nstance.ShardID(shard)))...)
	}
	return append(broken, groupRules(spec, groupSpec{p.Template, p.SubnetPool, p.DrainTimeout, p.OnDrainTimeout, p.Shape})...)
}

// poolUpdate keeps the name of the group: its machines belong to it.
func poolUpdate(old, changed *infrav1.NstanceMachinePool) field.ErrorList {
	groupOf := func(p *infrav1.NstanceMachinePool) string {
		if p.Spec.Group != "" {
			return p.Spec.Group
		}
		return p.Name
	}
	return unchanged(field.NewPath("spec", "group"), groupOf(old), groupOf(changed), "make another MachinePool, and scale this one to 0")
}

func poolTemplateRules(t *infrav1.NstanceMachinePoolTemplate) (broken field.ErrorList) {
	spec := field.NewPath("spec", "template", "spec")
	if len(t.Spec.Template.Spec.ProviderIDList) > 0 {
		broken = append(broken, field.Forbidden(spec.Child("providerIDList"), "belongs to one pool, and the operator sets it: remove it"))
	}
	if group := t.Spec.Template.Spec.Group; group != "" {
		broken = append(broken, nameError(spec.Child("group"), group, validate.Name("", group))...)
	}
	return append(broken, poolSpecRules(spec, &t.Spec.Template.Spec)...)
}

func poolTemplateUpdate(old, changed *infrav1.NstanceMachinePoolTemplate) field.ErrorList {
	return unchanged(field.NewPath("spec", "template", "spec"), old.Spec.Template.Spec, changed.Spec.Template.Spec, makeAnother)
}

func shardGroupRules(g *infrav1.NstanceShardGroup) (broken field.ErrorList) {
	spec := field.NewPath("spec")
	broken = append(broken, nameError(spec.Child("group"), g.Spec.Group, validate.Name("", g.Spec.Group))...)
	broken = append(broken, nameError(spec.Child("shard"), g.Spec.Shard, validate.Shard("", nstance.ShardID(g.Spec.Shard)))...)
	return append(broken, groupRules(spec, groupSpec{g.Spec.Template, g.Spec.SubnetPool, g.Spec.DrainTimeout, g.Spec.OnDrainTimeout, g.Spec.Shape})...)
}

// A groupSpec is what pools and groups of one shard have in common.
type groupSpec struct {
	template, subnetPool string
	drainTimeout         *metav1.Duration
	onDrainTimeout       infrav1.DrainTimeoutAction
	infrav1.Shape
}

// groupRules refuses what a shard would not take over. Of a group of the shard's own
// configuration, which is one without template, only size, instance type and vars
// can be changed.
func groupRules(spec *field.Path, g groupSpec) (broken field.ErrorList) {
	if g.drainTimeout != nil && g.drainTimeout.Duration < 0 {
		broken = append(broken, field.Invalid(spec.Child("drainTimeout"), g.drainTimeout.Duration.String(), "is negative: use 0s for no drain, or leave it out for the shard's default"))
	}
	if _, unnamed := g.Vars[""]; unnamed {
		broken = append(broken, field.Invalid(spec.Child("vars"), "", "a variable has no name: name it, or remove it"))
	}
	if g.template != "" {
		return broken
	}
	for _, restricted := range []struct {
		name string
		set  bool
	}{
		{"subnetPool", g.subnetPool != ""}, {"loadBalancers", len(g.LoadBalancers) > 0},
		{"drainTimeout", g.drainTimeout != nil}, {"onDrainTimeout", g.onDrainTimeout != ""}, {"spot", g.Spot != nil},
	} {
		if restricted.set {
			broken = append(broken, field.Forbidden(spec.Child(restricted.name),
				"belongs to the shard's configuration, since the group is made from no template: change it there, or name a template in spec.template"))
		}
	}
	return broken
}

// explain returns what an error says and its remedy, without its field.
func explain(err error) string {
	if e, ok := errors.AsType[*nstance.Error](err); ok {
		return e.Msg + ": " + e.Remedy
	}
	return err.Error()
}
