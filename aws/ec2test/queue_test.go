package ec2test_test

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/stretchr/testify/require"

	cloud "github.com/nstance-go/nstance/aws/ec2test"
)

// A queueRig is a cloud with a client of its queue.
type queueRig struct {
	*rig
	sqs *sqs.Client
	url string
}

func (r *rig) queue(k cloud.Credential) *queueRig {
	return &queueRig{r, sqs.New(sqs.Options{
		Region: "us-east-1", BaseEndpoint: aws.String(r.url), Retryer: aws.NopRetryer{}, HTTPClient: r.http,
		Credentials: credentials.NewStaticCredentialsProvider(k.AccessKeyID, k.SecretAccessKey, k.SessionToken),
	}), r.QueueURL("nstance")}
}

func (q *queueRig) receive(wait, hide int32) []types.Message {
	q.Helper()
	out, err := q.sqs.ReceiveMessage(q.Context(), &sqs.ReceiveMessageInput{QueueUrl: &q.url, MaxNumberOfMessages: 10, WaitTimeSeconds: wait, VisibilityTimeout: hide})
	require.NoError(q, err)
	return out.Messages
}

func (q *queueRig) put(body string) {
	q.Helper()
	_, err := q.sqs.SendMessage(q.Context(), &sqs.SendMessageInput{QueueUrl: &q.url, MessageBody: &body})
	require.NoError(q, err)
}

func (q *queueRig) remove(handles ...string) *sqs.DeleteMessageBatchOutput {
	q.Helper()
	in := &sqs.DeleteMessageBatchInput{QueueUrl: &q.url}
	for i, h := range handles {
		in.Entries = append(in.Entries, types.DeleteMessageBatchRequestEntry{Id: aws.String(strings.Repeat("x", i+1)), ReceiptHandle: aws.String(h)})
	}
	out, err := q.sqs.DeleteMessageBatch(q.Context(), in)
	require.NoError(q, err)
	return out
}

// TestQueue: a received message is hidden for its visibility timeout, and received again
// unless it is deleted, by any of its handles.
func TestQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newBubbleRig(t, nil).queue(cloud.DefaultCredential)
		began := time.Now()
		require.Empty(t, q.receive(20, 10))
		require.Equal(t, 20*time.Second, time.Since(began), "it waits")

		q.put("one")
		first := q.receive(0, 10)
		require.Equal(t, "one", *first[0].Body)
		require.Empty(t, q.receive(0, 10), "it is hidden")
		began = time.Now()
		again := q.receive(20, 10)
		require.Equal(t, 10*time.Second, time.Since(began), "until it is visible again")
		require.Equal(t, *first[0].MessageId, *again[0].MessageId)
		require.NotEqual(t, *first[0].ReceiptHandle, *again[0].ReceiptHandle)

		out := q.remove(*first[0].ReceiptHandle, "nonsense")
		require.Len(t, out.Successful, 1)
		require.Equal(t, "ReceiptHandleIsInvalid", *out.Failed[0].Code)
		require.Empty(t, q.receive(20, 10), "it is deleted")

		woken := make(chan []types.Message)
		go func() { woken <- q.receive(20, 10) }()
		synctest.Wait()
		q.put("two")
		require.Len(t, <-woken, 1, "a message ends the wait")
	})
}

func TestQueueRefusals(t *testing.T) {
	r := newRig(t, &cloud.Options{Permitted: []string{"sqs:ReceiveMessage", "sqs:DeleteMessage"}})
	q := r.queue(cloud.DefaultCredential)
	receive := func(q *queueRig, in sqs.ReceiveMessageInput) error {
		if in.QueueUrl == nil {
			in.QueueUrl = &q.url
		}
		_, err := q.sqs.ReceiveMessage(t.Context(), &in)
		return err
	}
	refused(t, "AWS.SimpleQueueService.NonExistentQueue", 400, receive(q, sqs.ReceiveMessageInput{QueueUrl: aws.String(r.QueueURL("other"))}))
	refused(t, "InvalidParameterValue", 400, receive(q, sqs.ReceiveMessageInput{MaxNumberOfMessages: 11}))
	refused(t, "InvalidParameterValue", 400, receive(q, sqs.ReceiveMessageInput{WaitTimeSeconds: 21}))
	refused(t, "InvalidParameterValue", 400, receive(q, sqs.ReceiveMessageInput{VisibilityTimeout: 43201}))
	refused(t, "InvalidClientTokenId", 403, receive(r.queue(cloud.Credential{AccessKeyID: "AKIDUNKNOWN", SecretAccessKey: "x"}), sqs.ReceiveMessageInput{}))
	refused(t, "SignatureDoesNotMatch", 403, receive(r.queue(cloud.Credential{AccessKeyID: cloud.DefaultCredential.AccessKeyID, SecretAccessKey: "x"}), sqs.ReceiveMessageInput{}))

	_, err := q.sqs.SendMessage(t.Context(), &sqs.SendMessageInput{QueueUrl: &q.url, MessageBody: aws.String("x")})
	refused(t, "AccessDenied", 403, err)
	for code, entries := range map[string][]string{"EmptyBatchRequest": {}, "TooManyEntriesInBatchRequest": make([]string, 11), "BatchEntryIdsNotDistinct": {"a", "a"}, "InvalidBatchEntryId": {"a b"}} {
		in := &sqs.DeleteMessageBatchInput{QueueUrl: &q.url, Entries: []types.DeleteMessageBatchRequestEntry{}}
		for _, id := range entries {
			in.Entries = append(in.Entries, types.DeleteMessageBatchRequestEntry{Id: aws.String(id), ReceiptHandle: aws.String("x")})
		}
		_, err := q.sqs.DeleteMessageBatch(t.Context(), in)
		refused(t, "AWS.SimpleQueueService."+code, 400, err)
	}
}

// TestBusEvents: EventBridge puts what happens to machines into the queue.
func TestBusEvents(t *testing.T) {
	r := newRig(t, &cloud.Options{EventQueue: "nstance"})
	m := r.mustLaunch(spotMarket(ec2types.SpotMarketOptions{SpotInstanceType: "one-time"}))
	id := *m.InstanceId
	require.NoError(t, r.Reclaim(id, time.Hour))
	require.NoError(t, r.RecommendRebalance(id))
	require.NoError(t, r.ReclaimReservation(id, time.Now()))
	r.ScheduleChange(cloud.ScheduledChange{ID: "AWS_EC2_INSTANCE_STOP_SCHEDULED_1", Code: "AWS_EC2_INSTANCE_STOP_SCHEDULED", Status: "upcoming", Start: time.Now(), Machines: []string{id}})
	var kinds []string
	for _, body := range r.Messages("nstance") {
		var e struct {
			Kind string    `json:"detail-type"`
			Time time.Time `json:"time"`
		}
		require.NoError(t, json.Unmarshal([]byte(body), &e))
		require.Contains(t, body, id)
		require.WithinDuration(t, time.Now(), e.Time, time.Minute)
		kinds = append(kinds, e.Kind)
	}
	require.Equal(t, []string{
		"EC2 Spot Instance Interruption Warning", "EC2 Instance Rebalance Recommendation", "EC2 Capacity Reservation Instance Interruption Warning", "AWS Health Event",
	}, kinds)
}
