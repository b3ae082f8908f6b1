package journaltest_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/conformance"
	"github.com/nstance-go/nstance/journal"
	"github.com/nstance-go/nstance/journal/journaltest"
)

// flawed is a journal whose calls can be replaced.
type flawed struct {
	journal.Journal
	appends func(nstance.Event)
	events  func(context.Context, journal.Filter) ([]nstance.Event, error)
	notices func(context.Context, journal.Filter) ([]journal.NoticeEntry, error)
	dropped uint64
	run     func(context.Context) error
}

func (f *flawed) Append(e nstance.Event) { f.appends(e) }
func (f *flawed) Events(ctx context.Context, by journal.Filter) ([]nstance.Event, error) {
	return f.events(ctx, by)
}

func (f *flawed) Notices(ctx context.Context, by journal.Filter) ([]journal.NoticeEntry, error) {
	return f.notices(ctx, by)
}
func (f *flawed) Dropped() uint64               { return f.dropped }
func (f *flawed) Run(ctx context.Context) error { return f.run(ctx) }

// defects are what breaks one promise each, and the subtest that must find it.
var defects = map[string]struct {
	subtest string
	infect  func(f *flawed, sound flawed)
}{
	"shows what is appended later": {"what_was_appended_is_read_at_once,_in_order", func(f *flawed, sound flawed) {
		f.events = func(ctx context.Context, by journal.Filter) ([]nstance.Event, error) {
			found, err := sound.events(ctx, by)
			if len(found) > 1 {
				found = found[:len(found)-1]
			}
			return found, err
		}
	}},
	"newest first": {"what_was_appended_is_read_at_once,_in_order", func(f *flawed, sound flawed) {
		f.events = func(ctx context.Context, by journal.Filter) ([]nstance.Event, error) {
			found, err := sound.events(ctx, by)
			slices.Reverse(found)
			return found, err
		}
	}},
	"keeps foreign numbers": {"numbers_are_the_journal's_own,_and_grow", func(f *flawed, sound flawed) {
		f.events = func(ctx context.Context, by journal.Filter) ([]nstance.Event, error) {
			found, err := sound.events(ctx, by)
			for i := range found[min(len(found), 1):] {
				found[i+1].Seq = 77
			}
			return found, err
		}
	}},
	"loses the drain": {"an_event_comes_back_as_it_was", func(f *flawed, sound flawed) {
		f.appends = func(e nstance.Event) { e.Drain = nil; sound.appends(e) }
	}},
	"ignores replaces": {"a_filter_chooses_by_every_field", func(f *flawed, sound flawed) {
		f.events = func(ctx context.Context, by journal.Filter) ([]nstance.Event, error) {
			by.Replaces = nil
			return sound.events(ctx, by)
		}
	}},
	"ignores seconds": {"times_are_compared_by_the_second", func(f *flawed, sound flawed) {
		f.events = func(ctx context.Context, by journal.Filter) ([]nstance.Event, error) {
			if !by.Since.IsZero() {
				by.Since = by.Since.Add(time.Second)
			}
			return sound.events(ctx, by)
		}
	}},
	"always the oldest": {"of_more_than_the_limit_the_oldest_or_the_newest_come", func(f *flawed, sound flawed) {
		f.events = func(ctx context.Context, by journal.Filter) ([]nstance.Event, error) {
			by.Newest = false
			return sound.events(ctx, by)
		}
	}},
	"repeats the page": {"a_page_goes_on_after_the_last_number", func(f *flawed, sound flawed) {
		f.events = func(ctx context.Context, by journal.Filter) ([]nstance.Event, error) {
			if by.Limit > 0 {
				by.After = max(by.After, 1) - 1
			}
			return sound.events(ctx, by)
		}
	}},
	"lists notices twice": {"a_notice_is_listed_once,_the_latest_first", func(f *flawed, sound flawed) {
		f.notices = func(ctx context.Context, by journal.Filter) ([]journal.NoticeEntry, error) {
			found, err := sound.notices(ctx, by)
			return append(found, found...), err
		}
	}},
	"drops": {"a_healthy_journal_has_no_problems_and_loses_nothing", func(f *flawed, _ flawed) { f.dropped = 1 }},
	"empty for the context": {"a_read_ends_with_its_context,_and_is_never_empty_for_it", func(f *flawed, sound flawed) {
		f.events = func(ctx context.Context, by journal.Filter) ([]nstance.Event, error) {
			if ctx.Err() != nil {
				return nil, nil
			}
			return sound.events(ctx, by)
		}
	}},
	"never stops": {"what_was_appended_is_read_at_once,_in_order", func(f *flawed, _ flawed) {
		f.run = func(context.Context) error { select {} }
	}},
}

// TestSuite runs the suite on the journal in memory, with the defect of this process.
func TestSuite(t *testing.T) {
	limit := 10 * time.Second
	if conformance.Defect() != "" { // it fails anyway: no need to wait
		limit = time.Second
	}
	journaltest.RunWithin(t, func(*testing.T) journal.Journal {
		m := journal.NewMemory(200)
		f := &flawed{Journal: m, appends: m.Append, events: m.Events, notices: m.Notices, run: m.Run}
		if conformance.Defect() == "keeps nothing" {
			f.appends = func(nstance.Event) {}
		}
		if d, ok := defects[conformance.Defect()]; ok && strings.Contains(t.Name(), "TestSuite") {
			d.infect(f, *f)
		}
		return f
	}, limit)
}

func TestSuiteFindsDefects(t *testing.T) {
	for name, d := range defects {
		t.Run(name, func(t *testing.T) {
			subtests := "/^(smoke|" + strings.NewReplacer("'", ".").Replace(d.subtest) + ")$"
			if name == "never stops" { // the smoke test finds it too
				d.subtest = "smoke"
			}
			conformance.RequireFailure(t, "TestSuite", subtests, name, "--- FAIL: TestSuite/"+d.subtest)
		})
	}
	conformance.RequireSmokeFailure(t, "TestSuite", "keeps nothing", "the event that was appended was due, with a number")
}

// The test of a journal is this long.
func ExampleRun() {
	_ = func(t *testing.T) {
		journaltest.Run(t, func(*testing.T) journal.Journal { return journal.NewMemory(200) })
	}
	fmt.Println("see the names of its subtests with go test -v")
	// Output: see the names of its subtests with go test -v
}
