package aws

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/nstance-go/nstance"
)

// linuxProduct is what EC2 calls machines whose price has no licence in it.
const linuxProduct = "Linux/UNIX"

// Prices implements [nstance.PriceLister] with the spot prices of now. With a start that
// has passed, EC2 answers with the last change before it, which is the price in effect
// ("DescribeSpotPriceHistory", EC2 API Reference). Prices of on-demand machines are in
// another service, in one region, and are left out.
func (p *Provider) Prices(ctx context.Context, instanceTypes []string) ([]nstance.Price, error) {
	var prices []nstance.Price
	latest := map[[2]string]time.Time{}
	for some := range slices.Chunk(instanceTypes, maxFilterValues) {
		in := &ec2.DescribeSpotPriceHistoryInput{
			Filters:   []types.Filter{filter("instance-type", some...), filter("product-description", linuxProduct)},
			StartTime: aws.Time(time.Now().Truncate(time.Second)), MaxResults: aws.Int32(pageSize),
		}
		for {
			out, err := call(ctx, reading, p.ec2.DescribeSpotPriceHistory, in)
			if err != nil {
				return nil, err
			}
			for _, s := range out.SpotPriceHistory {
				price, ok := spotPrice(s)
				key := [2]string{price.InstanceType, price.Zone}
				if at := aws.ToTime(s.Timestamp); ok && !at.Before(latest[key]) {
					prices = slices.DeleteFunc(prices, func(o nstance.Price) bool { return o.InstanceType == price.InstanceType && o.Zone == price.Zone })
					prices, latest[key] = append(prices, price), at
				}
			}
			if in.NextToken = out.NextToken; aws.ToString(in.NextToken) == "" {
				break
			}
		}
	}
	return prices, nil
}

func spotPrice(s types.SpotPrice) (nstance.Price, bool) {
	perHour, err := strconv.ParseFloat(aws.ToString(s.SpotPrice), 64)
	price := nstance.Price{InstanceType: string(s.InstanceType), Zone: aws.ToString(s.AvailabilityZone), Market: nstance.Spot, PerHour: perHour}
	return price, err == nil && perHour > 0 && price.Zone != ""
}
