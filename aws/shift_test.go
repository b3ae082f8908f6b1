package aws_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/aws"
	"github.com/nstance-go/nstance/aws/ec2test"
	"github.com/nstance-go/nstance/provider/testcloud"
)

// zonalShift is an active shift of a load balancer away from a zone.
func (w *world) zonalShift(zone string, begin, end time.Time) ec2test.ZonalShift {
	return ec2test.ZonalShift{
		ID: "9ac9ec1e-1df1-0755-3dc5-8cf57EXAMPLE", Resource: "arn:aws:elasticloadbalancing:us-east-1:123456789012:loadbalancer/app/web/0123456789abcdef",
		AwayFrom: w.cloud.ZoneID(zone), Comment: "packet loss", Type: "ZONAL_SHIFT", Started: begin, Expires: end, Status: "ACTIVE",
	}
}

// readShifts reads the shifts of a zone that is shifted away from.
func (w *world) readShifts() error {
	now := time.Now()
	w.cloud.SetZonalShifts(w.zonalShift(region+"a", now, now.Add(time.Hour)))
	_, err := w.open(&aws.Options{ZonalShift: true}).ShiftedZones(w.Context())
	return err
}

func TestShiftedZones(t *testing.T) {
	w := newWorld(t, nil)
	p := w.open(&aws.Options{ZonalShift: true})
	shifts, err := p.ShiftedZones(t.Context())
	require.NoError(t, err)
	require.Empty(t, shifts)
	require.Zero(t, w.faults.Calls()["DescribeAvailabilityZones"], "no name is needed")

	now := time.Now().UTC().Truncate(time.Second)
	begin, soon, late := now.Add(-time.Hour), now.Add(time.Hour), now.Add(72*time.Hour)
	first, second := w.zonalShift(region+"a", begin, soon), w.zonalShift(region+"a", now, late)
	second.Comment, second.Type = "", ""
	over, practice, elsewhere := w.zonalShift(region+"b", begin, soon), w.zonalShift(region+"b", begin, soon), w.zonalShift(region+"b", begin, soon)
	over.Status, practice.Type, elsewhere.AwayFrom = "CANCELED", "PRACTICE_RUN", "use1-az9"
	w.cloud.SetZonalShifts(first, second, over, practice, elsewhere)
	w.cloud.SetAutoshifts(ec2test.Autoshift{AwayFrom: w.cloud.ZoneID(region + "c"), Started: begin}, ec2test.Autoshift{AwayFrom: w.cloud.ZoneID(region + "b"), Started: begin, Ended: now})
	shifts, err = p.ShiftedZones(t.Context())
	require.NoError(t, err)
	const of = "zonal shift 9ac9ec1e-1df1-0755-3dc5-8cf57EXAMPLE of loadbalancer/app/web/0123456789abcdef"
	require.Equal(t, []nstance.ZoneShift{
		{Zone: region + "a", Since: begin, Until: late, Reason: of + ": packet loss; " + of},
		{Zone: region + "c", Since: begin, Reason: "autoshift of AWS"},
	}, shifts)

	w.cloud.SetZonalShifts(first)
	w.cloud.SetAutoshifts(ec2test.Autoshift{AwayFrom: w.cloud.ZoneID(region + "a"), Started: now})
	before := w.faults.Calls()["DescribeAvailabilityZones"]
	shifts, err = p.ShiftedZones(t.Context())
	require.NoError(t, err)
	require.Len(t, shifts, 1)
	require.True(t, shifts[0].Until.IsZero(), "an autoshift has no end")
	require.Equal(t, before, w.faults.Calls()["DescribeAvailabilityZones"], "names of zones never change")
}

func TestManyShifts(t *testing.T) {
	w := newWorld(t, nil)
	now := time.Now()
	var all []ec2test.ZonalShift
	var auto []ec2test.Autoshift
	for range 100 {
		all, auto = append(all, w.zonalShift(region+"a", now, now.Add(time.Hour))), append(auto, ec2test.Autoshift{AwayFrom: w.cloud.ZoneID(region + "a"), Started: now})
	}
	w.cloud.SetZonalShifts(append(all, w.zonalShift(region+"b", now, now.Add(time.Hour)))...)
	w.cloud.SetAutoshifts(append(auto, ec2test.Autoshift{AwayFrom: w.cloud.ZoneID(region + "c"), Started: now})...)
	shifts, err := w.open(&aws.Options{ZonalShift: true}).ShiftedZones(t.Context())
	require.NoError(t, err)
	require.Len(t, shifts, 3, "every page counts")
}

func TestShiftsNotFollowed(t *testing.T) {
	w := newWorld(t, nil)
	now := time.Now()
	w.cloud.SetZonalShifts(w.zonalShift(region+"a", now, now.Add(time.Hour)))
	shifts, err := w.ShiftedZones(t.Context())
	require.NoError(t, err)
	require.Empty(t, shifts)
	require.Empty(t, w.faults.Calls())
}

func TestShiftErrors(t *testing.T) {
	for _, op := range []string{"ListZonalShifts", "ListAutoshifts"} {
		for code, means := range map[string]nstance.Code{
			"ThrottlingException": nstance.Throttled, "AccessDeniedException": nstance.Denied, "InternalServerException": nstance.Unavailable, "SignatureDoesNotMatch": nstance.Denied,
		} {
			w := newWorld(t, nil)
			w.faults.Next(op, testcloud.Fault{Answer: ec2test.ShiftRefusal(code, "no")})
			_, err := w.open(&aws.Options{ZonalShift: true}).ShiftedZones(t.Context())
			w.refused(means, err)
			require.Equal(t, 1, w.faults.Calls()[op], "the SDK repeated it")
		}
	}
	w := newWorld(t, nil)
	require.NoError(t, w.readShifts())
	w.faults.Next("DescribeAvailabilityZones", testcloud.Fault{Answer: ec2test.Refusal("RequestLimitExceeded", "no")})
	w.refused(nstance.Throttled, w.readShifts())
}
