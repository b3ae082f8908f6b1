package ec2test

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// The limits of a standard queue (SQS API Reference: ReceiveMessage, SendMessage,
// DeleteMessageBatch).
const (
	maxMessageBytes = 1 << 20
	maxReceived     = 10
	maxWait         = 20
	maxInvisible    = 43200
	maxDelay        = 900
	maxBatch        = 10

	defaultInvisible = 30 * time.Second
)

// A queue is a standard queue of SQS. Everything in it is guarded by the cloud's lock.
type queue struct {
	messages []*queued
	changed  chan struct{} // closed and replaced with every new message
}

// A queued is a message in a queue. One that is deleted is in no queue.
type queued struct {
	id, body  string
	visibleAt time.Time
	received  int
}

func newQueue() *queue { return &queue{changed: make(chan struct{})} }

func (q *queue) put(body string, delay time.Duration) *queued {
	m := &queued{id: newRequestID(), body: body, visibleAt: time.Now().Add(delay)}
	q.messages = append(q.messages, m)
	close(q.changed)
	q.changed = make(chan struct{})
	return m
}

// take hides and returns visible messages. If there is none it returns when the next one
// is visible, zero: none is hidden.
func (q *queue) take(most int, hide time.Duration) (some []*queued, next time.Time) {
	now := time.Now()
	for _, m := range q.messages {
		switch {
		case m.visibleAt.After(now):
			if next.IsZero() || m.visibleAt.Before(next) {
				next = m.visibleAt
			}
		case len(some) < most:
			m.visibleAt = now.Add(hide)
			m.received++
			some = append(some, m)
		}
	}
	return some, next
}

// handle is different for each time that a message is received.
func (m *queued) handle() string {
	return hex.EncodeToString(fmt.Appendf(nil, "%s#%d", m.id, m.received))
}

func (q *queue) remove(handle string) bool {
	text, err := hex.DecodeString(handle)
	id, _, ok := strings.Cut(string(text), "#")
	if err != nil || !ok {
		return false
	}
	q.messages = slices.DeleteFunc(q.messages, func(m *queued) bool { return m.id == id })
	return true // also of a message that is deleted already
}

// QueueURL returns the URL of a queue.
func (c *Cloud) QueueURL(name string) string {
	return "https://sqs." + c.o.Region + ".amazonaws.com/" + c.o.Account + "/" + name
}

// Messages returns the bodies of the messages in a queue, hidden ones too.
func (c *Cloud) Messages(name string) (bodies []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.queues.byName[name].messages {
		bodies = append(bodies, m.body)
	}
	return bodies
}

// Send puts a message into a queue, as SendMessage does.
func (c *Cloud) Send(name, body string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queues.byName[name].put(body, 0)
}

// messageQueues are the queues of the account.
type messageQueues struct {
	o       *Options
	mu      *sync.Mutex
	byName  map[string]*queue
	closing chan struct{} // closed with the cloud
}

func newMessageQueues(o *Options, mu *sync.Mutex) *messageQueues {
	s := &messageQueues{o: o, mu: mu, byName: map[string]*queue{}, closing: make(chan struct{})}
	for _, name := range o.Catalog.Queues {
		s.byName[name] = newQueue()
	}
	return s
}

// find returns the queue with that URL. Which host it names is not compared: it may
// be that of an endpoint of the VPC.
func (s *messageQueues) find(url string) (*queue, error) {
	path := strings.Split(url, "/")
	if len(path) < 5 {
		return nil, refuse("InvalidAddress", "The address %s is not valid for this endpoint.", url)
	}
	q := s.byName[path[len(path)-1]]
	if q == nil || path[len(path)-2] != s.o.Account {
		return nil, refuse("QueueDoesNotExist", "The specified queue does not exist.")
	}
	return q, nil
}

type queueInput struct{ QueueUrl string }

type receiveInput struct {
	queueInput
	MaxNumberOfMessages         *int
	VisibilityTimeout           *int
	WaitTimeSeconds             int
	MessageSystemAttributeNames []string
	MessageAttributeNames       []string
	AttributeNames              []string
}

type receiveOutput struct {
	Messages []messageItem `json:",omitempty"`
}

type messageItem struct {
	MessageId     string
	ReceiptHandle string
	MD5OfBody     string
	Body          string
}

func (in *receiveInput) check() error {
	if n := in.MaxNumberOfMessages; n != nil && (*n < 1 || *n > maxReceived) {
		return invalid("Value %d for parameter MaxNumberOfMessages is invalid. Reason: Must be between 1 and 10, if provided.", *n)
	}
	if n := in.VisibilityTimeout; n != nil && (*n < 0 || *n > maxInvisible) {
		return invalid("Value %d for parameter VisibilityTimeout is invalid. Reason: Must be >= 0 and <= 43200, if provided.", *n)
	}
	if n := in.WaitTimeSeconds; n < 0 || n > maxWait {
		return invalid("Value %d for parameter WaitTimeSeconds is invalid. Reason: Must be >= 0 and <= 20, if provided.", n)
	}
	return nil
}

// receive waits, without the cloud's lock, until there is a message or the time is
// over.
func (s *messageQueues) receive(ctx context.Context, in *receiveInput) (*receiveOutput, error) {
	if err := in.check(); err != nil {
		return nil, err
	}
	most, hide := 1, defaultInvisible
	if in.MaxNumberOfMessages != nil {
		most = *in.MaxNumberOfMessages
	}
	if in.VisibilityTimeout != nil {
		hide = time.Duration(*in.VisibilityTimeout) * time.Second
	}
	if s.o.HideAtMost > 0 {
		hide = min(hide, s.o.HideAtMost)
	}
	end := time.Now().Add(time.Duration(in.WaitTimeSeconds) * time.Second)
	for {
		out, next, changed, err := s.take(in.QueueUrl, most, hide)
		if left := time.Until(end); err != nil || len(out.Messages) > 0 || left <= 0 {
			return out, err
		}
		if next.IsZero() || next.After(end) {
			next = end
		}
		timer := time.NewTimer(time.Until(next))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil, ctx.Err()
		case <-s.closing:
			end = time.Now()
		case <-changed:
		case <-timer.C:
		}
		timer.Stop()
	}
}

func (s *messageQueues) take(url string, most int, hide time.Duration) (out *receiveOutput, next time.Time, changed <-chan struct{}, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q, err := s.find(url)
	if err != nil {
		return nil, next, nil, err
	}
	some, next := q.take(most, hide)
	out = &receiveOutput{}
	for _, m := range some {
		out.Messages = append(out.Messages, messageItem{m.id, m.handle(), md5Of(m.body), m.body})
	}
	return out, next, q.changed, nil
}

func md5Of(s string) string {
	sum := md5.Sum([]byte(s))
	return hex.EncodeToString(sum[:])
}

type sendInput struct {
	queueInput
	MessageBody  string
	DelaySeconds int
}

type sendOutput struct{ MessageId, MD5OfMessageBody string }

// forbidden are the characters that XML has none for ("SendMessage", SQS API Reference).
var forbidden = regexp.MustCompile(`[^\x{9}\x{A}\x{D}\x{20}-\x{D7FF}\x{E000}-\x{FFFD}\x{10000}-\x{10FFFF}]`)

func (s *messageQueues) send(_ context.Context, in *sendInput) (*sendOutput, error) {
	switch {
	case in.MessageBody == "":
		return nil, refuse("MissingParameter", "The request must contain the parameter MessageBody.")
	case len(in.MessageBody) > maxMessageBytes:
		return nil, invalid("One or more parameters are invalid. Reason: Message must be shorter than %d bytes.", maxMessageBytes)
	case forbidden.MatchString(in.MessageBody):
		return nil, refuse("InvalidMessageContents", "Invalid characters found. Valid unicode characters are #x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF")
	case in.DelaySeconds < 0 || in.DelaySeconds > maxDelay:
		return nil, invalid("Value %d for parameter DelaySeconds is invalid. Reason: DelaySeconds must be >= 0 and <= 900.", in.DelaySeconds)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	q, err := s.find(in.QueueUrl)
	if err != nil {
		return nil, err
	}
	m := q.put(in.MessageBody, time.Duration(in.DelaySeconds)*time.Second)
	return &sendOutput{m.id, md5Of(m.body)}, nil
}

type deleteEntry struct{ Id, ReceiptHandle string }

type deleteBatchInput struct {
	queueInput
	Entries []deleteEntry
}

type deleteBatchOutput struct {
	Successful []deletedItem
	Failed     []failedItem
}

type deletedItem struct{ Id string }

type failedItem struct {
	Id, Code, Message string
	SenderFault       bool
}

var batchIDs = regexp.MustCompile(`^[A-Za-z0-9_-]{1,80}$`)

func (in *deleteBatchInput) check() error {
	switch {
	case len(in.Entries) == 0:
		return refuse("EmptyBatchRequest", "There should be at least one DeleteMessageBatchRequestEntry in the request.")
	case len(in.Entries) > maxBatch:
		return refuse("TooManyEntriesInBatchRequest", "Maximum number of entries per request are 10. You have sent %d.", len(in.Entries))
	}
	seen := map[string]bool{}
	for _, e := range in.Entries {
		switch {
		case !batchIDs.MatchString(e.Id):
			return refuse("InvalidBatchEntryId", "A batch entry id can only contain alphanumeric characters, hyphens and underscores. It can be at most 80 letters long.")
		case seen[e.Id]:
			return refuse("BatchEntryIdsNotDistinct", "Id %s repeated.", e.Id)
		}
		seen[e.Id] = true
	}
	return nil
}

func (s *messageQueues) deleteBatch(_ context.Context, in *deleteBatchInput) (*deleteBatchOutput, error) {
	if err := in.check(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	q, err := s.find(in.QueueUrl)
	if err != nil {
		return nil, err
	}
	out := &deleteBatchOutput{Successful: []deletedItem{}, Failed: []failedItem{}}
	for _, e := range in.Entries {
		if q.remove(e.ReceiptHandle) {
			out.Successful = append(out.Successful, deletedItem{e.Id})
		} else {
			out.Failed = append(out.Failed, failedItem{e.Id, "ReceiptHandleIsInvalid", "The input receipt handle is invalid.", true})
		}
	}
	return out, nil
}
