package aws

import (
	"context"
	"errors"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/smithy-go"

	"github.com/nstance-go/nstance"
)

// priceTooLow is EC2's refusal of a maximum price that is below the price now: "no instance
// is launched and your request remains open" ("Error codes for the Amazon EC2 API", EC2 API
// Reference). An open request is fulfilled when the price has fallen.
const priceTooLow = "SpotMaxPriceTooLow"

// closeRefused makes the refusal of a create definite: nothing comes of it later. A
// refusal whose request may still be open is Ambiguous.
func (p *Provider) closeRefused(ctx context.Context, spec nstance.MachineSpec, refusal error) error {
	answer, ok := errors.AsType[smithy.APIError](refusal)
	if !ok || answer.ErrorCode() != priceTooLow || spec.Market != nstance.Spot {
		return refusal
	}
	if err := p.closeRequests(ctx, spec.ID); err != nil {
		return nstance.Errorf(nstance.Ambiguous, "%v, and its request may still be open: %v", refusal, err) // one code, that of the whole
	}
	return refusal
}

// closeRequests cancels the Spot Instance requests of a machine that are open. Nil means
// that none of them can make a machine any more. Fails with Ambiguous when one of them has
// been fulfilled: Get finds its machine.
func (p *Provider) closeRequests(ctx context.Context, id nstance.InstanceID) error {
	in := &ec2.DescribeSpotInstanceRequestsInput{
		Filters:    []types.Filter{filter("tag:"+tagInstanceID, string(id)), filter("state", "open", "active")},
		MaxResults: aws.Int32(pageSize),
	}
	var open []string
	for {
		out, err := call(ctx, reading, p.ec2.DescribeSpotInstanceRequests, in)
		if err != nil {
			return err
		}
		for _, r := range out.SpotInstanceRequests {
			if r.State == types.SpotInstanceStateActive || r.InstanceId != nil {
				return fulfilled(aws.ToString(r.SpotInstanceRequestId))
			}
			open = append(open, aws.ToString(r.SpotInstanceRequestId))
		}
		if in.NextToken = out.NextToken; aws.ToString(in.NextToken) == "" {
			break
		}
	}
	if len(open) == 0 {
		return nil
	}
	if _, err := call(ctx, changing, p.ec2.CancelSpotInstanceRequests, &ec2.CancelSpotInstanceRequestsInput{SpotInstanceRequestIds: open}); err != nil {
		return err
	}
	// One that was fulfilled meanwhile is cancelled too, and its machine runs on
	// ("CancelSpotInstanceRequests", EC2 API Reference).
	ids := filter("spot-instance-request-id", open...)
	out, err := call(ctx, reading, p.ec2.DescribeSpotInstanceRequests, &ec2.DescribeSpotInstanceRequestsInput{Filters: []types.Filter{ids}})
	if err != nil {
		return err
	}
	for _, r := range out.SpotInstanceRequests {
		if r.InstanceId != nil {
			return fulfilled(aws.ToString(r.SpotInstanceRequestId))
		}
		if r.State == types.SpotInstanceStateOpen {
			return nstance.Errorf(nstance.Unavailable, "spot request %s is not cancelled yet, of %s", aws.ToString(r.SpotInstanceRequestId), strings.Join(open, ", "))
		}
	}
	return nil
}

func fulfilled(request string) error {
	return nstance.Errorf(nstance.Ambiguous, "spot request %s has been fulfilled", request)
}
