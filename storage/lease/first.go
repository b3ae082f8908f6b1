package lease

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
)

// first is what a process knows of a shard's mark: an object that stands from
// before anybody has led the shard, so that nobody waits for a holder who
// cannot exist.
//
// Whoever finds the lease missing puts the mark if it is absent. One process
// makes it, once for all time. Everybody else finds it there, and so waits
// MaxTTL from then on before it takes the lease. For that long, then, nobody
// but the maker can lead, and nobody has before.
type first struct {
	asked bool          // for the mark
	sent  time.Duration // when that was sent first: the mark is not older
	known bool          // whether this process has made it
	until time.Duration // if it has: how long it may take the missing lease at once
}

// opening is how long the maker of the mark may use it: much less than the
// MaxTTL for which all others wait.
const opening = MaxTTL / 2

// permits reports whether the missing lease may be taken at once.
func (f first) permits(now time.Duration) bool { return f.known && now < f.until }

// mark is lease/{shard}.led.
type mark struct {
	storage.Header
	Holder string `json:"holder"` // which process has made it
}

// open sees to it that the mark exists, and finds out whether this process has
// made it in a shard that nobody has led. An error leaves that open.
func (c *campaign) open(ctx context.Context) error {
	if c.first.known {
		return nil
	}
	if !c.first.asked {
		c.first.asked, c.first.sent = true, c.clock.Now()
	}
	mine, err := c.mark(ctx)
	if err != nil {
		return fmt.Errorf("mark the shard: %w", err)
	}
	if mine {
		_, led, err := c.traces(ctx) // of a shard whose mark was lost, or that is older than marks
		if err != nil {
			return err
		}
		if !led {
			c.opts.Log.Info("shard opened")
			c.first.until = c.first.sent + opening
		}
	}
	c.first.known = true
	return nil
}

// mark puts the mark, and reports whether it is this process's own.
func (c *campaign) mark(ctx context.Context) (mine bool, err error) {
	key := storage.LedKey(c.shard)
	data, err := json.Marshal(mark{storage.NewHeader(0), c.id})
	if err != nil {
		return false, nstance.Errorf(nstance.Internal, "encode the mark: %w", err)
	}
	perr := c.call(ctx, func(ctx context.Context) error {
		_, err := c.store.PutIfAbsent(ctx, key, data)
		return err
	})
	if perr == nil {
		return true, nil
	}
	var obj storage.Object
	err = c.call(ctx, func(ctx context.Context) (err error) {
		obj, err = c.store.Get(ctx, key)
		return err
	})
	if errors.Is(err, nstance.NotFound) {
		return false, perr
	}
	var have mark
	damaged := json.Unmarshal(obj.Data, &have) // then it is somebody's, whatever it says
	return err == nil && damaged == nil && have.Holder == c.id, err
}
