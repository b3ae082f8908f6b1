package ec2test

import (
	"slices"
	"strings"
)

type scoreInput struct {
	dryRun
	MaxResults             *int
	NextToken              string
	InstanceTypes          []string `q:"InstanceType"`
	RegionNames            []string `q:"RegionName"`
	SingleAvailabilityZone bool
	TargetCapacity         *int
}

type scoreOutput struct {
	Scores    []scoreItem `xml:"spotPlacementScoreSet>item"`
	NextToken string      `xml:"nextToken,omitempty"`
}

type scoreItem struct {
	Region string `xml:"region"`
	ZoneID string `xml:"availabilityZoneId,omitempty"`
	Score  int    `xml:"score"`
}

// placementScores answer how likely spot capacity is.
type placementScores struct {
	o      *Options
	byZone map[string]int
	asked  []string // configurations that were asked about
}

// scoreConfigurations is how many different questions are answered in a day.
const scoreConfigurations = 10

// SetScore sets the placement score of a zone; others have 5.
func (c *Cloud) SetScore(zone string, score int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.scores.byZone == nil {
		c.scores.byZone = map[string]int{}
	}
	c.scores.byZone[zone] = score
}

func (p *placementScores) get(_ call, in *scoreInput) (*scoreOutput, error) {
	switch {
	case in.TargetCapacity == nil || *in.TargetCapacity < 1:
		return nil, refuse("MissingParameter", "The request must contain the parameter TargetCapacity")
	case len(in.RegionNames) > 0 && !slices.Contains(in.RegionNames, p.o.Region), !in.SingleAvailabilityZone:
		return nil, refuse("UnsupportedOperation", "this test cloud scores the zones of its own region")
	}
	asked := strings.Join(slices.Sorted(slices.Values(in.InstanceTypes)), ",") + "/" + itoa(*in.TargetCapacity)
	if !slices.Contains(p.asked, asked) {
		if len(p.asked) >= scoreConfigurations {
			return nil, refuse("MaxConfigLimitExceeded", "You have exceeded your maximum allowed Spot placement configurations.")
		}
		p.asked = append(p.asked, asked)
	}
	out := &scoreOutput{}
	if len(in.RegionNames) == 0 { // the ten best of all regions ("GetSpotPlacementScores"), here those of another one
		for i := range 10 {
			out.Scores = append(out.Scores, scoreItem{"xx-test-1", "xxt1-az" + itoa(i+1), 10})
		}
		return out, nil
	}
	for _, zone := range p.o.zones() {
		score := 5
		if n, ok := p.byZone[zone]; ok {
			score = n
		}
		if len(in.InstanceTypes) < 3 {
			score = 1
		}
		out.Scores = append(out.Scores, scoreItem{p.o.Region, p.o.zoneID(zone), score})
	}
	return out, nil
}
