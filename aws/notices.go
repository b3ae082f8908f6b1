package aws

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
)

const (
	pollWait   = 20 * time.Second // the longest that SQS waits for a message
	batchSize  = 10               // messages of one call, also the most of SQS
	callMargin = 10 * time.Second // how much longer than pollWait a call may take

	// So many batches more are received at once when one is full: their machines are one
	// call to EC2, whose rate limit a mass of warnings would exceed otherwise.
	moreBatches = maxFilterValues/batchSize - 1

	// moreWait is how long SQS waits for a message of those. Zero would not be sent, and mean
	// as long as the queue says.
	moreWait = time.Second

	// visibilityTimeout is how long a received message is hidden. If it is not
	// deleted by then, because the server ended or storage was slow, it is received
	// again: soon enough for a warning of two minutes.
	visibilityTimeout = 20 * time.Second

	// The wait after an error doubles from the first to the last.
	firstRetry, lastRetry = time.Second, time.Minute

	maxDeletions    = 1000 // messages that wait to be deleted; then the oldest is received again
	maxIgnoredTypes = 16   // types of events that are reported
)

// WatchNotices implements [nstance.NoticeWatcher] by the events of the queue
// Options.InterruptionQueue. Without one it yields nothing. A message is deleted from
// the queue when each of its notices is acknowledged, or if it announces nothing about a
// machine of owner. Errors are yielded, and followed by a pause while the queue cannot be read.
func (p *Provider) WatchNotices(ctx context.Context, owner nstance.Owner) iter.Seq2[nstance.MachineNotice, error] {
	return func(yield func(nstance.MachineNotice, error) bool) {
		if p.queueURL == "" {
			<-ctx.Done()
			return
		}
		var wg sync.WaitGroup
		defer wg.Wait()
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		w := &queueWatch{p: p, owner: owner, deletionAdded: make(chan struct{}, 1), results: make(chan watchResult)}
		wg.Go(func() { w.receiveAll(ctx) })
		wg.Go(func() { w.deleteAll(ctx) })
		for {
			select {
			case <-ctx.Done():
				return
			case r := <-w.results:
				if !yield(r.notice, r.err) {
					return
				}
			}
		}
	}
}

// A watchResult is what a watch yields.
type watchResult struct {
	notice nstance.MachineNotice
	err    error
}

// A queueWatch is one watch of the queue.
type queueWatch struct {
	p            *Provider
	owner        nstance.Owner
	results      chan watchResult
	ignoredTypes []string   // that were reported
	held         []delivery // whose instances could not be read

	mu            sync.Mutex
	deletions     []string      // receipt handles of messages that are to be deleted
	deletionAdded chan struct{} // has a value when deletions was empty before
}

// send passes a result on to the reader of the watch. It reports whether ctx lasts.
func (w *queueWatch) send(ctx context.Context, n nstance.MachineNotice, err error) bool {
	select {
	case w.results <- watchResult{n, err}:
		return true
	case <-ctx.Done():
		return false
	}
}

// receiveAll receives messages until ctx ends.
func (w *queueWatch) receiveAll(ctx context.Context) {
	for failures := 0; ctx.Err() == nil; {
		err := w.receive(ctx)
		if err == nil {
			failures = 0
			continue
		}
		failures++
		if !w.send(ctx, nstance.MachineNotice{}, err) || !sleep.For(ctx, sleep.Jitter(sleep.Backoff(failures, firstRetry, lastRetry))) {
			return
		}
	}
}

// A delivery is what one received message announces.
type delivery struct {
	handle      string
	sent        time.Time     // by AWS's clock
	ahead       time.Duration // of this clock, by the answer that it was in
	hiddenUntil time.Time     // then it is received again
	found       []announcement
}

// receive receives messages, if there are any, and handles them.
func (w *queueWatch) receive(ctx context.Context) error {
	deliveries, err := w.nextDeliveries(ctx)
	if err != nil || len(deliveries) == 0 {
		return err
	}
	ids, err := w.p.instancesOf(ctx, w.owner, deliveries)
	if err != nil {
		w.held = deliveries
		return fmt.Errorf("instances of received events: %w", err)
	}
	for _, d := range deliveries {
		w.announce(ctx, d, ids)
	}
	return nil
}

// nextDeliveries returns those that were held, as far as they are hidden still, else what
// is received next. Waiting until held ones are received again would cost most of a warning.
func (w *queueWatch) nextDeliveries(ctx context.Context) ([]delivery, error) {
	now := time.Now()
	held := slices.DeleteFunc(w.held, func(d delivery) bool { return d.hiddenUntil.Before(now) })
	if w.held = nil; len(held) > 0 {
		return held, nil
	}
	asked := time.Now()
	out, err := w.receiveBatch(ctx, pollWait)
	if err != nil {
		return nil, err
	}
	if len(out.Messages) == 0 { // an answer without the wait is followed by the pause of a failed one
		sleep.For(ctx, firstRetry-time.Since(asked))
		return nil, nil
	}
	deliveries := w.parse(ctx, out)
	if len(out.Messages) == batchSize {
		for _, more := range w.receiveMore(ctx) {
			deliveries = append(deliveries, w.parse(ctx, more)...)
		}
	}
	return deliveries, nil
}

// receiveMore receives what else is in the queue. An error of one
// call is that of the next receiveBatch too, if it lasts.
func (w *queueWatch) receiveMore(ctx context.Context) []*sqs.ReceiveMessageOutput {
	batches := make([]*sqs.ReceiveMessageOutput, moreBatches)
	var all sync.WaitGroup
	for i := range batches {
		all.Go(func() { batches[i], _ = w.receiveBatch(ctx, moreWait) })
	}
	all.Wait()
	return slices.DeleteFunc(batches, func(b *sqs.ReceiveMessageOutput) bool { return b == nil })
}

// receiveBatch receives one batch of messages, and waits that long for the first of them.
func (w *queueWatch) receiveBatch(ctx context.Context, wait time.Duration) (*sqs.ReceiveMessageOutput, error) {
	ctx, cancel := context.WithTimeout(ctx, wait+callMargin)
	defer cancel()
	return call(ctx, reading, w.p.queue.ReceiveMessage, &sqs.ReceiveMessageInput{
		QueueUrl: &w.p.queueURL, MaxNumberOfMessages: batchSize, WaitTimeSeconds: int32(wait.Seconds()),
		VisibilityTimeout: int32(visibilityTimeout.Seconds()),
	})
}

// clockDifference returns how far AWS's clock is ahead of this one, by the answer's date.
// That is in whole seconds, so a small difference is none.
func clockDifference(out *sqs.ReceiveMessageOutput) time.Duration {
	theirs, known := awsmiddleware.GetServerTime(out.ResultMetadata)
	ours, received := awsmiddleware.GetResponseAt(out.ResultMetadata)
	if d := theirs.Sub(ours); known && received && d.Abs() > 2*time.Second {
		return d
	}
	return 0
}

// parse returns the messages that announce something. The others are deleted, and the
// first error of those that are no event is yielded.
func (w *queueWatch) parse(ctx context.Context, batch *sqs.ReceiveMessageOutput) (out []delivery) {
	var malformed []error
	ahead, hiddenUntil := clockDifference(batch), time.Now().Add(visibilityTimeout)
	for _, r := range batch.Messages {
		sent, found, err := parseEvent(aws.ToString(r.Body))
		if ignored, ok := errors.AsType[errIgnored](err); ok {
			w.reportIgnored(ctx, ignored)
		} else if err != nil {
			malformed = append(malformed, err)
		}
		if handle := aws.ToString(r.ReceiptHandle); len(found) > 0 {
			out = append(out, delivery{handle, sent, ahead, hiddenUntil, found})
		} else {
			w.delete(handle)
		}
	}
	if len(malformed) > 0 {
		w.send(ctx, nstance.MachineNotice{}, nstance.Errorf(nstance.Invalid, "%d messages of the queue cannot be read: %w", len(malformed), malformed[0]))
	}
	return out
}

// reportIgnored yields an error once for each type of events.
func (w *queueWatch) reportIgnored(ctx context.Context, e errIgnored) {
	if len(w.ignoredTypes) < maxIgnoredTypes && !slices.Contains(w.ignoredTypes, e.detailType) {
		w.ignoredTypes = append(w.ignoredTypes, e.detailType)
		w.send(ctx, nstance.MachineNotice{}, nstance.Errorf(nstance.Invalid, "%w", e))
	}
}

// instancesOf returns the owner's instances among those that messages name. EC2
// compares the tags: an answer may lack tags that no filter asked for.
func (p *Provider) instancesOf(ctx context.Context, owner nstance.Owner, deliveries []delivery) (map[string]nstance.InstanceID, error) {
	named := map[string]bool{}
	for _, d := range deliveries {
		for _, a := range d.found {
			named[a.instanceID] = true
		}
	}
	ids := map[string]nstance.InstanceID{}
	ctx, cancel := context.WithTimeout(ctx, callMargin)
	defer cancel()
	for some := range slices.Chunk(slices.Sorted(maps.Keys(named)), maxFilterValues) {
		for i, err := range p.describe(ctx, append(ownerFilters(owner), filter("instance-id", some...))) {
			if err != nil {
				return nil, err
			}
			if id := tagsOf(i)[tagInstanceID]; id != "" {
				ids[aws.ToString(i.InstanceId)] = nstance.InstanceID(id)
			}
		}
	}
	return ids, nil
}

// announce yields the notices of a message about the owner's machines. EC2 may not show
// a new instance yet, so a message about an unknown one stays in the queue for a while. An
// interruption whose time is over has happened, or failed.
func (w *queueWatch) announce(ctx context.Context, d delivery, ids map[string]nstance.InstanceID) {
	now := time.Now().Add(d.ahead)
	var notices []nstance.MachineNotice
	keep := false
	for _, a := range d.found {
		id, known := ids[a.instanceID]
		keep = keep || !known && now.Sub(d.sent) <= consistency
		if past := !a.notice.Deadline.IsZero() && a.notice.Deadline.Before(now); known && !past {
			notices = append(notices, nstance.MachineNotice{ID: id, Notice: byOwnClock(a.notice, d.ahead)})
		}
	}
	if len(notices) == 0 && !keep {
		w.delete(d.handle)
	}
	left := new(atomic.Int32)
	left.Store(int32(len(notices)))
	for _, n := range notices {
		n.Ack = func() {
			if left.Add(-1) == 0 && !keep {
				w.delete(d.handle)
			}
		}
		if !w.send(ctx, n, nil) {
			return
		}
	}
}

// byOwnClock converts the deadline. NotBefore stays by the cloud's clock.
func byOwnClock(n nstance.Notice, ahead time.Duration) nstance.Notice {
	if !n.Deadline.IsZero() {
		n.Deadline = n.Deadline.Add(-ahead)
	}
	return n
}

// delete has a message deleted soon. It does not block. Beyond the limit the oldest
// ones are forgotten: they are received again.
func (w *queueWatch) delete(handle string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deletions = append(w.deletions[max(0, len(w.deletions)-maxDeletions+1):], handle)
	select {
	case w.deletionAdded <- struct{}{}:
	default:
	}
}

// takeDeletions returns messages for one call.
func (w *queueWatch) takeDeletions() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := min(batchSize, len(w.deletions))
	some := slices.Clone(w.deletions[:n])
	w.deletions = w.deletions[n:]
	return some
}

// deleteAll deletes messages until ctx ends. A message that cannot be deleted is received
// again, and acknowledged at once.
func (w *queueWatch) deleteAll(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.deletionAdded:
		}
		for some := w.takeDeletions(); len(some) > 0; some = w.takeDeletions() {
			if err := w.deleteBatch(ctx, some); err != nil && !w.send(ctx, nstance.MachineNotice{}, err) {
				return
			}
		}
	}
}

// deleteBatch deletes messages by one call.
func (w *queueWatch) deleteBatch(ctx context.Context, handles []string) error {
	in := &sqs.DeleteMessageBatchInput{QueueUrl: &w.p.queueURL}
	for i, h := range handles {
		in.Entries = append(in.Entries, types.DeleteMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(i)), ReceiptHandle: aws.String(h)})
	}
	ctx, cancel := context.WithTimeout(ctx, callMargin)
	defer cancel()
	out, err := call(ctx, reading, w.p.queue.DeleteMessageBatch, in) // repeated without harm, as a read is
	if err != nil {
		return err
	}
	if len(out.Failed) > 0 {
		f := out.Failed[0]
		return nstance.Errorf(nstance.Unavailable, "DeleteMessageBatch: %d of %d messages are not deleted: %s: %s", len(out.Failed), len(handles), aws.ToString(f.Code), aws.ToString(f.Message))
	}
	return nil
}
