package server

import (
	"context"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/server/internal/address"
)

// addressMover returns what moves the shard's address, nil if it has none. It is
// the one place where the ability is looked for. Fails with Invalid if the
// provider has no such ability.
func addressMover(p nstance.Provider, shard config.Shard) (nstance.AddressMover, error) {
	if shard.LeaderAddress == "" {
		return nil, nil
	}
	mover, ok := p.(nstance.AddressMover)
	if !ok {
		return nil, nstance.FieldError("shard.leader_address", "leave it out, and give clients the addresses of all servers",
			"provider %s has no addresses that move", shard.Provider.Kind)
	}
	return mover, nil
}

// newAddressKeeper returns nil if the shard has no movable address.
func (t *term) newAddressKeeper() (*address.Keeper, error) {
	shard, s := t.conf.Shard, t.server
	mover, err := addressMover(s.provider, shard)
	if mover == nil {
		return nil, err
	}
	return address.New(mover, address.Options{
		Address: shard.LeaderAddress, TTL: shard.Election.TTL, Timeout: func() time.Duration { return s.config.InForce().Shard.RequestTimeout },
		Check: t.granted.Err, Relief: s.peers.HasRelief, Failed: s.peers.SetAddressFailed, Log: t.log,
		Alarm: func(reason string, err error) {
			e := nstance.Event{Type: nstance.EventAlarm, Time: s.opts.Now().UTC(), Reason: reason}
			if err != nil {
				e.Code, e.Error = nstance.CodeOf(err), err.Error()
			}
			t.alarm(e)
		},
	}), nil
}

// keepAddress runs the keeper, if there is one, and has the term end when another
// server should try.
func (t *term) keepAddress(ctx context.Context) {
	if t.address == nil {
		return
	}
	if err := t.address.Run(ctx); err != nil {
		t.quit <- err
	}
}
