package aws

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
)

// untagged answers as EC2 does whose instance i-1 shows no tags yet: a filter by tags does
// not fit it. other answers what asks for tags; nil: nothing fits.
func untagged(other http.HandlerFunc) http.HandlerFunc {
	const instance = "<instancesSet><item><instanceId>i-1</instanceId><instanceState><name>running</name></instanceState></item></instancesSet>"
	return func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		in, _ := url.ParseQuery(string(body))
		switch {
		case in.Get("Action") == "RunInstances":
			fmt.Fprint(w, "<RunInstancesResponse><requestId>1</requestId>"+instance+"</RunInstancesResponse>")
		case in.Get("Filter.1.Name") == "instance-id" && in.Get("Filter.2.Name") == "":
			fmt.Fprint(w, "<DescribeInstancesResponse><requestId>1</requestId><reservationSet><item>"+instance+"</item></reservationSet></DescribeInstancesResponse>")
		case other != nil:
			other(w, r)
		default:
			fmt.Fprint(w, "<DescribeInstancesResponse><requestId>1</requestId><reservationSet/></DescribeInstancesResponse>")
		}
	}
}

// TestTagsNotVisibleYet: a machine whose tags EC2 does not show is not another's, and one that
// EC2 knows by its token is that of the spec.
func TestTagsNotVisibleYet(t *testing.T) {
	p, s := at(t, untagged(nil)), testSpec()
	m, err := p.Create(t.Context(), s)
	require.NoError(t, err)
	require.Equal(t, "i-1", m.ProviderID)
	err = p.Delete(t.Context(), nstance.Machine{ID: s.ID, Owner: s.Owner, ProviderID: "i-1"})
	require.Equal(t, nstance.Unavailable, nstance.CodeOf(err), "%v", err)
}

// TestTagsCannotBeRead: the machine was made, and may be another's.
func TestTagsCannotBeRead(t *testing.T) {
	p := at(t, untagged(func(w http.ResponseWriter, _ *http.Request) { refuse(w, 403, "UnauthorizedOperation", "") }))
	_, err := p.Create(t.Context(), testSpec())
	require.Equal(t, nstance.Ambiguous, nstance.CodeOf(err), "%v", err)
}

// TestCreatedAtWithoutMark: another interface may have been attached before the first one is
// listed, and LaunchTime changes with each start.
func TestCreatedAtWithoutMark(t *testing.T) {
	first, later := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC), time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	attached := func(index int32, at time.Time) types.InstanceNetworkInterface {
		return types.InstanceNetworkInterface{Attachment: &types.InstanceNetworkInterfaceAttachment{DeviceIndex: aws.Int32(index), AttachTime: &at}}
	}
	i := &types.Instance{LaunchTime: &later, NetworkInterfaces: []types.InstanceNetworkInterface{attached(1, later), attached(0, first)}}
	require.Equal(t, first, createdAt(i, nil))
	i.NetworkInterfaces = nil
	require.Equal(t, later, createdAt(i, nil))
}
