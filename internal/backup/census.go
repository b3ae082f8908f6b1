package backup

import (
	"errors"
	"strings"
	"sync"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/generation"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/storage"
)

// A census is what matters of the objects of a storage. It is safe for concurrent use.
type census struct {
	mu        sync.Mutex
	epochs    map[nstance.ShardID]uint64 // the highest of each shard
	next      map[nstance.ShardID]uint64 // with which the next generation of each begins
	operators int
	objects   int
}

func newCensus() *census { return &census{epochs: map[nstance.ShardID]uint64{}} }

// count counts an object. An epoch that cannot be read is none, as it is to a leader.
func (c *census) count(obj storage.Object) error {
	c.countKey(obj.Key)
	shard := shardOf(obj.Key)
	if shard == "" {
		return nil
	}
	h, err := records.ReadHeader(obj)
	if err != nil && !errors.Is(err, nstance.Invalid) {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.epochs[shard] = max(c.epochs[shard], h.Epoch)
	return nil
}

// choose chooses the next generation of each shard, once all objects are counted.
func (c *census) choose() {
	c.next = map[nstance.ShardID]uint64{}
	for shard, top := range c.epochs {
		c.next[shard] = generation.Next(top)
	}
}

func (c *census) countKey(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.objects++; strings.HasPrefix(key, layout.OperatorPrefix) {
		c.operators++
	}
}

func (c *census) result(o Options) Result {
	out := Result{Shards: c.next, Objects: c.objects}
	if !o.KeepGrants {
		out.Operators = c.operators
	}
	return out
}
