package validate

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
)

// A TagRule is what the tags required, enum, min and max say of a field of settings.
type TagRule struct {
	Required bool
	Words    []string // the permitted ones; none: any
	Min, Max string   // as the tag spells them; empty: none
}

// RuleOf reads a tag.
func RuleOf(tag reflect.StructTag) TagRule {
	r := TagRule{Required: tag.Get("required") != "", Min: tag.Get("min"), Max: tag.Get("max")}
	if words := tag.Get("enum"); words != "" {
		r.Words = strings.Split(words, "|")
	}
	return r
}

// Permits reports whether n is from Min to Max.
func (r TagRule) Permits(n float64) bool {
	least, err := strconv.ParseFloat(r.Min, 64)
	if err == nil && n < least {
		return false
	}
	most, err := strconv.ParseFloat(r.Max, 64)
	return err != nil || n <= most
}

// RangeRemedy says which numbers are permitted.
func (r TagRule) RangeRemedy() string {
	switch {
	case r.Max == "":
		return "use at least " + r.Min
	case r.Min == "":
		return "use at most " + r.Max
	}
	return fmt.Sprintf("use %s to %s", r.Min, r.Max)
}
