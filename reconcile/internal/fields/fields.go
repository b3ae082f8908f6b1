// Package fields lists the fields of a group that no hash of its definition covers, and writes
// values for a screen.
package fields

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/confighash"
	"github.com/nstance-go/nstance/internal/groupspec"
)

// longest value that is shown as it is, in bytes.
const shown = 128

// Abridge replaces what is long, and templates, which may say more than a person
// wants on a screen, by what tells them apart.
func Abridge(c confighash.Change) confighash.Change {
	template := c.Path == "userdata.content" || strings.HasPrefix(c.Path, "files") && strings.HasSuffix(c.Path, ".content")
	for _, v := range []*string{&c.Before, &c.After} {
		if *v != "" && (template || len(*v) > shown) {
			sum := sha256.Sum256([]byte(*v))
			*v = fmt.Sprintf("%d bytes, sha256 %x", len(*v), sum[:6])
		}
	}
	return c
}

// Plain returns the fields that neither hash covers and in which two groups differ.
func Plain(before, after *nstance.Group) (out []confighash.Change) {
	for _, f := range plain {
		if was, will := f.of(before), f.of(after); was != will {
			out = append(out, confighash.Change{Path: f.path, Before: was, After: will})
		}
	}
	return out
}

var plain = []struct {
	path string
	of   func(*nstance.Group) string
}{
	{"size", func(g *nstance.Group) string { return strconv.Itoa(g.Size) }},
	{"template", func(g *nstance.Group) string { return g.Template }},
	{"image", func(g *nstance.Group) string { return g.Definition.Image }},
	{"role", func(g *nstance.Group) string { return string(g.Definition.Role) }},
	{"subnets", func(g *nstance.Group) string { return listed(g.Definition.Subnets) }},
	{"load_balancers", func(g *nstance.Group) string { return listed(g.Definition.LoadBalancers) }},
	{"market.fallback_after", func(g *nstance.Group) string { return spelt(g.Definition.Market.FallbackAfter) }},
	{"market.return_after", func(g *nstance.Group) string { return spelt(g.Definition.Market.ReturnAfter) }},
	{"market.fallback_when", func(g *nstance.Group) string { return reclaimLimit(g.Definition.Market.FallbackWhen) }},
	{"market.on_demand_base", func(g *nstance.Group) string { return g.Definition.Market.OnDemandBase.String() }},
	{"launch_timeout", func(g *nstance.Group) string { return spelt(g.Definition.LaunchTimeout) }},
	{"registration_timeout", func(g *nstance.Group) string { return spelt(g.Definition.RegistrationTimeout) }},
	{"drain_timeout", func(g *nstance.Group) string { return spelt(g.DrainTimeout) }},
	{"rollout.max_surge", func(g *nstance.Group) string { return g.Rollout.MaxSurge.String() }},
	{"rollout.min_ready", func(g *nstance.Group) string { return spelt(g.Rollout.MinReady) }},
	{"rollout.halt_after", func(g *nstance.Group) string { return strconv.Itoa(g.Rollout.HaltAfter) }},
	{"expiry.eligible_age", func(g *nstance.Group) string { return spelt(g.Expiry.EligibleAge) }},
	{"expiry.forced_age", func(g *nstance.Group) string { return spelt(g.Expiry.ForcedAge) }},
	{"expiry.on_demand_age", func(g *nstance.Group) string { return spelt(g.Expiry.OnDemandAge) }},
	{"on_rebalance", func(g *nstance.Group) string { return string(groupspec.OnRebalance(g)) }},
	{"on_maintenance", func(g *nstance.Group) string { return string(groupspec.OnMaintenance(g)) }},
	{"on_drain_timeout", func(g *nstance.Group) string { return string(groupspec.OnDrainTimeout(g)) }},
	{"spread", func(g *nstance.Group) string { return spreadText(g.Spread) }},
	{"order", func(g *nstance.Group) string { return string(groupspec.Order(g)) }},
	{"warm_pool", func(g *nstance.Group) string { return warmPool(g.WarmPool) }},
	{"on_reclaim", func(g *nstance.Group) string { return string(cmp.Or(g.OnReclaim, nstance.ReclaimDrain)) }},
	{"protect", func(g *nstance.Group) string { return strconv.FormatBool(g.Protect) }},
	{"owner", func(g *nstance.Group) string { return g.Owner }},
}

func warmPool(p nstance.WarmPool) string {
	if p.Size == 0 {
		return ""
	}
	out := fmt.Sprintf("%d %s", p.Size, p.Mode)
	if p.MaxAge > 0 {
		out += ", at most " + spelt(p.MaxAge) + " old"
	}
	if p.NoReturn {
		out += ", used once"
	}
	return out
}

// spreadText says it in words, such as at most 34% in one pool; empty: no bound.
func spreadText(s nstance.Spread) string {
	if s == (nstance.Spread{}) {
		return ""
	}
	return "at most " + s.MaxShare.String() + " in one " + string(s.By)
}

func reclaimLimit(l nstance.ReclaimLimit) string {
	if l == (nstance.ReclaimLimit{}) {
		return ""
	}
	return fmt.Sprintf("%d reclaims in %s", l.Reclaims, l.Window)
}

func spelt(d time.Duration) string { return d.String() }

func listed(all []string) string {
	if len(all) == 0 {
		return ""
	}
	b, err := json.Marshal(all)
	if err != nil {
		return strings.Join(all, ",") // unreachable: strings always encode
	}
	return string(b)
}
