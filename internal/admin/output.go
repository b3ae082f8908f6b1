package admin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/wire"
)

// The forms of output.
const (
	formTable = "table"
	formJSON  = "json"
	formYAML  = "yaml"
)

// An output is where and how a command prints its result.
type output struct {
	stdout func() io.Writer
	form   string
}

// newOutput adds the flag that chooses the form.
func newOutput(cmd *cobra.Command) *output {
	o := &output{stdout: cmd.OutOrStdout}
	choice(cmd, &o.form, "output", "o", "form of the result", formTable, formJSON, formYAML)
	return o
}

// print writes v, or for people what text writes.
func (o *output) print(v any, text func(t *table)) error {
	if o.form == formTable {
		t := &table{now: time.Now()}
		text(t)
		return t.flush(o.stdout())
	}
	data, err := encode(v, o.form)
	if err != nil {
		return err
	}
	return o.write(data)
}

// result prints v unless err says why there is none.
func (o *output) result(v any, err error, text func(t *table)) error {
	if err != nil {
		return err
	}
	return o.print(v, text)
}

// line writes v as one of many: one line of JSON, or one YAML document.
func (o *output) line(v any) error {
	if o.form == formYAML {
		data, err := encode(v, o.form)
		if err != nil {
			return err
		}
		return o.write(append([]byte("---\n"), data...))
	}
	data, err := marshal(v, "")
	if err != nil {
		return err
	}
	return o.write(data)
}

func (o *output) write(data []byte) error {
	return write(o.stdout(), data)
}

func write(stdout io.Writer, data []byte) error {
	if _, err := stdout.Write(data); err != nil {
		return nstance.Errorf(nstance.Internal, "standard output: %w", err)
	}
	return nil
}

func encode(v any, form string) ([]byte, error) {
	data, err := marshal(v, "  ")
	if err != nil || form == formJSON {
		return data, err
	}
	return yamlOf(data)
}

func marshal(v any, indent string) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", indent)
	if err := e.Encode(v); err != nil {
		return nil, nstance.Errorf(nstance.Internal, "output: %w", err)
	}
	return escaped(b.Bytes()), nil
}

// escaped escapes the control characters that JSON leaves as they are, but a terminal
// does not.
func escaped(data []byte) []byte {
	var b bytes.Buffer
	for _, r := range string(data) {
		if r >= 0x7f && r <= 0x9f || unicode.Is(unicode.Bidi_Control, r) {
			fmt.Fprintf(&b, `\u%04x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.Bytes()
}

// yamlOf returns JSON as YAML: the same names in the same order. JSON is YAML
// already, in another style.
func yamlOf(data []byte) ([]byte, error) {
	var n yaml.Node
	if err := yaml.Unmarshal(data, &n); err != nil {
		return nil, nstance.Errorf(nstance.Internal, "output: %w", err)
	}
	restyle(&n)
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(&n); err != nil {
		return nil, nstance.Errorf(nstance.Internal, "output: %w", err)
	}
	return []byte(clip.Text(b.String(), b.Len())), nil // it leaves characters that turn the direction of text
}

func restyle(n *yaml.Node) {
	if len(n.Content) > 0 || n.Kind == yaml.ScalarNode {
		n.Style = 0
	}
	for _, c := range n.Content {
		restyle(c)
	}
}

// A table is text for people: aligned columns, ages relative to now.
type table struct {
	now   time.Time
	lines []string
}

// row adds a line of columns. A line of one column does not take part in the
// alignment of others.
func (t *table) row(cells ...string) {
	for i, c := range cells {
		if cells[i] = strings.TrimSpace(printable(c)); cells[i] == "" && len(cells) > 1 {
			cells[i] = "-"
		}
	}
	t.lines = append(t.lines, strings.Join(cells, "\t"))
}

// say adds a line without columns.
func (t *table) say(format string, args ...any) { t.row(fmt.Sprintf(format, args...)) }

func (t *table) flush(w io.Writer) error {
	var b bytes.Buffer
	tw := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	for _, line := range t.lines {
		fmt.Fprintln(tw, line)
	}
	if err := tw.Flush(); err != nil {
		return nstance.Errorf(nstance.Internal, "output: %w", err)
	}
	return write(w, b.Bytes())
}

// A field is a line about one thing.
type field struct{ name, value string }

// fields adds a line for each field that has a value.
func (t *table) fields(list []field) {
	for _, f := range list {
		if f.value != "" {
			t.row(f.name+":", f.value)
		}
	}
}

// age returns how long ago at was, or "" for none.
func (t *table) age(at *timestamppb.Timestamp) string {
	if stampOf(at) == "" {
		return ""
	}
	return short(max(0, t.now.Sub(wire.TimeOf(at))))
}

// since returns when something happened, how long ago that was and why; or "" for none.
func (t *table) since(why string, at *timestamppb.Timestamp) string {
	if stampOf(at) == "" {
		return ""
	}
	if why != "" {
		why = ", " + why
	}
	return fmt.Sprintf("%s, %s ago%s", stampOf(at), t.age(at), why)
}

// short returns d in one unit, two where the first is small.
func short(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 2*day:
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return fmt.Sprintf("%dd", d/day)
}

// stampOf returns stamp of a message's time, or "" for none.
func stampOf(at *timestamppb.Timestamp) string { return stamp(wire.TimeOf(at)) }

// stamp returns at to the millisecond in UTC, or "" for the zero time.
func stamp(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.UTC().Format("2006-01-02T15:04:05.000Z")
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
