//go:build servers

package ec2test_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	cloud "github.com/nstance-go/nstance/aws/ec2test"
	"github.com/nstance-go/nstance/aws/internal/modelcheck"
)

// TestMain holds every call that the tests of this package make against AWS's
// own model.
func TestMain(m *testing.M) { modelcheck.Main(m, func(r *modelcheck.Recorder) { record = r.Record }) }

// A cli is the aws command, with a cloud as its endpoint.
type cli struct {
	*rig
}

// run runs one command and returns what it prints.
func (c cli) run(args ...string) (map[string]any, error) {
	cmd := exec.CommandContext(c.Context(), "aws", append(args, "--endpoint-url", c.url, "--region", "us-east-1", "--output", "json")...)
	cmd.Env = append(os.Environ(),
		"AWS_ACCESS_KEY_ID="+cloud.DefaultCredential.AccessKeyID, "AWS_SECRET_ACCESS_KEY="+cloud.DefaultCredential.SecretAccessKey,
		"AWS_CONFIG_FILE="+os.DevNull, "AWS_SHARED_CREDENTIALS_FILE="+os.DevNull, "AWS_EC2_METADATA_DISABLED=true", "AWS_PAGER=", "AWS_MAX_ATTEMPTS=1")
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return nil, fmt.Errorf("aws %v: %w: %s", args, err, exit.Stderr)
	}
	if err != nil || len(out) == 0 {
		return nil, err
	}
	var answer map[string]any
	return answer, json.Unmarshal(out, &answer)
}

func (c cli) must(args ...string) map[string]any {
	c.Helper()
	out, err := c.run(args...)
	require.NoError(c, err)
	return out
}

// at follows a path of keys and indices.
func at(v any, path ...any) any {
	for _, p := range path {
		switch p := p.(type) {
		case string:
			v = v.(map[string]any)[p]
		case int:
			v = v.([]any)[p]
		}
	}
	return v
}

func TestServersCommandLine(t *testing.T) {
	_, err := exec.LookPath("aws")
	require.NoError(t, err, "install awscli")
	c := cli{newRig(t, nil)}
	image := at(c.must("ec2", "describe-images", "--owners", "136693071363", "--filters", "Name=name,Values=debian-12-amd64-2026*"), "Images", 0, "ImageId").(string)
	launch := []string{
		"ec2", "run-instances", "--image-id", image, "--instance-type", "m5.large", "--subnet-id", subnet, "--user-data", "#!/bin/true",
		"--tag-specifications", "ResourceType=instance,Tags=[{Key=group,Value=web}]", "--security-group-ids", "sg-0123456789abcdef0",
		"--metadata-options", "HttpTokens=required,HttpPutResponseHopLimit=2", "--iam-instance-profile", "Name=nstance",
	}
	many := c.must(append(launch, "--count", "12")...)
	require.Len(t, many["Instances"], 12)
	spot := c.must(append(launch, "--client-token", "spot", "--instance-market-options", "MarketType=spot,SpotOptions={MaxPrice=0.05,SpotInstanceType=one-time,InstanceInterruptionBehavior=terminate}")...)
	again := c.must(append(launch, "--client-token", "spot", "--instance-market-options", "MarketType=spot,SpotOptions={MaxPrice=0.05,SpotInstanceType=one-time,InstanceInterruptionBehavior=terminate}")...)
	id := at(spot, "Instances", 0, "InstanceId").(string)
	require.Equal(t, id, at(again, "Instances", 0, "InstanceId"))
	require.Equal(t, "spot", at(spot, "Instances", 0, "InstanceLifecycle"))
	_, err = c.run(append(launch, "--client-token", "spot")...)
	require.ErrorContains(t, err, "(IdempotentParameterMismatch)")

	count := func(args ...string) (n int) {
		t.Helper()
		out := c.must(append([]string{"ec2", "describe-instances"}, args...)...)
		for _, r := range out["Reservations"].([]any) {
			n += len(at(r, "Instances").([]any))
		}
		return n
	}
	require.Equal(t, 13, count("--page-size", "5"))
	require.Equal(t, 13, count("--filters", "Name=tag:group,Values=web", "Name=instance-state-name,Values=running"))
	require.Equal(t, 1, count("--instance-ids", id))
	first := c.must("ec2", "describe-instances", "--page-size", "5", "--max-items", "1")
	require.NotEmpty(t, first["NextToken"])
	_, err = c.run("ec2", "describe-instances", "--instance-ids", "i-0123456789abcdef0")
	require.ErrorContains(t, err, "(InvalidInstanceID.NotFound)")

	c.must("ec2", "create-tags", "--resources", id, "--tags", "Key=team,Value=blue")
	require.Equal(t, 1, count("--filters", "Name=tag:team,Values=bl*"))
	plain := at(many, "Instances", 0, "InstanceId").(string)
	require.Equal(t, "stopped", at(c.must("ec2", "stop-instances", "--instance-ids", plain), "StoppingInstances", 0, "CurrentState", "Name"))
	require.Equal(t, "running", at(c.must("ec2", "start-instances", "--instance-ids", plain), "StartingInstances", 0, "CurrentState", "Name"))
	require.Contains(t, c.must("ec2", "get-console-output", "--instance-id", plain, "--latest"), "Timestamp")
	require.Len(t, c.must("ec2", "describe-subnets")["Subnets"], 3)
	require.Len(t, c.must("ec2", "describe-instance-types", "--instance-types", "t3.micro", "m6g.large")["InstanceTypes"], 2)
	require.Equal(t, id, at(c.must("ec2", "describe-spot-instance-requests"), "SpotInstanceRequests", 0, "InstanceId"))

	require.Equal(t, "123456789012", c.must("sts", "get-caller-identity")["Account"])

	zone := at(c.must("ec2", "describe-availability-zones", "--filters", "Name=zone-name,Values=us-east-1a"), "AvailabilityZones", 0, "ZoneId").(string)
	require.Equal(t, c.ZoneID("us-east-1a"), zone)
	c.SetZonalShifts(cloud.ZonalShift{
		ID: "9ac9ec1e", Resource: "arn:aws:elasticloadbalancing:us-east-1:123456789012:loadbalancer/app/web/0", AwayFrom: zone, Comment: "packet loss", Type: "ZONAL_SHIFT",
		Started: time.Now(), Expires: time.Now().Add(time.Hour), Status: "ACTIVE",
	})
	c.SetAutoshifts(cloud.Autoshift{AwayFrom: zone, Started: time.Now().Add(-time.Hour), Ended: time.Now()}, cloud.Autoshift{AwayFrom: zone, Started: time.Now()})
	require.Equal(t, zone, at(c.must("arc-zonal-shift", "list-zonal-shifts", "--status", "ACTIVE"), "items", 0, "awayFrom"))
	require.Len(t, c.must("arc-zonal-shift", "list-autoshifts", "--page-size", "1")["items"], 2)
	_, err = c.run("arc-zonal-shift", "list-autoshifts", "--page-size", "101")
	require.Error(t, err)

	eni := at(many, "Instances", 0, "NetworkInterfaces", 0, "NetworkInterfaceId").(string)
	c.must("ec2", "assign-private-ip-addresses", "--network-interface-id", eni, "--private-ip-addresses", "10.0.1.1", "--allow-reassignment")
	require.Len(t, at(c.must("ec2", "describe-network-interfaces", "--network-interface-ids", eni), "NetworkInterfaces", 0, "PrivateIpAddresses"), 2)
	c.must("ec2", "unassign-private-ip-addresses", "--network-interface-id", eni, "--private-ip-addresses", "10.0.1.1")

	group := at(c.must("elbv2", "describe-target-groups", "--names", "web"), "TargetGroups", 0, "TargetGroupArn").(string)
	c.must("elbv2", "register-targets", "--target-group-arn", group, "--targets", "Id="+plain)
	health := func() any {
		return at(c.must("elbv2", "describe-target-health", "--target-group-arn", group), "TargetHealthDescriptions", 0, "TargetHealth", "State")
	}
	require.Equal(t, "healthy", health())
	c.must("elbv2", "deregister-targets", "--target-group-arn", group, "--targets", "Id="+plain)
	require.Equal(t, "draining", health())

	_, err = c.run("ec2", "terminate-instances", "--instance-ids", id, "--dry-run")
	require.ErrorContains(t, err, "(DryRunOperation)")
	require.Equal(t, "terminated", at(c.must("ec2", "terminate-instances", "--instance-ids", id), "TerminatingInstances", 0, "CurrentState", "Name"))
	require.Len(t, c.Machines(), 12)
}

func TestModelRefusesInvalidShifts(t *testing.T) {
	const item = `"zonalShiftId": "9ac9ec1e", "resourceIdentifier": "arn:aws:x", "awayFrom": "use1-az1", "comment": "", "startTime": 1, "expiryTime": 2`
	for _, c := range []struct{ query, answer, complaint string }{
		{"/zonalshifts?status=OPEN", `{"items": []}`, "ListZonalShifts.status: the model has no value 'OPEN'"},
		{"/zonalshifts?zone=a", `{"items": []}`, "ListZonalShifts: the model has no parameter zone"},
		{"/zonalshifts?maxResults=0", `{"items": []}`, "ListZonalShifts: request: Invalid value for parameter maxResults, value: 0, valid min value: 1"},
		{"/zonalshifts", `{"items": [{` + item + `}]}`, "ListZonalShifts.items[]: member status is missing"},
		{"/zonalshifts", `{"items": [{` + item + `, "status": "ACTIVE", "colour": "red"}]}`, "ListZonalShifts.items[]: the model has no member colour"},
		{"/autoshifts", `{"items": [{"awayFrom": "use1-az1", "startTime": "2026-01-02T03:04:05Z", "status": "ACTIVE"}]}`, "ListAutoshifts.items[].startTime: '2026-01-02T03:04:05Z' is no time in seconds"},
		{"/autoshifts", `{"items": [{"awayFrom": "use1-az1", "startTime": 1, "status": "OPEN"}]}`, "ListAutoshifts.items[].status: the model has no value 'OPEN'"},
		{"/shifts", `{}`, "GET /shifts: not an operation"},
	} {
		recorder := &modelcheck.Recorder{}
		s := httptest.NewServer(recorder.Record(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(c.answer)) })))
		r, err := http.Get(s.URL + c.query)
		require.NoError(t, err)
		require.NoError(t, r.Body.Close())
		s.Close()
		complaints, calls, err := recorder.Check()
		require.NoError(t, err)
		require.Equal(t, 1, calls)
		require.Contains(t, complaints, c.complaint)
	}
}

// TestServersQueueCommandLine: the aws command reads the queue, if it is new enough to
// speak JSON with SQS.
func TestServersQueueCommandLine(t *testing.T) {
	c := cli{newRig(t, nil)}
	queue := []string{"--queue-url", c.QueueURL("nstance")}
	_, err := c.run(append([]string{"sqs", "send-message", "--message-body", "hello"}, queue...)...)
	if err != nil && strings.Contains(err.Error(), "NoSuchVersion") {
		t.Skip("this aws command speaks the query protocol with SQS")
	}
	require.NoError(t, err)
	got := c.must(append([]string{"sqs", "receive-message", "--max-number-of-messages", "10", "--wait-time-seconds", "1", "--visibility-timeout", "60"}, queue...)...)
	require.Equal(t, "hello", at(got, "Messages", 0, "Body"))
	require.Empty(t, c.must(append([]string{"sqs", "receive-message"}, queue...)...), "it is hidden")
	entry := "Id=a,ReceiptHandle=" + at(got, "Messages", 0, "ReceiptHandle").(string)
	require.Len(t, c.must(append([]string{"sqs", "delete-message-batch", "--entries", entry}, queue...)...)["Successful"], 1)
	require.Empty(t, c.Messages("nstance"))
	_, err = c.run("sqs", "receive-message", "--queue-url", c.QueueURL("other"))
	require.ErrorContains(t, err, "NonExistentQueue")
}

func TestModelRefusesInvalidRequests(t *testing.T) {
	const answer = `<RunInstancesResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><colour>red</colour></RunInstancesResponse>`
	for request, complaint := range map[string]string{
		"MaxCount=1&MinCount=1":            "RunInstances: the model has no member colour",
		"MaxCount=1&MinCount=1&Colour=red": "RunInstances: the model has no parameter Colour",
		"MaxCount=one&MinCount=1":          `RunInstances.MaxCount: 'one' is no integer`,
		"MaxCount=1":                       `RunInstances: request: Missing required parameter in input: "MinCount"`,
		"MaxCount=1&MinCount=1&InstanceInitiatedShutdownBehavior=halt": "RunInstances.InstanceInitiatedShutdownBehavior: the model has no value 'halt'",
	} {
		recorder := &modelcheck.Recorder{}
		s := httptest.NewServer(recorder.Record(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(answer)) })))
		r, err := http.Post(s.URL, "application/x-www-form-urlencoded", strings.NewReader("Action=RunInstances&Version=2016-11-15&"+request))
		require.NoError(t, err)
		require.NoError(t, r.Body.Close())
		s.Close()
		complaints, calls, err := recorder.Check()
		require.NoError(t, err)
		require.Equal(t, 1, calls)
		require.Contains(t, complaints, complaint)
	}
}

// TestModelRefusesInvalidJSON: the same for SQS.
func TestModelRefusesInvalidJSON(t *testing.T) {
	for request, complaint := range map[string]string{
		`{"QueueUrl": "x"}`:                         "ReceiveMessage: answer: the model has no member Colour",
		`{"QueueUrl": "x", "Colour": "red"}`:        "ReceiveMessage: request: the model has no member Colour",
		`{"QueueUrl": "x", "WaitTimeSeconds": "1"}`: "ReceiveMessage: request.WaitTimeSeconds: '1' is no integer",
		`{}`: `ReceiveMessage: request: Missing required parameter in input: "QueueUrl"`,
		`{"QueueUrl": "x", "AttributeNames": [{"A": 1}]}`: "ReceiveMessage: request.AttributeNames: {'A': 1} is no string",
	} {
		recorder := &modelcheck.Recorder{}
		s := httptest.NewServer(recorder.Record(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"Colour": "red"}`)) })))
		r, err := http.NewRequest(http.MethodPost, s.URL, strings.NewReader(request))
		require.NoError(t, err)
		r.Header.Set("X-Amz-Target", "AmazonSQS.ReceiveMessage")
		answer, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		s.Close()
		complaints, calls, err := recorder.Check()
		require.NoError(t, err)
		require.Equal(t, 1, calls)
		require.Contains(t, complaints, complaint)
	}
}
