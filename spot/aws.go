package spot

import (
	"context"
	"errors"
	"iter"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/nstance-go/nstance"
)

// awsBaseURL is the metadata service of EC2.
const awsBaseURL = "http://169.254.169.254"

const (
	awsInstanceID  = "latest/meta-data/instance-id"
	awsLifeCycle   = "latest/meta-data/instance-life-cycle"
	awsAction      = "latest/meta-data/spot/instance-action"
	awsRebalance   = "latest/meta-data/events/recommendations/rebalance"
	awsMaintenance = "latest/meta-data/events/maintenance/scheduled"
	awsTargetState = "latest/meta-data/autoscaling/target-lifecycle-state"
)

// AWS detects what EC2 announces for this machine: interruptions, rebalance
// recommendations, scheduled maintenance, and termination by Auto Scaling. It
// watches all of them on every machine: on-demand machines have maintenance too,
// and a failed Interruptible must not switch off a watch. It is safe for
// concurrent use.
type AWS struct {
	o         Options
	session   *session
	lastReads lastReads
	history   history

	known atomic.Bool // the service is EC2's, or a good imitation: what it does not find is not there
}

var _ nstance.SpotDetector = (*AWS)(nil)

// NewAWS returns a detector without asking the service anything. Fails with
// Invalid for options that make no sense; nil is allowed.
func NewAWS(o *Options) (*AWS, error) {
	resolved, err := o.resolve(awsBaseURL)
	if err != nil {
		return nil, err
	}
	a := &AWS{o: resolved}
	a.session = newSession(&a.o)
	return a, nil
}

// Interruptible reports whether the machine's life cycle is spot. It gives up
// after a few seconds with Unavailable, or Denied, NotFound or Internal as the
// service answers.
func (a *AWS) Interruptible(ctx context.Context) (bool, error) {
	got, err := a.get(ctx, awsLifeCycle)
	if err != nil {
		return false, err
	}
	word, err := parseWord(got.body)
	if err != nil {
		return false, nstance.Errorf(nstance.Internal, "/%s: %w", awsLifeCycle, err)
	}
	return word == "spot", nil
}

// Machine returns what EC2 calls this machine: aws/ and its instance ID. It fails like
// Interruptible.
func (a *AWS) Machine(ctx context.Context) (string, error) {
	got, err := a.get(ctx, awsInstanceID)
	if err != nil {
		return "", err
	}
	return machineName("aws", awsInstanceID, got.body)
}

// Watch yields notices and errors until ctx ends. Each watch begins without
// history and yields every notice that stands already.
//
// An interruption is a Reclaim with the cloud's action and deadline, a
// rebalance recommendation a Rebalance, a scheduled event a Maintenance with
// its NotBefore and its code as action, the target state Terminated a
// Terminate. Deadlines are converted to the machine's clock by the service's
// Date header. A notice whose deadline is past when the watch begins is ignored,
// with an error. A notice whose key or entry disappears, or whose state becomes
// canceled or completed, is yielded once more, Cancelled. An interruption that
// is postponed before it is due keeps the deadline that was yielded, since
// deadlines only tighten. An error is yielded once as long as it lasts.
func (a *AWS) Watch(ctx context.Context) iter.Seq2[nstance.Notice, error] {
	return func(yield func(nstance.Notice, error) bool) {
		watch(ctx, &a.o, &a.lastReads, a.history.take(),
			&actionKey{awsKey: awsKey{a, awsAction, "aws/spot", parseInstanceAction}},
			&rebalanceKey{aws: a},
			awsKey{a, awsMaintenance, "aws/maintenance", parseMaintenance},
			awsKey{a, awsTargetState, "aws/autoscaling", parseTargetState},
		)(yield)
	}
}

// Due returns when the watches under way will have read every key again, if they
// make progress; zero: there is no watch. It may be called concurrently.
func (a *AWS) Due() time.Time { return a.lastReads.due(a.o.PollInterval) }

// Unreadable returns why keys cannot be read at present, and since when; nil: all can, or
// there is no watch. Notices that they announce meanwhile are missed. It may be called
// concurrently.
func (a *AWS) Unreadable() (since time.Time, err error) { return a.lastReads.unreadable() }

// An awsKey is one path and the parser of its document.
type awsKey struct {
	aws    *AWS
	path   string
	source string // of the notices
	parse  func([]byte) ([]nstance.Notice, error)
}

func (k awsKey) noticeSource() string { return k.source }

func (k awsKey) read(ctx context.Context) (reading, error) {
	a, err := k.aws.get(ctx, k.path)
	switch {
	case errors.Is(err, nstance.NotFound):
		return reading{at: a.at}, k.aws.identify(ctx)
	case err != nil:
		return reading{}, err
	}
	found, err := k.parse(a.body)
	if err != nil {
		err = nstance.Errorf(nstance.Internal, "/%s: %w", k.path, err)
	}
	return reading{found: found, at: a.at}, err
}

// identify fails unless the service has granted a token or knows an instance: anything else
// that answers there, such as a proxy, finds no key either.
func (a *AWS) identify(ctx context.Context) error {
	if a.known.Load() {
		return nil
	}
	header, err := a.session.header(ctx)
	if err == nil && header == nil {
		_, err = a.get(ctx, awsInstanceID)
	}
	if errors.Is(err, nstance.NotFound) {
		return unknownService("EC2")
	}
	a.known.Store(err == nil)
	return err
}

// An actionKey reads the key of interruptions, which has room for one.
type actionKey struct {
	awsKey
	standing nstance.Notice // zero: none
}

func (k *actionKey) read(ctx context.Context) (reading, error) {
	got, err := k.awsKey.read(ctx)
	switch {
	case len(got.found) > 0: // even if a part of it cannot be read
		k.standing = keepIdentity(k.standing, got.found[0], got.at.cloud)
		got.found = []nstance.Notice{k.standing}
	case err == nil:
		k.standing = nstance.Notice{}
	}
	return got, err
}

// keepIdentity returns the notice n that follows previous. If the time changes
// before it has passed, it is the same interruption, although the time is part of
// the event ID: some services that imitate EC2 change it with every read. If it
// changes after it has passed, it is another interruption, because a failed
// termination leaves its old time in the document.
func keepIdentity(previous, n nstance.Notice, now time.Time) nstance.Notice {
	if n.Action == "" { // which cannot be read
		n.Action = previous.Action
	}
	due := !previous.Deadline.IsZero() && !previous.Deadline.After(now)
	if previous.Action != n.Action || due {
		return n
	}
	n.EventID = previous.EventID
	if !previous.Deadline.IsZero() && (n.Deadline.IsZero() || n.Deadline.After(previous.Deadline)) {
		n.Deadline = previous.Deadline
	}
	return n
}

// stampTolerance is how far a noticeTime may be from the time of the read that
// returned it: both are whole seconds.
const stampTolerance = 2 * time.Second

// A rebalanceKey reads the rebalance recommendation. A noticeTime that is the time
// of the read, two reads in a row, is no new recommendation: some services that
// imitate EC2 write the present time into each answer.
type rebalanceKey struct {
	aws           *AWS
	standing      nstance.Notice // zero: none
	lastSent      time.Time      // the noticeTime of the last read
	stampedByRead bool           // it was the time of that read
}

func (*rebalanceKey) noticeSource() string { return "aws/rebalance" }

func (k *rebalanceKey) read(ctx context.Context) (reading, error) {
	var sent time.Time
	parse := func(body []byte) (found []nstance.Notice, err error) {
		if found, err = parseRebalance(body); err == nil {
			sent, err = parseNoticeTime(body)
		}
		return found, err
	}
	got, err := awsKey{k.aws, awsRebalance, k.noticeSource(), parse}.read(ctx)
	switch {
	case err != nil:
		return got, err
	case len(got.found) == 0:
		k.standing, k.lastSent, k.stampedByRead = nstance.Notice{}, time.Time{}, false
		return got, nil
	}
	stamped := got.at.cloud.Sub(sent).Abs() <= stampTolerance
	repeated := sent.Equal(k.lastSent) || stamped && k.stampedByRead
	if !repeated {
		k.standing = got.found[0]
	}
	k.lastSent, k.stampedByRead = sent, stamped
	got.found = []nstance.Notice{k.standing}
	return got, nil
}

// get reads one path, with a session token where the service has them. A
// refused token is dropped and the read repeated once. Fails with NotFound
// only if the service said so about this path.
func (a *AWS) get(ctx context.Context, path string) (answer, error) {
	got, sent, err := a.tryGet(ctx, path)
	if err == nil && got.status == http.StatusUnauthorized {
		a.session.refused(sent)
		got, _, err = a.tryGet(ctx, path)
	}
	if err != nil {
		return answer{}, err
	}
	return got, got.check(path)
}

func (a *AWS) tryGet(ctx context.Context, path string) (answer, map[string]string, error) {
	header, err := a.session.header(ctx)
	if err != nil {
		return answer{}, nil, err
	}
	got, err := a.o.do(ctx, request{method: http.MethodGet, path: path, header: header, timeout: requestTimeout})
	return got, header, err
}
