package ledger

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"strings"
	"sync"
)

// dayCacheBytes bounds the compressed days in memory. Lives of one day compress well: they
// differ in IDs and times.
const dayCacheBytes = 16 << 20

// A dayCache keeps whole days, the latest ones that fit. A pass over a month that does not
// fit into memory object by object then reads only days that have new objects.
type dayCache struct {
	limit int // bytes

	mu     sync.Mutex
	byDate map[string]cachedDay
	size   int
}

func newDayCache(limit int) *dayCache {
	return &dayCache{limit: limit, byDate: map[string]cachedDay{}}
}

// A cachedDay is what the objects of a day held. Objects never change, so it holds while the
// day has the same keys.
type cachedDay struct {
	keysHash   [sha256.Size]byte
	compressed []byte
}

func hashKeys(keys []string) [sha256.Size]byte {
	return sha256.Sum256([]byte(strings.Join(keys, "\n")))
}

// find returns the compressed day with these keys; nil: it is not kept.
func (c *dayCache) find(date string, keys []string) []byte {
	hash := hashKeys(keys)
	c.mu.Lock()
	defer c.mu.Unlock()
	if kept := c.byDate[date]; kept.keysHash == hash {
		return kept.compressed
	}
	return nil
}

// get returns the day with these keys, and false if it is not kept.
func (c *dayCache) get(date string, keys []string) (day Day, ok bool) {
	compressed := c.find(date, keys)
	if compressed == nil {
		return Day{}, false
	}
	unzipped, err := gzip.NewReader(bytes.NewReader(compressed))
	if err == nil {
		err = json.NewDecoder(unzipped).Decode(&day)
	}
	return day, err == nil
}

// keep keeps a day without problems. Of days that do not fit together the oldest are
// dropped.
func (c *dayCache) keep(keys []string, day Day) {
	if len(day.Problems) > 0 {
		return
	}
	var data bytes.Buffer
	zipped, err := gzip.NewWriterLevel(&data, gzip.BestSpeed)
	if err == nil {
		err = json.NewEncoder(zipped).Encode(day)
	}
	if err != nil || zipped.Close() != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop(day.Date)
	if data.Len() > c.limit {
		return
	}
	c.byDate[day.Date] = cachedDay{hashKeys(keys), data.Bytes()}
	for c.size += data.Len(); c.size > c.limit; {
		c.drop(c.oldest())
	}
}

// drop drops a day, if it is kept. It needs the lock.
func (c *dayCache) drop(date string) {
	c.size -= len(c.byDate[date].compressed)
	delete(c.byDate, date)
}

// oldest returns the oldest day. It needs the lock.
func (c *dayCache) oldest() (date string) {
	for d := range c.byDate {
		if date == "" || d < date {
			date = d
		}
	}
	return date
}
