package ec2test

import (
	"slices"
	"strings"
)

// zoneInput is the input of DescribeAvailabilityZones, which has no pages.
type zoneInput struct {
	dryRun
	Filters              []filterInput `q:"Filter"`
	ZoneNames            []string      `q:"ZoneName"`
	ZoneIds              []string      `q:"ZoneId"`
	AllAvailabilityZones bool
}

type zoneOutput struct {
	Zones []zoneItem `xml:"availabilityZoneInfo>item"`
}

type zoneItem struct {
	OptIn  string `xml:"optInStatus"`
	Region string `xml:"regionName"`
	Name   string `xml:"zoneName"`
	ID     string `xml:"zoneId"`
	Group  string `xml:"groupName"`
	Border string `xml:"networkBorderGroup"`
	Kind   string `xml:"zoneType"`
	State  string `xml:"zoneState"`
}

// ZoneID returns the ID of a zone. As in an account of AWS, the order of the IDs is not
// that of the names: the zone a is not the first.
func (c *Cloud) ZoneID(name string) string { return c.o.zoneID(name) }

func (o *Options) zoneID(name string) string {
	zones := o.zones()
	i := slices.Index(zones, name)
	if i < 0 {
		return ""
	}
	return zonePrefix(o.Region) + "-az" + itoa((i+1)%len(zones)+1)
}

// zonePrefix shortens the name of a region as zone IDs do: us-east-1 is use1.
func zonePrefix(region string) string {
	parts := strings.Split(region, "-")
	out := parts[0]
	for _, p := range parts[1:] {
		out += p[:1]
	}
	return out
}

// zones returns the zones of the catalog's subnets, sorted.
func (o *Options) zones() (out []string) {
	for _, s := range o.Catalog.Subnets {
		if !slices.Contains(out, s.Zone) {
			out = append(out, s.Zone)
		}
	}
	slices.Sort(out)
	return out
}

func (v *inventory) describeAvailabilityZones(_ call, in *zoneInput) (*zoneOutput, error) {
	filters := []string{"zone-id", "zone-name", "region-name", "state", "opt-in-status", "zone-type"}
	if err := checkFilters(in.Filters, filters); err != nil {
		return nil, err
	}
	for _, name := range in.ZoneNames {
		if !slices.Contains(v.o.zones(), name) {
			return nil, invalid("Invalid availability zone: [%s]", name)
		}
	}
	out := &zoneOutput{}
	for _, name := range v.o.zones() {
		id := v.o.zoneID(name)
		has := filterable{
			"zone-id": {id}, "zone-name": {name}, "region-name": {v.o.Region}, "state": {"available"}, "opt-in-status": {"opt-in-not-required"}, "zone-type": {"availability-zone"},
		}
		asked := (in.ZoneNames == nil || slices.Contains(in.ZoneNames, name)) && (in.ZoneIds == nil || slices.Contains(in.ZoneIds, id))
		if asked && fits(in.Filters, has, nil) {
			out.Zones = append(out.Zones, zoneItem{"opt-in-not-required", v.o.Region, name, id, v.o.Region + "-zg-1", v.o.Region, "availability-zone", "available"})
		}
	}
	return out, nil
}
