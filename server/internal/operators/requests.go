package operators

import (
	"encoding/json"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/config"
)

// overrideOf returns what a request changes. A field that is present and empty clears
// the override.
func overrideOf(req *apiv1.UpdateGroupRequest) (config.Override, error) {
	o := config.Override{
		Size: sizeOf(req.Size), InstanceType: req.InstanceType, Template: config.TemplateName(req.GetTemplate()),
		SubnetPool: config.PoolName(req.GetSubnetPool()), DrainTimeout: spanOf(req.GetDrainTimeout()), Rollout: paceOf(req.GetRollout()),
		Protect: req.Protect, Market: purchaseOf(req.GetMarket()), Spread: dispersalOf(req.GetSpread()), Order: nstance.ShapeOrder(req.GetOrder()),
		WarmPool:    reserveOf(req.GetWarmPool()),
		OnReclaim:   nstance.ReclaimAction(req.GetOnReclaim()),
		OnRebalance: nstance.NoticeAction(req.GetOnRebalance()), OnMaintenance: nstance.NoticeAction(req.GetOnMaintenance()),
		OnDrainTimeout: nstance.DrainTimeoutAction(req.GetOnDrainTimeout()),
	}
	if req.InstanceType != nil && req.GetInstanceTypes() != nil {
		return o, nstance.FieldError("instance_types", "leave one of them out", "is given beside instance_type")
	}
	if req.GetInstanceTypes() != nil {
		o.InstanceTypes = append([]string{}, req.GetInstanceTypes().GetValues()...)
	}
	if req.GetLoadBalancers() != nil {
		o.LoadBalancers = append([]string{}, req.GetLoadBalancers().GetValues()...)
	}
	if req.GetVars() != nil {
		o.Vars = req.GetVars().GetValues()
		if o.Vars == nil {
			o.Vars = map[string]string{}
		}
	}
	for _, named := range []struct {
		field string
		value *string
	}{{"template", req.Template}, {"subnet_pool", req.SubnetPool}} {
		if named.value != nil && *named.value == "" {
			return o, nstance.FieldError(named.field, "leave it out instead", "is empty")
		}
	}
	if req.Args == nil {
		return o, nil
	}
	args, err := config.ParseArgs(json.RawMessage(req.GetArgs()))
	if args == nil {
		args = json.RawMessage("{}")
	}
	o.Args = args
	return o, err
}

func sizeOf(n *int32) *int {
	if n == nil {
		return nil
	}
	return new(int(*n))
}

func spanOf(d *durationpb.Duration) *config.Duration {
	if d == nil {
		return nil
	}
	return new(config.Duration(d.AsDuration()))
}

func paceOf(r *apiv1.Rollout) *config.Pace {
	if r == nil {
		return nil
	}
	return &config.Pace{MaxSurge: r.GetMaxSurge(), MinReady: spanOf(r.GetMinReady()), HaltAfter: sizeOf(r.HaltAfter)}
}

func dispersalOf(s *apiv1.Spread) *config.Dispersal {
	if s == nil {
		return nil
	}
	return &config.Dispersal{By: nstance.SpreadBy(s.GetBy()), MaxShare: s.GetMaxShare()}
}

func reserveOf(p *apiv1.WarmPool) *config.Reserve {
	if p == nil {
		return nil
	}
	return &config.Reserve{
		Size: int(p.GetSize()), Mode: nstance.ParkMode(p.GetMode()), MaxAge: config.Duration(p.GetMaxAge().AsDuration()),
		NoReturn: p.Return != nil && !p.GetReturn(),
	}
}

func purchaseOf(m *apiv1.Market) *config.Purchase {
	if m == nil {
		return nil
	}
	out := &config.Purchase{
		Type: nstance.MarketType(m.GetType()), MaxPrice: m.GetMaxPrice(),
		Fallback: nstance.MarketType(m.GetFallback()), FallbackAfter: config.Duration(m.GetFallbackAfter().AsDuration()),
		ReturnAfter: config.Duration(m.GetReturnAfter().AsDuration()), OnDemandBase: m.GetOnDemandBase(),
	}
	if when := m.GetFallbackWhen(); when != nil {
		out.FallbackWhen = &config.Reclaims{Reclaims: int(when.GetReclaims()), Window: config.Duration(when.GetWindow().AsDuration())}
	}
	return out
}
