package dev

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/nstance-go/nstance"
)

// An output prints events and summaries, for programs or for people.
type output struct {
	json   bool
	events io.Writer
	people io.Writer
}

func newOutput(o *Options) *output {
	out := &output{json: o.JSON, events: o.Out, people: o.Out}
	if o.JSON {
		out.people = o.Err
	}
	return out
}

func (o *output) line(v any) error {
	data, err := json.Marshal(v)
	if err == nil {
		_, err = o.events.Write(append(data, '\n'))
	}
	if err != nil {
		return nstance.Errorf(nstance.Unavailable, "standard output: %w", err)
	}
	return nil
}

// event prints one event.
func (o *output) event(e nstance.Event) error {
	if o.json {
		return o.line(e)
	}
	if e.Type == scene {
		return o.say("%s", sceneText(e))
	}
	if e.Type == nstance.EventCreated || e.Type == nstance.EventRegistered { // of interest to programs only
		return nil
	}
	return o.say("%s  %-21s %s\n", e.Time.Local().Format("15:04:05.000"), e.Type, describe(e))
}

func describe(e nstance.Event) string {
	words := []string{string(e.Instance)}
	if e.Instance == "" {
		words = []string{string(e.Group)}
	}
	if e.Replaces != "" {
		words = append(words, "replaces "+string(e.Replaces))
	}
	if e.Type == nstance.EventDrainStarted && e.Drain != nil {
		words = append(words, "until "+e.Drain.Deadline.Local().Format("15:04:05"))
	}
	for _, more := range []string{e.Reason, e.Error} {
		if more = strings.TrimSpace(more); more != "" {
			words = append(words, "("+more+")")
		}
	}
	return strings.Join(words, "  ")
}

// say prints text for people.
func (o *output) say(format string, args ...any) error {
	if _, err := fmt.Fprintf(o.people, format, args...); err != nil {
		return nstance.Errorf(nstance.Unavailable, "output: %w", err)
	}
	return nil
}

// summary prints how a scenario went.
func (o *output) summary(s Summary) error {
	if o.json {
		return o.line(s)
	}
	verdict := "ok"
	if !s.OK {
		verdict = "failed in stage " + s.Stage
	}
	if err := o.say("\nscenario %s: %s\n", s.Scenario, verdict); err != nil {
		return err
	}
	for _, d := range []struct {
		name string
		ms   *int64
	}{
		{"without a leader", s.FailoverMS},
		{"leader address moved", s.LeaderAddressMS},
		{"detected", s.DetectedMS},
		{"received", s.ReceivedMS},
		{"replacement requested", s.ReplacementRequestedMS},
		{"drained", s.DrainedMS},
		{"replacement ready", s.ReplacementReadyMS},
		{"deleted", s.DeletedMS},
	} {
		if d.ms != nil {
			if err := o.say("  %-22s %6d ms\n", d.name, *d.ms); err != nil {
				return err
			}
		}
	}
	for _, r := range s.Bridge {
		if err := o.bridge(r); err != nil {
			return err
		}
	}
	return o.counts(s)
}

// bridge prints one round of scenario bridge, both groups side by side.
func (o *output) bridge(r BridgeRound) error {
	err := o.say("\n  %-34s %9s  %12s\n", "from the notice", "with pool", "without pool")
	for _, d := range []struct {
		name          string
		with, without int64
	}{
		{"notice detected", r.WithPool.DetectedMS, r.WithoutPool.DetectedMS},
		{"capacity back", r.WithPool.CapacityBackMS, r.WithoutPool.CapacityBackMS},
		{"replacement ready", r.WithPool.ReplacementReadyMS, r.WithoutPool.ReplacementReadyMS},
	} {
		if err == nil {
			err = o.say("  %-34s %6d ms  %9d ms\n", d.name, d.with, d.without)
		}
	}
	for _, d := range []struct {
		name string
		ms   int64
	}{
		{"bridge parked again", r.ParkedAgainMS},
		{"provider's own wake time", r.ProviderWakeMS},
		{"bridge adds, from the notice", r.AddedMS},
		{"bridge adds, once detected", r.AddedAfterPollMS},
	} {
		if err == nil {
			err = o.say("  %-34s %6d ms\n", d.name, d.ms)
		}
	}
	return err
}

// counts prints what scenarios that kill servers have done, and what it has cost.
func (o *output) counts(s Summary) error {
	if s.Seed != nil {
		if err := o.say("  %-22s %6d, %d of servers; --seed %d\n", "kills", *s.Kills, *s.ServerKills, *s.Seed); err != nil {
			return err
		}
	}
	if s.Leaked == nil {
		return nil
	}
	return o.say("  %-22s %6d\n  %-22s %6d\n  %-22s %6d\n", "machines leaked", *s.Leaked, "machines superfluous", *s.Duplicated, "instances lost", *s.Lost)
}
