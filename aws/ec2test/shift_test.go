package ec2test_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	arc "github.com/aws/aws-sdk-go-v2/service/arczonalshift"
	"github.com/aws/aws-sdk-go-v2/service/arczonalshift/types"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/smithy-go"
	"github.com/stretchr/testify/require"

	cloud "github.com/nstance-go/nstance/aws/ec2test"
)

// shiftClient returns a client of AWS's own SDK.
func (r *rig) shiftClient(k cloud.Credential) *arc.Client {
	return arc.New(arc.Options{
		Region: "us-east-1", BaseEndpoint: &r.url, HTTPClient: http.DefaultClient, Retryer: aws.NopRetryer{},
		Credentials: credentials.NewStaticCredentialsProvider(k.AccessKeyID, k.SecretAccessKey, k.SessionToken),
	})
}

func TestZonalShifts(t *testing.T) {
	r := newRig(t, nil)
	zones, err := r.client.DescribeAvailabilityZones(t.Context(), &ec2.DescribeAvailabilityZonesInput{ZoneNames: []string{"us-east-1c"}})
	require.NoError(t, err)
	require.Len(t, zones.AvailabilityZones, 1)
	require.Equal(t, "use1-az1", *zones.AvailabilityZones[0].ZoneId, "IDs have another order than names")
	_, err = r.client.DescribeAvailabilityZones(t.Context(), &ec2.DescribeAvailabilityZonesInput{ZoneNames: []string{"us-east-1x"}})
	require.ErrorContains(t, err, "InvalidParameterValue")

	now := time.Now().Truncate(time.Second)
	one := cloud.ZonalShift{ID: "9ac9ec1e", Resource: "arn:aws:elb:x", AwayFrom: "use1-az1", Comment: "c", Started: now, Expires: now.Add(time.Hour), Status: "ACTIVE"}
	old := one
	old.Status = "EXPIRED"
	r.SetZonalShifts(one, old)
	c := r.shiftClient(cloud.DefaultCredential)
	active, err := c.ListZonalShifts(t.Context(), &arc.ListZonalShiftsInput{Status: types.ZonalShiftStatusActive})
	require.NoError(t, err)
	require.Len(t, active.Items, 1)
	require.True(t, now.Add(time.Hour).Equal(*active.Items[0].ExpiryTime))
	n := 0
	for p := arc.NewListZonalShiftsPaginator(c, &arc.ListZonalShiftsInput{MaxResults: aws.Int32(1)}); p.HasMorePages(); n++ {
		page, err := p.NextPage(t.Context())
		require.NoError(t, err)
		require.Len(t, page.Items, 1)
	}
	require.Equal(t, 2, n)
}

func TestZonalShiftRefusals(t *testing.T) {
	r := newRig(t, &cloud.Options{Permitted: []string{"arc-zonal-shift:ListZonalShifts"}})
	list := func(k cloud.Credential, in *arc.ListZonalShiftsInput) error {
		_, err := r.shiftClient(k).ListZonalShifts(t.Context(), in)
		return err
	}
	code := func(err error) string {
		var e smithy.APIError
		require.ErrorAs(t, err, &e)
		return e.ErrorCode()
	}
	k := cloud.DefaultCredential
	require.NoError(t, list(k, nil))
	require.Equal(t, "ValidationException", code(list(k, &arc.ListZonalShiftsInput{Status: "OPEN"})))
	require.Equal(t, "ValidationException", code(list(k, &arc.ListZonalShiftsInput{MaxResults: aws.Int32(101)})))
	require.Equal(t, "ValidationException", code(list(k, &arc.ListZonalShiftsInput{NextToken: aws.String("x")})))
	_, err := r.shiftClient(k).ListAutoshifts(t.Context(), nil)
	require.Equal(t, "AccessDeniedException", code(err))
	k.SecretAccessKey = "wrong"
	require.Equal(t, "SignatureDoesNotMatch", code(list(k, nil)))
	k.AccessKeyID = "unknown"
	require.Equal(t, "InvalidClientTokenId", code(list(k, nil)))
}
