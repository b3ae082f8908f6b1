package storage

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
)

// Probe writes a few small objects under probe/ to check that s honours the
// conditions of its writes, in sequence and in a race. A back end that ignores
// them would let two servers lead one shard: it fails with Invalid. Any other error says that the probe could not
// finish, not that the back end is bad. Deletions need no condition. A store that throttles,
// such as one that permits one write a second to one object, is waited for: then a probe
// takes some seconds.
//
// Probe removes what it has written, also when it fails, and the objects of probes
// that were interrupted more than an hour ago.
func Probe(ctx context.Context, s Store) error {
	now := time.Now()
	p := probe{s: s, key: probeKey(now)}
	race := probeKey(now)
	var raced error
	var racing sync.WaitGroup
	racing.Go(func() { raced = p.race(ctx, race) })
	err := p.run(ctx)
	racing.Wait()
	if err == nil || errors.Is(raced, nstance.Invalid) {
		err = raced
	}
	p.cleanUp(ctx, now, p.key, race)
	if err != nil && nstance.CodeOf(err) != nstance.Invalid {
		return nstance.Errorf(nstance.CodeOf(err), "probe the storage: %w", err)
	}
	return err
}

const (
	probePrefix    = "probe/"
	probeLeftover  = time.Hour // an older object belongs to no running probe
	cleanUpTimeout = 10 * time.Second
	maxCleanedUp   = 1000
)

// probeKey returns a key that contains the time.
func probeKey(now time.Time) string {
	return probePrefix + strconv.FormatInt(now.Unix(), 10) + "-" + rand.Text()
}

type probe struct {
	s   Store
	key string
}

// cleanUp removes the probe's own objects and old ones of others. The next probe
// removes the rest.
func (p probe) cleanUp(ctx context.Context, now time.Time, own ...string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTimeout)
	defer cancel()
	var found []Entry
	for entry, err := range p.s.List(ctx, probePrefix, "") {
		if err != nil || len(found) == maxCleanedUp {
			break
		}
		if slices.Contains(own, entry.Key) || isLeftover(entry.Key, now) {
			found = append(found, entry)
		}
	}
	for _, entry := range found {
		_ = p.deleteIfMatch(ctx, entry.Key, entry.Version) // the next probe retries
	}
}

// isLeftover reports whether a key is that of an interrupted probe.
func isLeftover(key string, now time.Time) bool {
	made, _, _ := strings.Cut(strings.TrimPrefix(key, probePrefix), "-")
	sec, err := strconv.ParseInt(made, 10, 64)
	return err == nil && now.Sub(time.Unix(sec, 0)) > probeLeftover
}

// A call of a probe that the store throttles is repeated after a second, and a little more:
// several stores permit one write a second to one object. Half a minute in all.
const (
	throttledWait = time.Second + 50*time.Millisecond
	maxThrottled  = 10
)

// patiently repeats a call that the store throttles, which has no effect. Any other answer is
// returned.
func patiently[T any](ctx context.Context, call func() (T, error)) (T, error) {
	for attempt := 1; ; attempt++ {
		out, err := call()
		if !errors.Is(err, nstance.Throttled) || attempt == maxThrottled {
			return out, err
		}
		if !sleep.For(ctx, sleep.Backoff(attempt, throttledWait, 4*time.Second)) {
			return out, err
		}
	}
}

func (p probe) putIfAbsent(ctx context.Context, key string, data []byte) (Version, error) {
	return patiently(ctx, func() (Version, error) { return p.s.PutIfAbsent(ctx, key, data) })
}

func (p probe) putIfMatch(ctx context.Context, key string, data []byte, v Version) (Version, error) {
	return patiently(ctx, func() (Version, error) { return p.s.PutIfMatch(ctx, key, data, v) })
}

func (p probe) deleteIfMatch(ctx context.Context, key string, v Version) error {
	_, err := patiently(ctx, func() (Version, error) { return "", p.s.DeleteIfMatch(ctx, key, v) })
	return err
}

func (p probe) get(ctx context.Context, key string) (Object, error) {
	return patiently(ctx, func() (Object, error) { return p.s.Get(ctx, key) })
}

func (p probe) run(ctx context.Context) error {
	first, err := p.putIfAbsent(ctx, p.key, []byte("1"))
	if err != nil {
		return err
	}
	if _, err := p.putIfAbsent(ctx, p.key, []byte("2")); !refused(err) {
		return flaw(err, "it overwrites an object that was to be written only if absent")
	}
	obj, err := p.get(ctx, p.key)
	if err != nil || obj.Version != first || string(obj.Data) != "1" {
		return flaw(err, "it does not return what was just written, or with another version")
	}
	second, err := p.putIfMatch(ctx, p.key, []byte("3"), first)
	if err != nil || second == first {
		return flaw(err, "a write of other bytes does not change the version")
	}
	if _, err := p.putIfMatch(ctx, p.key, []byte("4"), first); !refused(err) {
		return flaw(err, "it overwrites an object that has changed")
	}
	if err := p.deleteIfMatch(ctx, p.key, second); err != nil {
		return err
	}
	if _, err := p.putIfMatch(ctx, p.key, []byte("5"), second); !refused(err) {
		return flaw(err, "it writes an object anew that was to be written only if unchanged")
	}
	return nil
}

// race lets a few writers create one object: some back ends honour the condition
// only without concurrency.
func (p probe) race(ctx context.Context, key string) error {
	const writers = 8
	var (
		wg      sync.WaitGroup
		winners atomic.Int32
		version atomic.Value
		errs    [writers]error
	)
	for i := range writers {
		wg.Go(func() {
			v, err := p.putIfAbsent(ctx, key, []byte{byte('a' + i)})
			if err == nil {
				winners.Add(1)
				version.Store(v)
			} else if !refused(err) {
				errs[i] = err
			}
		})
	}
	wg.Wait()
	if n := winners.Load(); n > 1 {
		return flaw(nil, "several concurrent writers of one absent object all succeed")
	} else if n == 0 {
		return errors.Join(errs[:]...)
	}
	return p.deleteIfMatch(ctx, key, version.Load().(Version))
}

func refused(err error) bool { return errors.Is(err, nstance.Conflict) }

// flaw reports a defect of the back end, unless the call failed for another reason.
func flaw(err error, what string) error {
	if err != nil && !refused(err) {
		return err
	}
	return &nstance.Error{
		Code: nstance.Invalid, Field: "storage.url", Msg: "this storage cannot be used: " + what,
		Remedy: "use a back end that honours If-None-Match and If-Match on writes",
	}
}
