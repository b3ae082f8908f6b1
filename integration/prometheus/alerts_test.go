package prometheus_test

import (
	"context"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

const (
	step   = 15 * time.Second // between scrapes, and between evaluations
	change = 2 * time.Hour    // when a scenario begins; before, all is well
	length = 30 * time.Hour
)

// A rule is an alert.
type rule struct {
	Alert  string            `json:"alert"`
	Expr   string            `json:"expr"`
	For    string            `json:"for"`
	Labels map[string]string `json:"labels"`
}

func rules(t *testing.T) (all []rule) {
	data, err := os.ReadFile("../../deploy/prometheus-alerts.yaml")
	require.NoError(t, err)
	var file struct {
		Groups []struct {
			Rules []rule `json:"rules"`
		} `json:"groups"`
	}
	require.NoError(t, yaml.Unmarshal(data, &file))
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	require.NotEmpty(t, all)
	return all
}

// series is the value of a series at each time, false where it is absent.
type series func(at time.Duration) (float64, bool)

func always(v float64) series { return func(time.Duration) (float64, bool) { return v, true } }

// then is v, and from the change on w.
func then(v, w float64) series {
	return func(at time.Duration) (float64, bool) {
		if at < change {
			return v, true
		}
		return w, true
	}
}

// ends is v until the change.
func ends(v float64) series {
	return func(at time.Duration) (float64, bool) { return v, at < change }
}

// counts grows by so much a second, and from the change on by another.
func counts(before, after float64) series {
	return func(at time.Duration) (float64, bool) {
		return before*min(at, change).Seconds() + after*max(0, at-change).Seconds(), true
	}
}

// healthy are two shards, of which s1 has two servers.
func healthy() map[string]series {
	all := map[string]series{}
	for _, server := range []struct{ instance, shard string }{{"a", "s1"}, {"b", "s1"}, {"c", "s2"}} {
		on := `instance="` + server.instance + `"`
		all[`nstance_server_info{`+on+`,cluster="prod",shard="`+server.shard+`",version="0.3.0"}`] = always(1)
		all[`nstance_attention{`+on+`,kind="garbage"}`] = always(0)
		all[`nstance_attention{`+on+`,kind="alarm"}`] = always(0)
		all[`nstance_attention{`+on+`,kind="frozen"}`] = always(0)
		all[`nstance_attention{`+on+`,kind="orphan"}`] = always(0)
		all[`nstance_leading{`+on+`}`] = always(0)
		if server.instance == "b" {
			continue
		}
		all[`nstance_leading{`+on+`}`] = always(1)
		all[`nstance_lease_age_seconds{`+on+`}`] = always(0.5)
		all[`nstance_lease_ttl_seconds{`+on+`}`] = always(6)
		for _, state := range []string{"wanted", "ready"} {
			all[`nstance_group_members{`+on+`,tenant="default",group="web",state="`+state+`"}`] = always(3)
		}
		for _, le := range []string{"0.1", "1", "10", "+Inf"} {
			all[`nstance_replacement_requested_seconds_bucket{`+on+`,le="`+le+`"}`] = counts(0.1, 0.1)
		}
		all[`nstance_drains_total{`+on+`,outcome="drained"}`] = counts(0.1, 0.1)
		all[`nstance_drains_total{`+on+`,outcome="cut_short"}`] = counts(0, 0)
		all[`nstance_provider_call_seconds_count{`+on+`,op="create",code="ok"}`] = counts(1, 1)
		all[`nstance_provider_call_seconds_count{`+on+`,op="create",code="denied"}`] = counts(0, 0)
	}
	return all
}

// TestAlerts: each alert fires when what it is for has lasted, for its cluster and shard, and
// no other fires with it.
func TestAlerts(t *testing.T) {
	ofServer := func(instance string) func(string, series) (series, bool) {
		return func(name string, _ series) (series, bool) {
			return nil, strings.Contains(name, `instance="`+instance+`"`)
		}
	}
	gone := func(instances ...string) func(map[string]series) {
		return func(all map[string]series) {
			for name, s := range all {
				for _, i := range instances {
					if _, its := ofServer(i)(name, s); its {
						v, _ := s(0)
						all[name] = ends(v)
					}
				}
			}
		}
	}
	set := func(changed map[string]series) func(map[string]series) {
		return func(all map[string]series) {
			for name, s := range changed {
				require.Contains(t, all, name)
				all[name] = s
			}
		}
	}
	const s1, s2 = `cluster="prod",shard="s1"`, `cluster="prod",shard="s2"`
	tested := map[string]bool{}
	for _, c := range []struct {
		name  string
		world func(map[string]series)
		fires map[string]string // alert → labels
	}{
		{"all is well", set(nil), nil},
		{"one server of two is gone", gone("b"), nil},
		{"both servers of a shard are gone", gone("a", "b"), map[string]string{"NstanceServersGone": s1}},
		{"every server is gone", gone("a", "b", "c"), map[string]string{"NstanceServersGone": s1 + ";" + s2, "NstanceNothingScraped": ""}},
		{"nobody leads", set(map[string]series{`nstance_leading{instance="c"}`: then(1, 0)}), map[string]string{"NstanceNobodyLeads": s2}},
		{"a failover", set(map[string]series{`nstance_leading{instance="a"}`: then(1, 0), `nstance_leading{instance="b"}`: then(0, 1)}), nil},
		{"late renewals", set(map[string]series{`nstance_lease_age_seconds{instance="a"}`: then(0.5, 5)}), map[string]string{"NstanceLeaseAges": s1}},
		{"a long ttl", set(map[string]series{`nstance_lease_age_seconds{instance="a"}`: then(0.5, 20), `nstance_lease_ttl_seconds{instance="a"}`: always(60)}), nil},
		{"a group is short", set(map[string]series{`nstance_group_members{instance="a",tenant="default",group="web",state="ready"}`: then(3, 2)}),
			map[string]string{"NstanceMembersMissing": s1 + `,group="web",tenant="default"`}},
		{"a group is short, which is acknowledged", func(all map[string]series) {
			for _, group := range []string{"web", "api"} {
				for state, n := range map[string]series{"wanted": always(3), "ready": then(3, 2)} {
					all[`nstance_group_members{instance="a",tenant="default",group="`+group+`",state="`+state+`"}`] = n
				}
			}
			all[`nstance_attention_acknowledged{instance="a",kind="short",tenant="default",group="web"}`] = always(1)
			all[`nstance_attention_acknowledged{instance="a",kind="backoff",tenant="default",group="api"}`] = always(1)
		}, map[string]string{"NstanceMembersMissing": s1 + `,group="api",tenant="default"`}},
		{"slow replacements", set(map[string]series{
			`nstance_replacement_requested_seconds_bucket{instance="a",le="0.1"}`: counts(0.1, 0), `nstance_replacement_requested_seconds_bucket{instance="a",le="1"}`: counts(0.1, 0),
		}), map[string]string{"NstanceReplacementsSlow": s1}},
		{"drains cut short", set(map[string]series{`nstance_drains_total{instance="a",outcome="cut_short"}`: counts(0, 0.05)}), map[string]string{"NstanceDrainsCutShort": s1}},
		{"orphans", set(map[string]series{`nstance_attention{instance="c",kind="orphan"}`: then(0, 2)}), map[string]string{"NstanceOrphans": s2}},
		{"attention", set(map[string]series{`nstance_attention{instance="b",kind="garbage"}`: then(0, 1)}), map[string]string{"NstanceNeedsAttention": s1 + `,kind="garbage"`}},
		{"an alarm", set(map[string]series{`nstance_attention{instance="a",kind="alarm"}`: then(0, 1)}), map[string]string{"NstanceAlarm": s1}},
		{"frozen for a day", set(map[string]series{`nstance_attention{instance="a",kind="frozen"}`: then(0, 1)}), map[string]string{"NstanceStoppedByOperator": s1 + `,kind="frozen"`}},
		{"the provider denies", set(map[string]series{`nstance_provider_call_seconds_count{instance="a",op="create",code="denied"}`: counts(0, 0.5)}),
			map[string]string{"NstanceProviderFails": s1 + `,op="create"`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			all := healthy()
			c.world(all)
			fired := map[string]string{}
			for _, r := range rules(t) {
				if found := fire(t, r, all); found != nil {
					slices.Sort(found)
					fired[r.Alert] = strings.Join(found, ";")
				}
			}
			want := map[string]string{}
			for alert, names := range c.fires {
				tested[alert] = true
				var sorted []string
				for one := range strings.SplitSeq(names, ";") {
					parts := strings.Split(one, ",")
					slices.Sort(parts)
					sorted = append(sorted, strings.Join(parts, ","))
				}
				want[alert] = strings.Join(sorted, ";")
			}
			require.Equal(t, want, fired)
		})
	}
	for _, r := range rules(t) {
		require.True(t, tested[r.Alert], "no scenario has %s fire", r.Alert)
	}
}

// fire returns the labels of what an alert fires for, after the change, or before it.
func fire(t *testing.T, r rule, all map[string]series) (found []string) {
	t.Helper()
	wait := time.Duration(0)
	if r.For != "" {
		d, err := model.ParseDuration(r.For)
		require.NoError(t, err)
		wait = time.Duration(d)
	}
	end := change + 2*time.Hour
	if wait > time.Hour {
		end = length
	}
	engine := promql.NewEngine(promql.EngineOpts{Logger: slog.New(slog.DiscardHandler), MaxSamples: 50_000_000, Timeout: time.Minute, LookbackDelta: 5 * time.Minute})
	defer engine.Close()
	every := step
	if wait > time.Hour {
		every = 5 * time.Minute
	}
	q, err := engine.NewRangeQuery(t.Context(), memory(all), nil, r.Expr, at(0), at(end), every)
	require.NoError(t, err, r.Expr)
	defer q.Close()
	result := q.Exec(t.Context())
	require.NoError(t, result.Err, r.Expr)
	matrix, err := result.Matrix()
	require.NoError(t, err)
	for _, s := range matrix {
		since := int64(-1) // of points without a gap
		last := int64(0)
		for _, p := range s.Floats {
			if since < 0 || p.T-last > every.Milliseconds() {
				since = p.T
			}
			if last = p.T; time.Duration(p.T-since)*time.Millisecond < wait {
				continue
			}
			require.GreaterOrEqual(t, time.Duration(p.T-epoch)*time.Millisecond, change, "%s fires while all is well", r.Alert)
			var names []string
			s.Metric.Range(func(l labels.Label) { names = append(names, l.Name+`="`+l.Value+`"`) })
			slices.Sort(names)
			found = append(found, strings.Join(names, ","))
			break
		}
	}
	return found
}

// epoch is when the first scrape is, in milliseconds.
const epoch = int64(1_700_000_000_000)

func at(d time.Duration) time.Time { return time.UnixMilli(epoch + d.Milliseconds()) }

// memory is series that are scraped all the time.
func memory(all map[string]series) storage.Queryable {
	return storage.QueryableFunc(func(from, to int64) (storage.Querier, error) {
		return &querier{all: all, from: from, to: to}, nil
	})
}

type querier struct {
	storage.LabelQuerier
	all      map[string]series
	from, to int64
}

func (q *querier) Close() error { return nil }

func (q *querier) Select(_ context.Context, _ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	set := &seriesSet{}
	for _, text := range slices.Sorted(maps.Keys(q.all)) {
		name, err := parser.NewParser(parser.Options{}).ParseMetric(text)
		if err != nil {
			return storage.ErrSeriesSet(err)
		}
		if slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(name.Get(m.Name)) }) {
			continue
		}
		var samples []chunks.Sample
		for t := max(q.from, epoch); t <= q.to; t += step.Milliseconds() {
			if v, ok := q.all[text](time.Duration(t-epoch) * time.Millisecond); ok {
				samples = append(samples, sample{t, v})
			}
		}
		if len(samples) > 0 {
			set.all = append(set.all, storage.NewListSeries(name, samples))
		}
	}
	return set
}

type seriesSet struct {
	all  []storage.Series
	next int
}

func (s *seriesSet) Next() bool                        { s.next++; return s.next <= len(s.all) }
func (s *seriesSet) At() storage.Series                { return s.all[s.next-1] }
func (s *seriesSet) Err() error                        { return nil }
func (s *seriesSet) Warnings() annotations.Annotations { return nil }

type sample struct {
	t int64
	v float64
}

func (s sample) ST() int64                     { return 0 }
func (s sample) T() int64                      { return s.t }
func (s sample) F() float64                    { return s.v }
func (s sample) H() *histogram.Histogram       { return nil }
func (s sample) FH() *histogram.FloatHistogram { return nil }
func (s sample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s sample) Copy() chunks.Sample           { return s }
