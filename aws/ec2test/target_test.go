package ec2test_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	elb "github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2"
	"github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2/types"
	"github.com/stretchr/testify/require"

	cloud "github.com/nstance-go/nstance/aws/ec2test"
	"github.com/nstance-go/nstance/provider/testcloud"
)

const group = "arn:aws:elasticloadbalancing:us-east-1:123456789012:targetgroup/web/73e2d6bc24d8a067"

func (r *rig) balancers(secret string) *elb.Client {
	return elb.New(elb.Options{
		Region: "us-east-1", BaseEndpoint: aws.String(r.url), Retryer: aws.NopRetryer{}, HTTPClient: r.http,
		Credentials: credentials.NewStaticCredentialsProvider(cloud.DefaultCredential.AccessKeyID, secret, ""),
	})
}

func targets(ids ...string) (out []types.TargetDescription) {
	for _, id := range ids {
		out = append(out, types.TargetDescription{Id: aws.String(id)})
	}
	return out
}

func TestTargets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		catalog := cloud.DefaultCatalog("us-east-1")
		catalog.TargetGroups[0].Zones = []string{"us-east-1a"}
		catalog.TargetGroups[0].InitialHealthChecks = 10 * time.Second
		r := newBubbleRig(t, &cloud.Options{Catalog: catalog, Delays: testcloud.Delays{Start: time.Second}})
		c := r.balancers(cloud.DefaultCredential.SecretAccessKey)
		health := func() map[string]string {
			t.Helper()
			out, err := c.DescribeTargetHealth(t.Context(), &elb.DescribeTargetHealthInput{TargetGroupArn: aws.String(group)})
			require.NoError(t, err)
			states := map[string]string{}
			for _, d := range out.TargetHealthDescriptions {
				require.EqualValues(t, 80, *d.Target.Port)
				states[*d.Target.Id] = string(d.TargetHealth.State) + " " + string(d.TargetHealth.Reason)
			}
			return states
		}
		register := func(ids ...string) error {
			_, err := c.RegisterTargets(t.Context(), &elb.RegisterTargetsInput{TargetGroupArn: aws.String(group), Targets: targets(ids...)})
			return err
		}
		served := *r.mustLaunch(nil).InstanceId
		<-time.After(time.Second)
		synctest.Wait()
		pending := *r.mustLaunch(nil).InstanceId
		refused(t, "InvalidTarget", 400, register(served, pending))
		require.Empty(t, health(), "all or none")
		require.NoError(t, register(served))
		require.Equal(t, map[string]string{served: "initial Elb.RegistrationInProgress"}, health())
		<-time.After(10 * time.Second)
		synctest.Wait()
		require.Equal(t, map[string]string{served: "healthy "}, health())
		require.NoError(t, r.stop(served, false))
		require.Equal(t, map[string]string{served: "unused Target.InvalidState"}, health())
		require.NoError(t, r.start(served))

		_, err := c.DeregisterTargets(t.Context(), &elb.DeregisterTargetsInput{TargetGroupArn: aws.String(group), Targets: targets(served, pending)})
		require.NoError(t, err, "one that is not registered changes nothing")
		require.Equal(t, map[string]string{served: "draining Target.DeregistrationInProgress"}, health())
		<-time.After(300 * time.Second)
		synctest.Wait()
		require.Empty(t, health())

		require.NoError(t, register(served))
		r.terminate(served)
		require.Empty(t, health())
	})
}

func TestTargetGroupsAreRefused(t *testing.T) {
	r := newRig(t, &cloud.Options{Permitted: []string{"elasticloadbalancing:RegisterTargets"}})
	c := r.balancers(cloud.DefaultCredential.SecretAccessKey)
	for arn, code := range map[string]string{"web": "ValidationError", group + "0": "TargetGroupNotFound"} {
		_, err := c.RegisterTargets(t.Context(), &elb.RegisterTargetsInput{TargetGroupArn: aws.String(arn), Targets: targets("i-0")})
		refused(t, code, 400, err)
	}
	_, err := c.DescribeTargetHealth(t.Context(), &elb.DescribeTargetHealthInput{TargetGroupArn: aws.String(group)})
	refused(t, "AccessDenied", http.StatusForbidden, err)
	_, err = r.balancers("guess").DescribeTargetHealth(t.Context(), &elb.DescribeTargetHealthInput{TargetGroupArn: aws.String(group)})
	refused(t, "SignatureDoesNotMatch", http.StatusForbidden, err)
}
