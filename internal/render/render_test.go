package render_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"text/template"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/render"
)

func rendered(ctx context.Context, text string, data any) (string, error) {
	t, err := render.Parse(text)
	if err != nil {
		return "", err
	}
	out, err := t.Render(ctx, data)
	return string(out), err
}

var data = map[string]any{
	"Vars": map[string]string{"a": "x", "b": "it's \"$HOME\"\n"}, "N": 3, "ID": nstance.InstanceID("web00000000000000000000000000"),
	"Long": strings.Repeat("y", 200<<10),
}

func TestRender(t *testing.T) {
	for text, want := range map[string]string{
		"plain":                                                "plain",
		`{{range 3}}{{.}}{{else}}none{{end}}`:                  "012",
		`{{range $k, $v := .Vars}}{{$k}}{{end}}`:               "ab",
		`{{range 5}}{{if eq . 2}}{{break}}{{end}}{{.}}{{end}}`: "01",
		`{{define "t"}}<{{.}}>{{end}}{{template "t" .N}}{{template "t" .Vars.a}}`:    "<3><x>",
		`{{block "b" .}}{{.N}}{{end}}`:                                               "3",
		`{{with .Vars}}{{.a}}{{end}}`:                                                "x",
		`{{quote .Vars.b}}`:                                                          `'it'\''s "$HOME"` + "\n'",
		`{{quote .N}} {{quote .ID}}`:                                                 "'3' 'web00000000000000000000000000'",
		`{{json .Vars.b}}`:                                                           `"it's \"$HOME\"\n"`,
		`{{.Vars.a | base64}}`:                                                       "eA==",
		`{{printf "%5d|%-5s|%q|%%|%.2f|%v" .N "ab" .Vars.a 1.5 .Vars}}`:              "    3|ab   |\"x\"|%|1.50|map[a:x b:it's \"$HOME\"\n]",
		`{{printf "%d"}} {{printf "x" 1}} {{printf "100%%"}} {{printf "%é" 1}}`:      "%!d(MISSING) x%!(EXTRA int=1) 100% %!é(int=1)",
		`{{print 1 2 "a" "b"}}{{println 1}}{{html "<"}}{{js "'"}}{{urlquery "a b"}}`: "1 2a b1\n&lt;\\'a+b",
	} {
		got, err := rendered(t.Context(), text, data)
		require.NoError(t, err, text)
		if text == `{{print 1 2 "a" "b"}}{{println 1}}{{html "<"}}{{js "'"}}{{urlquery "a b"}}` {
			want = fmt.Sprint(1, 2, "a", "b") + "1\n&lt;\\'a+b"
		}
		require.Equal(t, want, got, text)
	}
}

func TestBudgets(t *testing.T) {
	for name, text := range map[string]string{
		"empty range":          `{{range 150000000}}{{end}}`,
		"ranges within":        `{{range 10000}}{{range 10000}}{{end}}{{end}}`,
		"long body":            `{{range 5000}}` + strings.Repeat("{{if true}}{{end}}", 50) + `{{end}}`,
		"long body of an else": `{{range 5000}}{{if false}}{{else}}` + strings.Repeat("{{if true}}{{end}}", 50) + `{{end}}{{end}}`,
		"range of a define":    `{{define "t"}}{{range 150000000}}{{end}}{{end}}{{template "t"}}`,
		"recursion":            `{{define "t"}}{{template "t"}}{{end}}{{template "t"}}`,
		"doubling templates":   `{{define "a"}}{{end}}` + doubling(40) + `{{template "t40"}}`,
		"output":               `{{range 400}}{{$.Long}}{{end}}`,
		"doubling":             `{{$x := "xx"}}{{range 64}}{{$x = printf "%s%s" $x $x}}{{end}}`,
		"doubling by print":    `{{$x := "xx"}}{{range 64}}{{$x = print $x $x}}{{end}}`,
		"doubling by quote":    `{{$x := "'"}}{{range 64}}{{$x = quote $x}}{{end}}`,
		"repeated argument":    `{{$x := .Long}}{{print` + strings.Repeat(" $x", 1000) + `}}`,
		"repeated in html":     `{{$x := .Long}}{{html` + strings.Repeat(" $x", 1000) + `}}`,
		"too many built":       `{{range 1000}}{{$x := base64 $.Long}}{{end}}`,
	} {
		t.Run(name, func(t *testing.T) {
			_, err := rendered(t.Context(), text, data)
			require.ErrorIs(t, err, render.ErrLimit)
			require.ErrorIs(t, err, nstance.Invalid)
		})
	}
}

// doubling returns templates of which each calls the one before twice.
func doubling(n int) string {
	var b strings.Builder
	b.WriteString(`{{define "t0"}}{{end}}`)
	for i := range n {
		fmt.Fprintf(&b, `{{define "t%d"}}{{template "t%d"}}{{template "t%d"}}{{end}}`, i+1, i, i)
	}
	return b.String()
}

func TestWidths(t *testing.T) {
	for _, text := range []string{
		`{{printf "%1000000d" 1}}`, `{{printf "%.1000000d" 1}}`, `{{printf "%*d" 1000000 1}}`, `{{printf "%[1]s%[1]s" "x"}}`,
		`{{printf "%200v" .Vars}}`, `{{printf "%00000000000000000000099999999999999999999d" 1}}`,
	} {
		_, err := rendered(t.Context(), text, data)
		require.ErrorContains(t, err, "printf", text)
	}
}

func TestMethodsTakeNoArguments(t *testing.T) {
	for _, text := range []string{`{{.ID.Time.Format "1"}}`, `{{"1" | .ID.Time.Format}}`, `{{range 2}}{{($.ID.Time).Format "1"}}{{end}}`} {
		_, err := render.Parse(text)
		require.ErrorContains(t, err, "takes no arguments", text)
	}
	_, err := rendered(t.Context(), `{{.ID.Time}}`, data)
	require.NoError(t, err)
}

// TestMethodResults: methods with arguments are as in text/template, and within the budget.
func TestMethodResults(t *testing.T) {
	render := func(text string) (string, error) {
		parsed, err := render.ParseWithMethods(text)
		if err != nil {
			return "", err
		}
		out, err := parsed.Render(t.Context(), map[string]any{"At": time.Date(2026, 11, 22, 15, 4, 5, 0, time.UTC), "Long": strings.Repeat("2", 200<<10)})
		return string(out), err
	}
	for text, want := range map[string]string{
		`{{.At.Format "15:04"}}`:                                                      "15:04",
		`{{((.At.Add 60000000000).Sub .At).Seconds}}`:                                 "60",
		`{{range 2}}{{$t := $.At}}{{$t.Format "02" | printf "%s,"}}{{end}}`:           "22,22,",
		`{{if .At.Equal .At}}{{with .At.AddDate 0 1 0}}{{.Month}}{{end}}{{end}}`:      "December",
		`{{define "t"}}{{.Format "2006"}}{{end}}{{template "t" (.At.AddDate 1 0 0)}}`: "2027",
	} {
		got, err := render(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{`{{$x := "2"}}{{range 64}}{{$x = $.At.Format $x}}{{end}}`, `{{.At.Format (.At.Format .Long)}}`, `{{range 50}}{{$x := $.At.AppendFormat nil $.Long}}{{end}}`} {
		_, err := render(text)
		require.ErrorIs(t, err, nstance.Invalid, text)
	}
	_, err := render(`{{"15:04" | .At.Format}}`)
	require.ErrorContains(t, err, "from a pipeline")
	_, err = render(`{{.At.Nothing 1}}`)
	require.ErrorContains(t, err, `<.At.Nothing>: can't evaluate field Nothing`)
}

func TestCountersAreNoFunctions(t *testing.T) {
	for _, text := range []string{`{{_step -1000}}`, `{{_leave}}`, `{{_enter 1}}`, `{{_method 1}}`} {
		_, err := render.Parse(text)
		require.ErrorContains(t, err, "not defined", text)
	}
}

func TestEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := rendered(ctx, `{{range 10}}{{end}}`, data)
	require.ErrorIs(t, err, nstance.Unavailable)
	require.ErrorIs(t, err, context.Canceled)
}

// FuzzRender renders what text/template renders, or fails for one of the budgets.
func FuzzRender(f *testing.F) {
	for _, seed := range []string{
		`{{range 3}}{{.}}{{end}}`, `{{define "t"}}{{.}}{{end}}{{template "t" .}}`, `{{printf "%5.2f %v" 1.5 .Vars}}`, `{{quote .Vars.b}}`,
		`{{with $x := .N}}{{$x}}{{else}}no{{end}}`, `{{range $i, $v := .Vars}}{{continue}}{{end}}`, `{{slice .Long 1 5 | html}}`,
		`{{if and .N (lt .N 4)}}{{index .Vars "a"}}{{end}}`, `{{range 99999999}}{{end}}`, `{{printf "%999d" 1}}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 4096 {
			return
		}
		got, err := rendered(t.Context(), text, data)
		if err != nil {
			return
		}
		plain, err := template.New("text").Funcs(template.FuncMap{
			"json": func(any) string { return "" }, "base64": func(string) string { return "" }, "quote": func(any) string { return "" },
		}).Option("missingkey=error").Parse(text)
		if err != nil {
			t.Fatalf("text/template does not parse it: %v", err)
		}
		if strings.Contains(text, "json") || strings.Contains(text, "base64") || strings.Contains(text, "quote") || strings.Contains(text, "printf") {
			return
		}
		var want strings.Builder
		if err := plain.Execute(&bounded{Writer: &want}, data); err == nil && want.String() != got {
			t.Fatalf("got %q, want %q", got, want.String())
		}
	})
}

type bounded struct {
	io.Writer
	n int
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.n += len(p); b.n > render.MaxOutput {
		return 0, errors.New("too long")
	}
	return b.Writer.Write(p)
}

// TestDepthIsGivenBack: what is bounded is how deep templates are nested, not how many are
// called.
func TestDepthIsGivenBack(t *testing.T) {
	nested := func(n int) string { // calls a template that calls another one, and so on
		var b strings.Builder
		b.WriteString(`{{define "t0"}}x{{end}}`)
		for i := range n - 1 {
			fmt.Fprintf(&b, `{{define "t%d"}}{{template "t%d"}}{{end}}`, i+1, i)
		}
		return b.String()
	}
	for name, text := range map[string]string{
		"one after another":       nested(1) + strings.Repeat(`{{template "t0"}}`, 1000),
		"in a range":              nested(1) + `{{range 1000}}{{template "t0"}}{{end}}`,
		"several levels":          nested(5) + `{{range 200}}{{template "t4"}}{{end}}`,
		"as deep as may be":       nested(64) + `{{range 5}}{{template "t63"}}{{end}}`,
		"left by a break":         `{{define "t0"}}{{range 3}}{{break}}{{end}}{{end}}{{range 1000}}{{template "t0"}}{{end}}`,
		"within a condition":      `{{define "t0"}}{{if true}}{{else}}{{end}}{{end}}{{range 1000}}{{with 1}}{{template "t0"}}{{end}}{{end}}`,
		"a block where it stands": `{{range 1000}}{{block "t0" .}}{{end}}{{end}}`,
	} {
		_, err := rendered(t.Context(), text, data)
		require.NoError(t, err, name)
	}
	_, err := rendered(t.Context(), nested(65)+`{{template "t64"}}`, data)
	require.ErrorIs(t, err, render.ErrLimit, "and that is bounded")
}

// TestQuoteRefuses: what no word of a shell can say.
func TestQuoteRefuses(t *testing.T) {
	q, err := render.Quote("it's")
	require.NoError(t, err)
	require.Equal(t, `'it'\''s'`, q)
	_, err = render.Quote("a\x00b")
	require.ErrorIs(t, err, nstance.Invalid)
	for _, data := range []any{map[string]any{"v": []string{"a"}}, map[string]any{"v": map[string]string{}}, map[string]any{"v": "\x00"}} {
		_, err := rendered(t.Context(), `{{quote .v}}`, data)
		require.Error(t, err)
	}
}
