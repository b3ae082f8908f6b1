package server

import (
	"cmp"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/attention"
	"github.com/nstance-go/nstance/reconcile"
)

// Bounds on alarms that are shown.
const (
	alarmMemory     = time.Hour
	maxTenantAlarms = 32
	maxAlarms       = 512
)

// alarms holds the alarms of the last hour. Equal alarms about one subject are one entry
// with its latest time and a count. Alarms of a tenant do not displace those of another.
type alarms struct {
	mu   sync.Mutex
	list []raisedAlarm // by their latest time
}

type raisedAlarm struct {
	nstance.Event // the latest
	first         time.Time
	count         int
}

// add never blocks for long: it is called under the reconciler's lock.
func (l *alarms) add(e nstance.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := raisedAlarm{Event: e, first: e.Time, count: 1}
	same := func(o raisedAlarm) bool {
		return o.Tenant == e.Tenant && o.Group == e.Group && o.Instance == e.Instance && o.Reason == e.Reason
	}
	if i := slices.IndexFunc(l.list, same); i >= 0 {
		a.first, a.count = l.list[i].first, l.list[i].count+1
		l.list = slices.Delete(l.list, i, i+1)
	}
	l.list = append(l.list, a)
	sameTenant := func(o raisedAlarm) bool { return o.Tenant == e.Tenant }
	n := 0
	for _, o := range l.list {
		if sameTenant(o) {
			n++
		}
	}
	switch {
	case n > maxTenantAlarms:
		i := slices.IndexFunc(l.list, sameTenant)
		l.list = slices.Delete(l.list, i, i+1)
	case len(l.list) > maxAlarms:
		l.list = slices.Delete(l.list, 0, 1)
	}
}

func (l *alarms) attention(now time.Time) (out []reconcile.Attention) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = slices.DeleteFunc(l.list, func(a raisedAlarm) bool { return now.Sub(a.Time) > alarmMemory })
	for _, a := range l.list {
		out = append(out, a.attention())
	}
	return out
}

func (a raisedAlarm) attention() reconcile.Attention {
	subject := "shard"
	switch {
	case a.Instance != "":
		subject = "instance " + string(a.Instance)
	case a.Group != "":
		subject = "group " + nstance.GroupKey{Tenant: a.Tenant, Group: a.Group}.String()
	}
	why := cmp.Or(a.Reason, a.Error)
	if a.count > 1 {
		why += ", " + strconv.Itoa(a.count) + " times"
	}
	return reconcile.Attention{
		Kind: attention.Alarm, Subject: subject, Tenant: a.Tenant, Group: a.Group, ID: a.Instance, Since: a.first,
		Until: a.Time.Add(alarmMemory), Why: why, Remedy: "nstance-admin events --type alarm",
	}
}
