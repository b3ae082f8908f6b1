package confighash_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strings"
	"testing"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/confighash"
	"github.com/stretchr/testify/require"
)

func canonical(t testing.TB, args string) string {
	t.Helper()
	b, err := confighash.Canonical(json.RawMessage(args))
	require.NoError(t, err)
	return string(b)
}

func TestCanonicalNumbers(t *testing.T) {
	for in, want := range map[string]string{
		"1": "1", "1.0": "1", "10e-1": "1", "1E0": "1", "0.1e+1": "1", "-1.50": "-1.5",
		"0": "0", "-0": "0", "0.000e9": "0", "40": "40", "4e1": "40",
		"9223372036854775807":    "9223372036854775807",
		"0.1":                    "0.1",
		"0.10000000000000000001": "0.10000000000000000001",
		"100000000000000000000":  "100000000000000000000",
		"1e21":                   "1e21",
		"1234e20":                "1.234e23",
		"0.000001":               "0.000001",
		"0.0000001":              "1e-7",
		"12.5e-9":                "1.25e-8",
	} {
		t.Run(in, func(t *testing.T) {
			require.Equal(t, `{"n":`+want+`}`, canonical(t, `{"n":`+in+`}`))
		})
	}
}

func TestCanonicalObjects(t *testing.T) {
	for in, want := range map[string]string{
		"":                        "",
		" null ":                  "",
		"{ }":                     "",
		`{"b":1,"a":2}`:           `{"a":2,"b":1}`,
		`{"a":null}`:              `{"a":null}`,
		`{"a":1,"a":2}`:           `{"a":2}`,
		"{\"a\" :\n[ 1.0 , {} ]}": `{"a":[1,{}]}`,
		`{"a":"\u003c\/\u00e9"}`:  `{"a":"</é"}`,
	} {
		t.Run(in, func(t *testing.T) { require.Equal(t, want, canonical(t, in)) })
	}
}

// FuzzCanonical: no respelling of the same arguments changes the canonical form, and the
// canonical form is stable.
func FuzzCanonical(f *testing.F) {
	for _, seed := range []string{
		``, `{}`, `{"b":[1,2.50,-3e-7,{"d":null,"c":true}],"a":{"x":"<\u00e9>"}}`, `{"n":-0.0,"m":1e400}`, `[`, `{"":{"":0}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, args []byte) {
		want, err := confighash.Canonical(args)
		if err != nil || want == nil {
			return
		}
		again, err := confighash.Canonical(want)
		require.NoError(t, err)
		require.Equal(t, string(want), string(again))

		d := json.NewDecoder(bytes.NewReader(args))
		d.UseNumber()
		var v map[string]any
		require.NoError(t, d.Decode(&v))
		var b strings.Builder
		scramble(&b, v)
		require.Equal(t, string(want), canonical(t, b.String()))

		h1, err := confighash.Infra(nstance.Definition{Args: args})
		require.NoError(t, err)
		h2, err := confighash.Infra(nstance.Definition{Args: json.RawMessage(b.String())})
		require.NoError(t, err)
		require.Equal(t, h1, h2)
	})
}

// scramble writes v with its keys in reverse order, extra white space, escaped strings
// and numbers in another notation.
func scramble(b *strings.Builder, v any) {
	switch v := v.(type) {
	case map[string]any:
		b.WriteString("\n{\t")
		for i, k := range slices.Backward(slices.Sorted(maps.Keys(v))) {
			scramble(b, k)
			b.WriteString(" :\r\n")
			scramble(b, v[k])
			if i > 0 {
				b.WriteString(" ,")
			}
		}
		b.WriteString("} ")
	case []any:
		b.WriteString("[ ")
		for i, e := range v {
			if i > 0 {
				b.WriteString(",\n")
			}
			scramble(b, e)
		}
		b.WriteString("\t]")
	case string:
		b.WriteByte('"')
		for _, r := range v {
			if r > 0xffff {
				b.WriteRune(r)
				continue
			}
			fmt.Fprintf(b, `\u%04X`, r)
		}
		b.WriteByte('"')
	case json.Number:
		s := strings.ToUpper(string(v))
		if !strings.Contains(s, "E") {
			s += "E+00"
		}
		b.WriteString(s)
	default:
		fmt.Fprint(b, map[any]string{nil: "null", true: "true", false: "false"}[v])
	}
}

// FuzzNumber: a canonical number has exactly the same value.
func FuzzNumber(f *testing.F) {
	for _, seed := range []string{"0", "-12.50", "1e21", "123e-9", "0.0000001", "99999999999999999999999"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if _, exp, ok := strings.Cut(strings.ToLower(s), "e"); ok && len(exp) > 3 {
			return // big.Rat would take too long
		}
		if !json.Valid([]byte(s)) || strings.Trim(s, "+-.0123456789eE") != "" {
			return
		}
		got := strings.TrimSuffix(strings.TrimPrefix(canonical(t, `{"n":`+s+`}`), `{"n":`), "}")
		want, ok := new(big.Rat).SetString(s)
		require.True(t, ok)
		have, ok := new(big.Rat).SetString(got)
		require.True(t, ok, got)
		require.Zero(t, want.Cmp(have), "%s became %s", s, got)
	})
}
