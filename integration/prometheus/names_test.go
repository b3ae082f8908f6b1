package prometheus_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/stretchr/testify/require"
)

// checkNames fails if a query names a metric that is not known, or a label that its metric,
// or what a part of the query results in, does not have.
func checkNames(query string, known map[string][]string) error {
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(query)
	if err != nil {
		return fmt.Errorf("%s: %w", query, err)
	}
	c := checker{known: known}
	c.labels(expr)
	if c.err != nil {
		return fmt.Errorf("%s: %w", query, c.err)
	}
	return nil
}

type checker struct {
	known map[string][]string
	err   error // the first one
}

func (c *checker) require(has []string, wanted ...string) {
	for _, name := range wanted {
		if c.err == nil && !slices.Contains(has, name) {
			c.err = fmt.Errorf("there is no label %s, but %s", name, has)
		}
	}
}

// labels checks an expression and returns the labels of its result.
func (c *checker) labels(expr parser.Expr) []string {
	switch e := expr.(type) {
	case *parser.VectorSelector:
		has, ok := c.known[e.Name]
		if !ok && c.err == nil {
			c.err = fmt.Errorf("there is no metric %s", e.Name)
		}
		for _, m := range e.LabelMatchers {
			if m.Name != model.MetricNameLabel {
				c.require(has, m.Name)
			}
		}
		return has
	case *parser.MatrixSelector:
		return c.labels(e.VectorSelector)
	case *parser.ParenExpr:
		return c.labels(e.Expr)
	case *parser.AggregateExpr:
		has := c.labels(e.Expr)
		c.require(has, e.Grouping...)
		if e.Without {
			return without(has, e.Grouping)
		}
		return e.Grouping
	case *parser.Call:
		return c.call(e)
	case *parser.BinaryExpr:
		return c.binary(e)
	case *parser.NumberLiteral, *parser.StringLiteral:
		return nil
	default:
		if c.err == nil {
			c.err = fmt.Errorf("this test does not know %T", expr)
		}
		return nil
	}
}

func (c *checker) call(e *parser.Call) (has []string) {
	for _, arg := range e.Args {
		if of := c.labels(arg); of != nil {
			has = of
		}
	}
	if e.Func.Name == "histogram_quantile" {
		c.require(has, "le")
		return without(has, []string{"le"})
	}
	return has
}

func (c *checker) binary(e *parser.BinaryExpr) []string {
	left, right := c.labels(e.LHS), c.labels(e.RHS)
	m := e.VectorMatching
	if left == nil || right == nil || m == nil { // one of them is a number
		return append(left, right...)
	}
	if m.On || len(m.MatchingLabels) > 0 {
		c.require(left, m.MatchingLabels...)
		c.require(right, m.MatchingLabels...)
	}
	switch {
	case m.Card == parser.CardManyToOne:
		c.require(right, m.Include...)
		return append(slices.Clone(left), m.Include...)
	case m.Card == parser.CardOneToMany:
		c.require(left, m.Include...)
		return append(slices.Clone(right), m.Include...)
	case m.Card == parser.CardOneToOne && m.On:
		return m.MatchingLabels
	case m.Card == parser.CardOneToOne:
		return without(left, m.MatchingLabels)
	}
	return left // and, or, unless
}

func without(all, some []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(name string) bool { return slices.Contains(some, name) })
}

func TestCheckNames(t *testing.T) {
	known := map[string][]string{"up": {"instance", "shard"}, "members": {"instance", "state"}, "calls_bucket": {"instance", "le"}}
	for _, good := range []string{
		`up`, `up{shard="a"} > 1`, `sum by (state) (members)`, `sum by (shard) (members * on (instance) group_left (shard) up)`,
		`histogram_quantile(0.9, sum by (le) (rate(calls_bucket[5m])))`, `members{state="a"} - ignoring (state) members{state="b"}`, `absent(up)`,
		`up unless on (instance) members`, `sum without (shard) (up) / sum by (instance) (up)`, `last_over_time(up[1d])`,
	} {
		require.NoError(t, checkNames(good, known))
	}
	for _, bad := range []string{
		`upp`, `up{shrad="a"}`, `sum by (group) (members)`, `sum by (shard) (members)`, `members * on (shard) up`, `members * on (instance) group_left (group) up`,
		`histogram_quantile(0.9, sum by (instance) (rate(calls_bucket[5m])))`, `histogram_quantile(0.9, rate(up[5m]))`, `up - ignoring (state) up`, `sum without (state) (up)`,
		`up unless on (state) members`, `rate(upp[5m])`, `sum(`, `sum by (shard) (sum by (instance) (up))`,
	} {
		require.Error(t, checkNames(bad, known), bad)
	}
}
