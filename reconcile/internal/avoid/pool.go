// Package avoid keeps the pools of capacity in which no machine is made for a while: those that
// operators name, and zones that the cloud shifts away from.
package avoid

import (
	"strings"
	"time"

	"github.com/nstance-go/nstance"
)

// maxName is how many bytes the name of a zone or an instance type may have.
const maxName = 128

// A Pool is capacity of a zone, of an instance type, in a market, or of several of these
// together. An empty field stands for all.
type Pool struct {
	Zone         string             `json:"zone,omitempty"`
	InstanceType string             `json:"instance_type,omitempty"`
	Market       nstance.MarketType `json:"market,omitempty"`
}

// String returns the pool as nstance-admin pool takes it, such as "zone=a market=spot".
func (p Pool) String() string {
	var out []string
	for _, part := range []struct{ name, value string }{{"zone", p.Zone}, {"type", p.InstanceType}, {"market", string(p.Market)}} {
		if part.value != "" {
			out = append(out, part.name+"="+part.value)
		}
	}
	return strings.Join(out, " ")
}

// Validate fails with Invalid unless p names something, in words that have no spaces.
func (p Pool) Validate() error {
	if p == (Pool{}) {
		return nstance.FieldError("pool", "name a zone, an instance type or a market", "is empty")
	}
	for field, name := range map[string]string{"zone": p.Zone, "instance_type": p.InstanceType} {
		if len(name) > maxName || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == '=' || r > '~' }) {
			return nstance.FieldError(field, "name it as the provider does", "%.40q is no name", name)
		}
	}
	switch p.Market {
	case "", nstance.Spot, nstance.OnDemand:
		return nil
	}
	return nstance.FieldError("market", "use spot or on-demand", "%.40q is no market", string(p.Market))
}

// An Entry is a pool that is avoided.
type Entry struct {
	Pool
	Since  time.Time `json:"since"`
	Until  time.Time `json:"until,omitzero"` // zero: the cloud does not say
	Reason string    `json:"reason,omitempty"`
	By     string    `json:"by,omitempty"`    // the identity that asked for it
	Drain  bool      `json:"drain,omitempty"` // members that were made there before are replaced
	Cloud  bool      `json:"cloud,omitempty"` // the cloud asks for it: it is not stored, and operators cannot end it
}

// repeats reports whether other asks for what e is, as a call does whose answer was lost.
func (e Entry) repeats(other Entry) bool {
	near := e.Until.Sub(other.Until).Abs() < time.Minute
	e.Until = other.Until
	return near && e == other
}

// Why says what is avoided, why, and what ends it.
func (e *Entry) Why() string {
	text := "no machine is made in " + e.String()
	if e.Drain {
		text += ", members there are replaced"
	}
	return e.because(text) + "; " + e.ends()
}

// Name says what is avoided, until when, why, and what ends it.
func (e *Entry) Name() string {
	text := e.String()
	if !e.Until.IsZero() {
		text += " until " + e.Until.UTC().Format(time.RFC3339)
	}
	return e.because(text) + ", " + e.ends()
}

// Cause says which pool is avoided, and why.
func (e *Entry) Cause() string { return e.because(e.String()) }

// because adds the reason to a text.
func (e *Entry) because(text string) string {
	switch {
	case e.By == "" && e.Reason == "":
		return text
	case e.By == "":
		return text + ": " + e.Reason
	case e.Reason == "":
		return text + ": asked for by " + e.By
	}
	return text + ": " + e.Reason + " (asked for by " + e.By + ")"
}

func (e *Entry) ends() string {
	if e.Cloud {
		return "the cloud ends it"
	}
	return e.Remedy() + " ends it"
}

// Remedy returns the command that ends it; empty: only the cloud does.
func (e *Entry) Remedy() string {
	if e.Cloud {
		return ""
	}
	return "nstance-admin pool release " + e.String()
}
