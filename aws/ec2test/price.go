package ec2test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

type spotPriceInput struct {
	dryRun
	pageInput
	Filters             []filterInput `q:"Filter"`
	InstanceTypes       []string      `q:"InstanceType"`
	ProductDescriptions []string      `q:"ProductDescription"`
	AvailabilityZone    string
	StartTime           string
	EndTime             string
}

type spotPriceOutput struct {
	Prices    []spotPriceItem `xml:"spotPriceHistorySet>item"`
	NextToken string          `xml:"nextToken"`
}

type spotPriceItem struct {
	Type    string `xml:"instanceType"`
	Product string `xml:"productDescription"`
	Price   string `xml:"spotPrice"`
	At      string `xml:"timestamp"`
	Zone    string `xml:"availabilityZone"`
}

// A priceChange is one entry of the price history.
type priceChange struct {
	kind, zone, price string
	at                time.Time
}

// SetSpotPrice changes the price of a type in a zone from now on, and fulfils the open
// requests that can pay it.
func (c *Cloud) SetSpotPrice(kind, zone, price string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.spot.history = append(c.spot.history, priceChange{kind, zone, price, time.Now()})
	c.launcher.fulfillOpen()
}

// firstPrices are those of the catalog, in effect since an hour.
func (o *Options) firstPrices() (all []priceChange) {
	for _, k := range o.Catalog.Types {
		for _, zone := range o.zones() {
			if k.SpotPrice != "" && !k.NoSpot && (k.Zones == nil || slices.Contains(k.Zones, zone)) {
				all = append(all, priceChange{k.Name, zone, k.SpotPrice, time.Now().Add(-time.Hour)})
			}
		}
	}
	return all
}

// describePrices returns the changes since StartTime, and those in effect then.
func (sm *spotMarket) describePrices(_ call, in *spotPriceInput) (*spotPriceOutput, error) {
	names := []string{"availability-zone", "instance-type", "product-description", "spot-price", "timestamp"}
	if err := checkFilters(in.Filters, names); err != nil {
		return nil, err
	}
	start := time.Time{}
	if in.StartTime != "" {
		var err error
		if start, err = time.Parse(time.RFC3339Nano, in.StartTime); err != nil {
			return nil, invalid("Value ( %s ) for parameter startTime is invalid.", in.StartTime)
		}
	}
	items := map[string]spotPriceItem{}
	for n, change := range sm.history {
		superseded := slices.ContainsFunc(sm.history[n+1:], func(o priceChange) bool {
			return o.kind == change.kind && o.zone == change.zone && !o.at.After(start)
		})
		if change.at.Before(start) && superseded {
			continue
		}
		for _, product := range []string{"Linux/UNIX", "Windows"} {
			item := spotPriceItem{change.kind, product, change.price, stamp(change.at), change.zone}
			if price, err := strconv.ParseFloat(item.Price, 64); err == nil && product == "Windows" { // a licence is in it
				item.Price = fmt.Sprintf("%.4f", price+1)
			}
			if in.covers(item) {
				items[strings.Join([]string{change.kind, change.zone, fmt.Sprintf("%06d", n), product}, "/")] = item
			}
		}
	}
	var keys []string
	for key := range items {
		keys = append(keys, key)
	}
	page, next, err := sm.o.page(in.pageInput, keys, 1, maxPage)
	if err != nil {
		return nil, err
	}
	out := &spotPriceOutput{NextToken: next}
	for _, key := range page {
		out.Prices = append(out.Prices, items[key])
	}
	return out, nil
}

func (in *spotPriceInput) covers(p spotPriceItem) bool {
	has := filterable{"availability-zone": {p.Zone}, "instance-type": {p.Type}, "product-description": {p.Product}, "spot-price": {p.Price}, "timestamp": {p.At}}
	return fits(in.Filters, has, nil) && (len(in.InstanceTypes) == 0 || slices.Contains(in.InstanceTypes, p.Type)) &&
		(len(in.ProductDescriptions) == 0 || slices.Contains(in.ProductDescriptions, p.Product)) &&
		(in.AvailabilityZone == "" || in.AvailabilityZone == p.Zone)
}
