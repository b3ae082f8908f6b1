package aws

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
)

const (
	one   = "i-0123456789abcdef0"
	other = "i-0123456789abcdef1"
)

// sampleEvents are examples of AWS's documentation ("Spot Instance interruption notices",
// "EC2 instance rebalance recommendations" and "Monitor interruptible Capacity
// Reservations with EventBridge and CloudTrail", EC2 User Guide; "AWS Health events
// Amazon EventBridge schema", AWS Health User Guide), with instance IDs.
var sampleEvents = map[string]string{
	"spot": `{"version": "0", "id": "12345678-1234-1234-1234-123456789012", "detail-type": "EC2 Spot Instance Interruption Warning", "source": "aws.ec2",
		"account": "123456789012", "time": "2026-11-24T12:00:00Z", "region": "us-east-2", "resources": ["arn:aws:ec2:us-east-2a:instance/i-0123456789abcdef0"],
		"detail": {"instance-id": "i-0123456789abcdef0", "instance-action": "terminate"}}`,
	"hibernate": `{"detail-type": "EC2 Spot Instance Interruption Warning", "source": "aws.ec2", "time": "2026-11-24T12:00:00Z",
		"detail": {"instance-id": "i-0123456789abcdef0", "instance-action": "hibernate"}}`,
	"rebalance": `{"detail-type": "EC2 Instance Rebalance Recommendation", "source": "aws.ec2", "time": "2026-11-24T12:00:00Z",
		"detail": {"instance-id": "i-0123456789abcdef0"}}`,
	"reservation": `{"detail-type": "EC2 Capacity Reservation Instance Interruption Warning", "source": "aws.ec2", "time": "2026-11-24T12:00:00Z",
		"resources": "arn", "detail": {"instance-id": "i-0123456789abcdef0", "instance-action": "terminate", "instance-termination-time": "2026-11-24T12:03:00Z", "azId": "use1-az1"}}`,
	"health": `{"detail-type": "AWS Health Event", "source": "aws.health", "time": "2026-11-24T12:00:00Z", "resources": ["i-0123456789abcdef0"], "detail": {
		"eventArn": "arn:aws:health:us-east-1::event/EC2/AWS_EC2_INSTANCE_STOP_SCHEDULED/AWS_EC2_INSTANCE_STOP_SCHEDULED_1", "service": "EC2",
		"eventTypeCode": "AWS_EC2_INSTANCE_STOP_SCHEDULED", "eventTypeCategory": "scheduledChange", "statusCode": "upcoming",
		"startTime": "Sat, 05 Dec 2026 15:10:09 GMT", "affectedEntities": [{"entityValue": "i-0123456789abcdef0", "status": "PENDING"},
		{"entityValue": "vol-1"}, {"entityValue": "i-0123456789abcdef1", "status": "RESOLVED"}, {"entityValue": "i-0123456789abcdef0"}]}}`,
	"state": `{"detail-type": "EC2 Instance State-change Notification", "source": "aws.ec2", "time": "2026-11-24T12:00:00Z", "detail": {"instance-id": "i-0123456789abcdef0", "state": "pending"}}`,
}

func TestParseEvent(t *testing.T) {
	sent := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	maintenance := nstance.Notice{
		Kind: nstance.Maintenance, Action: "AWS_EC2_INSTANCE_STOP_SCHEDULED", NotBefore: time.Date(2026, 12, 5, 15, 10, 9, 0, time.UTC),
		Source: "aws/maintenance/eventbridge", EventID: "aws/maintenance/eventbridge/AWS_EC2_INSTANCE_STOP_SCHEDULED_1",
	}
	resolved := maintenance
	resolved.Cancelled = true
	for name, want := range map[string][]announcement{
		"spot": {{one, nstance.Notice{
			Kind: nstance.Reclaim, Action: "terminate", Deadline: sent.Add(2 * time.Minute), Source: "aws/spot/eventbridge", EventID: "aws/spot/eventbridge/terminate@2026-11-24T12:00:00Z",
		}}},
		"hibernate": {{one, nstance.Notice{
			Kind: nstance.Reclaim, Action: "hibernate", Source: "aws/spot/eventbridge", EventID: "aws/spot/eventbridge/hibernate@2026-11-24T12:00:00Z",
		}}},
		"rebalance": {{one, nstance.Notice{Kind: nstance.Rebalance, Source: "aws/rebalance/eventbridge", EventID: "aws/rebalance/eventbridge@2026-11-24T12:00:00Z"}}},
		"reservation": {{one, nstance.Notice{
			Kind: nstance.Reclaim, Action: "terminate", Deadline: sent.Add(3 * time.Minute), Source: "aws/capacity-reservation/eventbridge",
			EventID: "aws/capacity-reservation/eventbridge/terminate@2026-11-24T12:00:00Z",
		}}},
		"health": {{one, maintenance}, {other, resolved}},
		"state":  nil,
	} {
		t.Run(name, func(t *testing.T) {
			at, found, err := parseEvent(sampleEvents[name])
			require.NoError(t, err)
			require.Equal(t, sent, at)
			require.Equal(t, want, found)
		})
	}
}

// TestParseOtherHealthEvents: only scheduled changes of EC2 are notices, and the end of
// one withdraws it.
func TestParseOtherHealthEvents(t *testing.T) {
	for change, want := range map[[2]string]int{
		{`"service": "EC2"`, `"service": "RDS"`}:     0,
		{`"scheduledChange"`, `"issue"`}:             0,
		{`"startTime": "Sat, `, `"startTime": "Mon`}: 2,
	} {
		_, found, err := parseEvent(strings.Replace(sampleEvents["health"], change[0], change[1], 1))
		require.NoError(t, err)
		require.Len(t, found, want)
	}
	_, found, err := parseEvent(strings.Replace(sampleEvents["health"], `"upcoming"`, `"closed"`, 1))
	require.NoError(t, err)
	require.True(t, found[0].notice.Cancelled)
	var many []string
	for n := range 1001 {
		many = append(many, fmt.Sprintf(`{"entityValue": "i-%017x"}`, n))
	}
	_, found, err = parseEvent(strings.Replace(sampleEvents["health"], `"affectedEntities": [`, `"affectedEntities": [`+strings.Join(many, ",")+",", 1))
	require.ErrorContains(t, err, "1005 entities")
	require.Len(t, found, 1000)
}

func TestParseMalformed(t *testing.T) {
	for body, complaint := range map[string]string{
		"":                               "not an event",
		"[]":                             "not an event",
		`{"detail-type": 1}`:             "not an event",
		`{"Type": "Notification"}`:       "not an event",
		strings.Repeat(" ", 1<<20) + "{": "bytes",
		strings.Replace(sampleEvents["spot"], `"time": "2026-11-24T12:00:00Z"`, `"time": "0001-01-01T00:00:00Z"`, 1): "no time",
		strings.Replace(sampleEvents["spot"], `"instance-id": "i-0123456789abcdef0"`, `"instance-id": "*"`, 1):       "names no instance",
		strings.Replace(sampleEvents["spot"], `"detail": {`, `"detail": null, "x": {`, 1):                            "names no instance",
		strings.Replace(sampleEvents["health"], `"eventArn"`, `"arn"`, 1):                                            "no eventArn",
		strings.Replace(sampleEvents["health"], `"detail": {`, `"detail": [], "x": {`, 1):                            "no detail",
	} {
		_, found, err := parseEvent(body)
		require.ErrorContains(t, err, complaint)
		require.Empty(t, found)
	}
	for _, change := range [][2]string{{spotWarning, "EC2 Spot Instance Request Fulfillment"}, {`"aws.ec2"`, `"my.service"`}} {
		_, _, err := parseEvent(strings.Replace(sampleEvents["spot"], change[0], change[1], 1))
		require.ErrorAs(t, err, &errIgnored{})
	}
}

// TestParseActionUnknown: an interruption is announced whatever it says of its action.
func TestParseActionUnknown(t *testing.T) {
	for _, action := range []string{`"terminate the instance"`, `""`, `null`, `7`, `{"name": "stop"}`} {
		for _, name := range []string{"spot", "reservation"} {
			sent, found, err := parseEvent(strings.Replace(sampleEvents[name], `"terminate"`, action, 1))
			require.ErrorContains(t, err, "names no action")
			require.Len(t, found, 1, action)
			n := found[0].notice
			require.Equal(t, nstance.Reclaim, n.Kind)
			require.Empty(t, n.Action)
			require.Equal(t, n.Source+"/unknown@2026-11-24T12:00:00Z", n.EventID)
			require.False(t, n.Deadline.Before(sent.Add(2*time.Minute)))
		}
	}
}

// FuzzParseEvent: whatever is in the queue, what is announced has the form that the rest
// of the server expects.
func FuzzParseEvent(f *testing.F) {
	for _, e := range sampleEvents {
		f.Add(e)
	}
	f.Fuzz(func(t *testing.T, body string) {
		_, found, err := parseEvent(body)
		if ignored, ok := errors.AsType[errIgnored](err); ok && len(ignored.detailType) > maxWordBytes {
			t.Fatal("a long type is quoted")
		}
		if len(found) > maxEntities {
			t.Fatal("too many")
		}
		for _, a := range found {
			n := a.notice
			switch {
			case !instanceIDs.MatchString(a.instanceID), n.EventID == "" || len(n.EventID) > 256, n.Kind == "" || n.Source == "" || len(n.Action) > maxWordBytes:
				t.Fatalf("%+v", a)
			case !n.Deadline.IsZero() && n.Deadline.Year() > 9999, !n.NotBefore.IsZero() && n.NotBefore.Year() > 9999:
				t.Fatalf("%+v", a)
			}
			_, again, _ := parseEvent(body)
			if len(again) != len(found) || !reflect.DeepEqual(again[0], found[0]) {
				t.Fatal("the same event has another identity")
			}
		}
	})
}
