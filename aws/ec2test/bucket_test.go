package ec2test_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/stretchr/testify/require"

	cloud "github.com/nstance-go/nstance/aws/ec2test"
)

func TestAccountBuckets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newBubbleRig(t, &cloud.Options{Buckets: cloud.AccountBuckets()})
		began := time.Now()
		for made := 0; made < 100; {
			if _, err := r.launch(nil); err != nil {
				refused(t, "RequestLimitExceeded", 503, err)
				<-time.After(500 * time.Millisecond)
				continue
			}
			made++
		}
		require.InDelta(t, 47.5, time.Since(began).Seconds(), 0.2, "5 at once, then 2 a second")

		calls := func(in *ec2.DescribeInstancesInput) (n int) {
			for ; n < 200; n++ {
				if _, err := r.client.DescribeInstances(t.Context(), in); err != nil {
					refused(t, "RequestLimitExceeded", 503, err)
					break
				}
			}
			return n
		}
		require.Equal(t, 50, calls(&ec2.DescribeInstancesInput{}))
		require.Equal(t, 100, calls(&ec2.DescribeInstancesInput{MaxResults: aws.Int32(5)}))
	})
}
