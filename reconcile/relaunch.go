package reconcile

import (
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
)

// launchRetryable reports whether the loss of the machine of m, an instance on
// demand, is a late refusal of its create: the provider had accepted it, and had
// no capacity or quota to start it. It needs the lock.
func (r *Reconciler) launchRetryable(m *member, cause nstance.LossCause, now time.Time) bool {
	refusedLate := cause == nstance.LossCapacity || cause == nstance.LossQuota
	leaving := m.rec.Deleting != nil || m.drain != nil || m.removalCause != nil
	return m.rec.OnDemand && refusedLate && !leaving && !m.registered() && m.state == nstance.Booting && !m.launchOver(now)
}

// retryLostLaunch asks again for such a machine, of which the provider has nothing left,
// and reports whether it does. It needs the lock.
func (r *Reconciler) retryLostLaunch(m *member, cause nstance.LossCause, now time.Time) bool {
	if !r.launchRetryable(m, cause, now) {
		return false
	}
	code := nstance.Capacity
	if cause == nstance.LossQuota {
		code = nstance.Quota
	}
	r.publish(m, nstance.Event{Type: nstance.EventCreateFailed, Code: code, Error: "the provider accepted the machine and could not start it: " + string(cause), Reason: "it is tried again"})
	m.loss = loss{cause: cause}
	r.rememberLoss(m, now)
	m.loss, m.machine, m.machineSince, m.missingSince = loss{}, nstance.Machine{}, time.Time{}, time.Time{}
	m.state, m.step, m.attempts = nstance.Provisioning, stepCreate, 0
	m.planRevision++
	m.needsNewToken = true
	r.requestAnotherGrant(m)
	return true
}

// nextToken is the token of a create after the machine of a former one was lost:
// a provider may answer the former token with that machine.
func nextToken(former, rec storage.Instance) string {
	sum := sha256.Sum256([]byte(former.Token + "\x00" + token(rec)))
	return string(rec.ID) + "-" + hex.EncodeToString(sum[:4])
}

// relaunched reports whether a machine was lost before rec's. The provider may
// answer with the loss of the former until it shows the present one.
func relaunched(rec storage.Instance) bool { return rec.Token != "" && rec.Token != token(rec) }
