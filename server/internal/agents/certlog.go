package agents

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/storage"
)

// keepIssued is how long after its expiry a certificate stays in the log.
const keepIssued = 30 * 24 * time.Hour

// An issuedCertificate is one line of the log of certificates for machines.
type issuedCertificate struct {
	Time      time.Time          `json:"time"`
	Instance  nstance.InstanceID `json:"instance"`
	Tenant    nstance.TenantID   `json:"tenant"`
	Group     nstance.GroupID    `json:"group"`
	Serial    string             `json:"serial"`
	Issuer    string             `json:"issuer"`
	Subject   string             `json:"subject"`
	Key       string             `json:"key"` // fingerprint
	NotBefore time.Time          `json:"not_before"`
	NotAfter  time.Time          `json:"not_after"`
}

// A certlog makes durable which certificates were issued, before they are handed
// out. Lines that come while an object is being written go into the next object
// together. Keys begin with the day on which the last certificate in them expires,
// so that prune need not read them.
type certlog struct {
	store storage.Store
	shard nstance.ShardID
	check func() error                                                // fails when the term has ended
	bound func(context.Context) (context.Context, context.CancelFunc) // for the write of one object

	mayPrune func() error // also fails while the clock is not trusted

	mu      sync.Mutex
	next    *certBatch
	writing bool
}

// A certBatch is one object of the log.
type certBatch struct {
	lines  bytes.Buffer
	expiry time.Time // of the last certificate
	done   chan struct{}
	err    error
}

// append returns when c is durable.
func (l *certlog) append(ctx context.Context, c issuedCertificate) error {
	line, err := json.Marshal(c)
	if err != nil {
		return nstance.Errorf(nstance.Internal, "certificate log: %w", err)
	}
	l.mu.Lock()
	if l.next == nil {
		l.next = &certBatch{done: make(chan struct{})}
	}
	b := l.next
	b.lines.Write(append(line, '\n'))
	if c.NotAfter.After(b.expiry) {
		b.expiry = c.NotAfter
	}
	write := !l.writing
	l.writing = true
	l.mu.Unlock()
	if write {
		l.write(ctx)
	}
	select {
	case <-b.done:
		return b.err
	case <-ctx.Done():
		return nstance.Errorf(nstance.Unavailable, "certificate log: %w", ctx.Err())
	}
}

// write writes batches until there is none.
func (l *certlog) write(ctx context.Context) {
	for {
		l.mu.Lock()
		b := l.next
		l.next = nil
		l.writing = b != nil
		l.mu.Unlock()
		if b == nil {
			return
		}
		b.err = l.put(ctx, b)
		close(b.done)
	}
}

// put writes a batch. Each has the same time: that of its writer may be over.
func (l *certlog) put(ctx context.Context, b *certBatch) error {
	ctx, cancel := l.bound(ctx)
	defer cancel()
	if err := l.check(); err != nil {
		return err
	}
	key := layout.CertLogPrefix(l.shard) + b.expiry.UTC().Format(time.DateOnly) + "/" + rand.Text() + ".jsonl"
	_, err := records.PutOnce(ctx, l.store, key, b.lines.Bytes()) // no other writer has this key
	return err
}

// lastExpiry returns when the last certificate expires that issuer has signed, or after if
// none expires later. Objects that may have such a certificate are read, the last one first.
func (l *certlog) lastExpiry(ctx context.Context, issuer string, after time.Time) (time.Time, error) {
	prefix := layout.CertLogPrefix(l.shard)
	firstDay := func() string { return prefix + after.UTC().Format(time.DateOnly) }
	var keys []string
	for e, err := range l.store.List(ctx, prefix, firstDay()) {
		if err != nil {
			return after, err
		}
		keys = append(keys, e.Key)
	}
	for _, key := range slices.Backward(keys) {
		if key < firstDay() {
			break
		}
		object, err := l.store.Get(ctx, key)
		if err != nil {
			return after, err
		}
		for line := range bytes.Lines(object.Data) {
			var c issuedCertificate
			if json.Unmarshal(line, &c) == nil && c.Issuer == issuer && c.NotAfter.After(after) {
				after = c.NotAfter
			}
		}
	}
	return after, nil
}

// prune deletes objects whose certificates have all expired long ago.
func (l *certlog) prune(ctx context.Context, now time.Time) error {
	prefix := layout.CertLogPrefix(l.shard)
	limit := now.Add(-keepIssued).UTC().Format(time.DateOnly)
	for e, err := range l.store.List(ctx, prefix, "") {
		if err != nil {
			return err
		}
		day, _, ok := strings.Cut(strings.TrimPrefix(e.Key, prefix), "/")
		if !ok || day >= limit {
			return nil // they are listed by day
		}
		if err := l.mayPrune(); err != nil {
			return err
		}
		if err := l.store.DeleteIfMatch(ctx, e.Key, e.Version); err != nil && !errors.Is(err, nstance.NotFound) {
			return err
		}
	}
	return nil
}
