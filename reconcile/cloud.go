package reconcile

import (
	"maps"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/groupspec"
	"github.com/nstance-go/nstance/internal/loop"
	"github.com/nstance-go/nstance/reconcile/internal/cloudfacts"
	"github.com/nstance-go/nstance/reconcile/internal/place"
)

// question returns what the groups as they are must know of the cloud.
func (r *Reconciler) question() cloudfacts.Question {
	r.mu.Lock()
	defer r.mu.Unlock()
	subnets, spotTypes, spotSubnets, sizes := map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]int{}
	for _, g := range r.groups {
		def := g.spec.Definition
		if len(def.Subnets) > 1 { // else there is nothing to choose
			addAll(subnets, def.Subnets)
		}
		if def.Market.Type != nstance.Spot || len(def.InstanceTypes) == 0 {
			continue
		}
		addAll(spotTypes, def.InstanceTypes)
		addAll(spotSubnets, def.Subnets)
		if groupspec.Order(&g.spec) == nstance.OrderSteadiest && g.spec.Size > 0 {
			key := place.TypesKey(def.InstanceTypes)
			sizes[key] = max(sizes[key], g.spec.Size)
		}
	}
	return cloudfacts.Question{
		Subnets: slices.Sorted(maps.Keys(subnets)), SpotTypes: slices.Sorted(maps.Keys(spotTypes)),
		SpotSubnets: slices.Sorted(maps.Keys(spotSubnets)), GroupSizes: sizes,
	}
}

func addAll(set map[string]bool, names []string) {
	for _, name := range names {
		set[name] = true
	}
}

// recordAddresses records free addresses as they were counted by a question that was
// asked then. What creates have taken since may not be in the count.
func (r *Reconciler) recordAddresses(free map[string]int, asked time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.places.SetAddresses(free, asked)
	for _, m := range r.members {
		if m.subnet != "" && (!m.machineKnown() || !m.machineSince.Before(asked)) {
			r.places.TakeAddress(m.subnet)
		}
	}
}

// recordPrices records an answer about types. It is the price at launch of machines that
// were created a moment before.
func (r *Reconciler) recordPrices(types []string, prices []nstance.Price, asked time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.places.SetPrices(types, prices, asked)
	for _, m := range r.members {
		if m.price == 0 && m.rec.PricePerHour == 0 && asked.Sub(m.rec.CreatedAt) < cloudfacts.PriceInterval {
			m.price = r.places.Price(capacityShape(m.rec.Shape), asked)
		}
	}
	if r.loaded {
		r.admitCreates(r.opts.Now(), nil)
	}
}

func (r internals) SetPoolRates(rates []loop.PoolRate) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := make([]place.Rate, len(rates))
	for i, rate := range rates {
		known[i] = place.Rate(rate)
	}
	r.places.SetRates(known, r.opts.Now())
}
