package aws

import (
	"context"
	"math/bits"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"

	"github.com/nstance-go/nstance"
)

// scoreTypes is how many types a question must have for its score to say something: with
// fewer it is always low ("GetSpotPlacementScores", EC2 API Reference, InstanceType).
const scoreTypes = 3

// ZoneScores implements [nstance.ZoneScorer] with EC2's spot placement scores. The number of
// machines is rounded up to a power of two: each other number is another configuration, of
// which EC2 answers ten in a day ("Spot placement score", EC2 User Guide, Limitations).
// Fewer than three types have no scores.
func (p *Provider) ZoneScores(ctx context.Context, instanceTypes []string, machines int) (map[string]int, error) {
	if len(instanceTypes) < scoreTypes {
		return nil, nil
	}
	in := &ec2.GetSpotPlacementScoresInput{
		InstanceTypes: instanceTypes, TargetCapacity: aws.Int32(roundUp(machines)), RegionNames: []string{p.region}, SingleAvailabilityZone: aws.Bool(true),
	}
	scores := map[string]int{} // by zone ID
	for {
		out, err := call(ctx, reading, p.ec2.GetSpotPlacementScores, in)
		if err != nil {
			return nil, err
		}
		for _, s := range out.SpotPlacementScores {
			if s.Score != nil {
				scores[aws.ToString(s.AvailabilityZoneId)] = int(*s.Score)
			}
		}
		if in.NextToken = out.NextToken; aws.ToString(in.NextToken) == "" {
			return p.byZoneName(ctx, scores)
		}
	}
}

// roundUp returns the next power of two.
func roundUp(n int) int32 { return 1 << min(20, bits.Len(uint(max(1, n)-1))) }

// byZoneName returns scores by the names of zones. Zones that the account does not have are
// left out.
func (p *Provider) byZoneName(ctx context.Context, scores map[string]int) (map[string]int, error) {
	var ids []string
	for id := range scores {
		ids = append(ids, id)
	}
	names, err := p.zoneNames(ctx, ids)
	if err != nil {
		return nil, err
	}
	out := map[string]int{}
	for id, score := range scores {
		if name := names[id]; name != "" {
			out[name] = score
		}
	}
	return out, nil
}

var _ nstance.ZoneScorer = (*Provider)(nil)
