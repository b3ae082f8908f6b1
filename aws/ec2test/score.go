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

// scoreConfigurations is how many different questions are answered in a day.
const scoreConfigurations = 10

// SetScore sets the placement score of a zone; others have 5.
func (c *Cloud) SetScore(zone string, score int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.scores == nil {
		c.scores = map[string]int{}
	}
	c.scores[zone] = score
}

func (c *Cloud) getSpotPlacementScores(_ call, in *scoreInput) (*scoreOutput, error) {
	switch {
	case in.TargetCapacity == nil || *in.TargetCapacity < 1:
		return nil, refuse("MissingParameter", "The request must contain the parameter TargetCapacity")
	case len(in.RegionNames) > 0 && !slices.Contains(in.RegionNames, c.o.Region), !in.SingleAvailabilityZone:
		return nil, refuse("UnsupportedOperation", "this test cloud scores the zones of its own region")
	}
	asked := strings.Join(slices.Sorted(slices.Values(in.InstanceTypes)), ",") + "/" + itoa(*in.TargetCapacity)
	if !slices.Contains(c.scored, asked) {
		if len(c.scored) >= scoreConfigurations {
			return nil, refuse("MaxConfigLimitExceeded", "You have exceeded your maximum allowed Spot placement configurations.")
		}
		c.scored = append(c.scored, asked)
	}
	out := &scoreOutput{}
	for _, zone := range c.zones() {
		score := 5
		if n, ok := c.scores[zone]; ok {
			score = n
		}
		if len(in.InstanceTypes) < 3 {
			score = 1
		}
		out.Scores = append(out.Scores, scoreItem{c.o.Region, c.ZoneID(zone), score})
	}
	return out, nil
}
