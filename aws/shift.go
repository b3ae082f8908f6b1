package aws

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	arc "github.com/aws/aws-sdk-go-v2/service/arczonalshift"
	arctypes "github.com/aws/aws-sdk-go-v2/service/arczonalshift/types"
	"github.com/aws/aws-sdk-go-v2/service/ec2"

	"github.com/nstance-go/nstance"
)

// shiftPageSize is the most that a list of zonal shifts answers at once.
const shiftPageSize = 100

// ShiftedZones implements [nstance.ZoneShifter] if the option zonal_shift is set: else no
// zone is shifted away from, and AWS is asked nothing. A shift of any resource of the
// account counts, but for practice runs, which AWS starts every week without any trouble.
func (p *Provider) ShiftedZones(ctx context.Context) ([]nstance.ZoneShift, error) {
	if p.shifts == nil {
		return nil, nil
	}
	all, err := p.activeShifts(ctx)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	var ids []string
	for _, s := range all {
		ids = append(ids, s.Zone)
	}
	names, err := p.zoneNames(ctx, ids)
	if err != nil {
		return nil, err
	}
	return mergeShifts(all, names), nil
}

// activeShifts returns the shifts that are active, with IDs of zones. An autoshift says
// nothing of its end.
func (p *Provider) activeShifts(ctx context.Context) (out []nstance.ZoneShift, err error) {
	zonal := &arc.ListZonalShiftsInput{Status: arctypes.ZonalShiftStatusActive, MaxResults: aws.Int32(shiftPageSize)}
	for {
		page, err := call(ctx, reading, p.shifts.ListZonalShifts, zonal)
		if err != nil {
			return nil, err
		}
		for _, s := range page.Items {
			if s.ShiftType != arctypes.ShiftTypePracticeRun {
				out = append(out, nstance.ZoneShift{Zone: aws.ToString(s.AwayFrom), Since: aws.ToTime(s.StartTime), Until: aws.ToTime(s.ExpiryTime), Reason: shiftReason(s)})
			}
		}
		if zonal.NextToken = page.NextToken; aws.ToString(page.NextToken) == "" {
			break
		}
	}
	auto := &arc.ListAutoshiftsInput{Status: arctypes.AutoshiftExecutionStatusActive, MaxResults: aws.Int32(shiftPageSize)}
	for {
		page, err := call(ctx, reading, p.shifts.ListAutoshifts, auto)
		if err != nil {
			return nil, err
		}
		for _, s := range page.Items {
			out = append(out, nstance.ZoneShift{Zone: aws.ToString(s.AwayFrom), Since: aws.ToTime(s.StartTime), Reason: "autoshift of AWS"})
		}
		if auto.NextToken = page.NextToken; aws.ToString(page.NextToken) == "" {
			return out, nil
		}
	}
}

// shiftReason names a shift and its resource, by the last part of its ARN.
func shiftReason(s arctypes.ZonalShiftSummary) string {
	resource := aws.ToString(s.ResourceIdentifier)
	resource = resource[strings.LastIndex(resource, ":")+1:]
	reason := "zonal shift " + aws.ToString(s.ZonalShiftId) + " of " + resource
	if comment := aws.ToString(s.Comment); comment != "" {
		reason += ": " + comment
	}
	return reason
}

// zoneNames returns the names of zones by ID. They differ by account, and never change: EC2
// is asked only for one that is not known yet.
func (p *Provider) zoneNames(ctx context.Context, ids []string) (map[string]string, error) {
	p.mu.Lock()
	known := p.zones
	p.mu.Unlock()
	if !slices.ContainsFunc(ids, func(id string) bool { return known[id] == "" }) {
		return known, nil
	}
	out, err := call(ctx, reading, p.ec2.DescribeAvailabilityZones, &ec2.DescribeAvailabilityZonesInput{})
	if err != nil {
		return nil, err
	}
	names := map[string]string{}
	for _, z := range out.AvailabilityZones {
		names[aws.ToString(z.ZoneId)] = aws.ToString(z.ZoneName)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.zones = names
	return names, nil
}

// mergeShifts returns one shift for each zone, by name: it begins with the first one, and
// ends with the last. A zone that the account does not have is left out.
func mergeShifts(all []nstance.ZoneShift, names map[string]string) (out []nstance.ZoneShift) {
	for _, s := range all {
		if s.Zone = names[s.Zone]; s.Zone == "" {
			continue
		}
		i := slices.IndexFunc(out, func(o nstance.ZoneShift) bool { return o.Zone == s.Zone })
		if i < 0 {
			out = append(out, s)
			continue
		}
		o := &out[i]
		if s.Since.Before(o.Since) {
			o.Since = s.Since
		}
		o.Until = laterEnd(o.Until, s.Until)
		o.Reason += "; " + s.Reason
	}
	slices.SortFunc(out, func(a, b nstance.ZoneShift) int { return cmp.Compare(a.Zone, b.Zone) })
	return out
}

// laterEnd returns the later of two ends; the zero time is none.
func laterEnd(a, b time.Time) time.Time {
	switch {
	case a.IsZero() || b.IsZero():
		return time.Time{}
	case b.After(a):
		return b
	}
	return a
}
