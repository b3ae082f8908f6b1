package ec2test

import (
	"net/url"
	"strings"

	"github.com/nstance-go/nstance/provider/testcloud"
)

// Buckets are the token buckets of an account in a region.
type Buckets struct {
	// Requests has a bucket for actions by name. Actions without one share that
	// of "Describe*", "Describe* unfiltered" or "*".
	Requests map[string]*testcloud.Bucket

	// Resources has a bucket of machines for actions that name or make several.
	Resources map[string]*testcloud.Bucket
}

// AccountBuckets are what an account has by default ("Request throttling for the
// Amazon EC2 API").
func AccountBuckets() *Buckets {
	bucket := func(burst, perSecond float64) *testcloud.Bucket {
		return &testcloud.Bucket{Burst: burst, PerSecond: perSecond}
	}
	return &Buckets{
		Requests: map[string]*testcloud.Bucket{
			"RunInstances": bucket(5, 2), "StartInstances": bucket(5, 2), "TerminateInstances": bucket(100, 5), "CreateTags": bucket(100, 10),
			"AssignPrivateIpAddresses": bucket(100, 5), "UnassignPrivateIpAddresses": bucket(100, 5),
			"Describe*": bucket(100, 20), "Describe* unfiltered": bucket(50, 10), "*": bucket(50, 5),
		},
		Resources: map[string]*testcloud.Bucket{
			"RunInstances": bucket(1000, 2), "StartInstances": bucket(1000, 2), "StopInstances": bucket(1000, 20), "TerminateInstances": bucket(1000, 20),
		},
	}
}

// Listings that have a smaller bucket when they are neither filtered nor in
// pages.
var expensive = map[string]bool{
	"DescribeInstances": true, "DescribeInstanceStatus": true, "DescribeNetworkInterfaces": true, "DescribeSecurityGroups": true,
	"DescribeSnapshots": true, "DescribeSpotInstanceRequests": true, "DescribeVolumes": true,
}

// take takes a token for a call. Nil buckets throttle nothing.
func (b *Buckets) take(on call, form url.Values) bool {
	if b == nil || on.service != compute {
		return true
	}
	bucket := b.Requests[on.action]
	if bucket == nil {
		bucket = b.Requests[shared(on.action, form)]
	}
	return bucket == nil || bucket.Take(on.now)
}

func shared(action string, form url.Values) string {
	if !strings.HasPrefix(action, "Describe") && !strings.HasPrefix(action, "Get") {
		return "*"
	}
	if !expensive[action] {
		return "Describe*"
	}
	for name := range form {
		if name != "Action" && name != "Version" {
			return "Describe*"
		}
	}
	return "Describe* unfiltered"
}

func (b *Buckets) takeResources(on call, n int) bool {
	if b == nil || b.Resources[on.action] == nil {
		return true
	}
	return b.Resources[on.action].TakeN(on.now, n)
}
