package ec2test

import (
	"crypto/sha256"
	"encoding/json"
	"time"

	"github.com/nstance-go/nstance/provider/testcloud"
)

// A tokenKey is what a client token is remembered by: with a subnet or a zone
// the token counts in that zone only ("Ensuring idempotency in Amazon EC2 API
// requests").
type tokenKey struct{ token, zone string }

// How long a token is remembered after its machine was terminated, at least.
const rememberToken = 24 * time.Hour

// A tokenUse is the first call with a client token. A call that was refused for
// want of capacity binds its token too.
type tokenUse struct {
	digest   [32]byte
	machines []*machine
}

// digest distinguishes calls with different parameters.
func digest(in runInput) [32]byte {
	in.ClientToken, in.DryRun = "", false
	text, err := json.Marshal(in)
	if err != nil {
		panic(err) // plain data
	}
	return sha256.Sum256(text)
}

// clientTokens remember calls by their client token.
type clientTokens struct {
	o      *Options
	timers *testcloud.Timers
	uses   map[tokenKey]*tokenUse
}

// replay returns the machines of an earlier call with the same token, if there
// was one that made any.
func (t *clientTokens) replay(l *launch) ([]*machine, error) {
	if l.in.ClientToken == "" {
		return nil, nil
	}
	key, sum := tokenKey{l.in.ClientToken, l.zone}, digest(*l.in)
	use := t.uses[key]
	if use == nil {
		t.uses[key] = &tokenUse{digest: sum}
		t.timers.After(rememberToken, func() { t.drop(key) })
		return nil, nil
	}
	for _, m := range use.machines {
		if m.state == terminated {
			return nil, refuse("IdempotentInstanceTerminated", "The instance that was launched with the client token %s has been terminated.", key.token)
		}
	}
	if use.digest != sum && (len(use.machines) == 0 || !t.o.OldMachineOnMismatch) {
		return nil, refuse("IdempotentParameterMismatch", "Arguments on this idempotent request are inconsistent with arguments used in previous request(s).")
	}
	return use.machines, nil
}

// bind remembers what a call with a token has made.
func (t *clientTokens) bind(l *launch, machines []*machine) {
	if l.in.ClientToken != "" {
		t.uses[tokenKey{l.in.ClientToken, l.zone}].machines = machines
	}
}

// drop forgets a token once its machines are terminated for a day.
func (t *clientTokens) drop(key tokenKey) {
	use := t.uses[key]
	for _, m := range use.machines {
		if m.state != terminated || time.Since(m.ended) < rememberToken {
			t.timers.After(rememberToken, func() { t.drop(key) })
			return
		}
	}
	delete(t.uses, key)
}
