package confighash

import (
	"bytes"
	"encoding/json"
	"io"
	"strconv"
	"strings"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
)

// Canonical returns the one spelling of args that all its spellings share: keys
// sorted, no space, characters escaped only where JSON demands it, numbers as
// the shortest decimal of exactly the same value (with an exponent only from
// 1e21 up and below 1e-6). Empty, null and {} are all no arguments: nil. A key
// that is given twice counts as it was given last. Fails with Invalid when args
// is not one JSON object.
func Canonical(args json.RawMessage) (json.RawMessage, error) {
	if len(bytes.TrimSpace(args)) == 0 {
		return nil, nil
	}
	d := json.NewDecoder(bytes.NewReader(args))
	d.UseNumber() // a float64 would lose digits
	var v map[string]any
	if err := d.Decode(&v); err != nil {
		return nil, nstance.FieldError("args", "write a JSON object", "%s", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, nstance.FieldError("args", "write one JSON object", "something follows the object")
	}
	if len(v) == 0 {
		return nil, nil
	}
	if _, err := respell(v); err != nil {
		return nil, err
	}
	return encode(v)
}

// respell replaces, in place, every number in v.
func respell(v any) (any, error) {
	var err error
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			if v[k], err = respell(e); err != nil {
				return nil, err
			}
		}
	case []any:
		for i, e := range v {
			if v[i], err = respell(e); err != nil {
				return nil, err
			}
		}
	case json.Number:
		return number(string(v))
	}
	return v, nil
}

// maxExponent keeps the arithmetic below far from overflow.
const maxExponent = 1_000_000

// number returns the canonical spelling of a JSON number.
func number(s string) (json.Number, error) {
	mantissa, exponent, _ := strings.Cut(strings.ToLower(s), "e")
	e := 0
	if exponent != "" {
		var err error
		if e, err = strconv.Atoi(exponent); err != nil || max(e, -e) > maxExponent {
			return "", nstance.FieldError("args", "use a number that the provider can hold", "number %s has too large an exponent", clip.Quote(s))
		}
	}
	unsigned := strings.TrimPrefix(mantissa, "-")
	whole, frac, _ := strings.Cut(unsigned, ".")
	digits := strings.TrimLeft(whole+frac, "0")
	point := len(digits) + e - len(frac) // the value is 0.digits times ten to this
	digits = strings.TrimRight(digits, "0")
	if digits == "" {
		return "0", nil
	}
	return json.Number(mantissa[:len(mantissa)-len(unsigned)] + layout(digits, point)), nil
}

// layout writes 0.digits times ten to the power of point.
func layout(digits string, point int) string {
	n := len(digits)
	switch {
	case point > 21 || point <= -6:
		s := digits[:1]
		if n > 1 {
			s += "." + digits[1:]
		}
		return s + "e" + strconv.Itoa(point-1)
	case point >= n:
		return digits + strings.Repeat("0", point-n)
	case point > 0:
		return digits[:point] + "." + digits[point:]
	}
	return "0." + strings.Repeat("0", -point) + digits
}
