package render

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"text/template"

	"github.com/nstance-go/nstance"
)

// functions are those that templates may call, beside the built-in ones that
// build no text.
func functions(r *run) template.FuncMap {
	escaping := func(escape func(...any) string) func(...any) (string, error) {
		return func(args ...any) (string, error) {
			if err := r.fits(args); err != nil {
				return "", err
			}
			return r.result(escape(args...))
		}
	}
	return template.FuncMap{
		"printf":   r.printf,
		"print":    escaping(fmt.Sprint),
		"println":  escaping(fmt.Sprintln),
		"html":     escaping(template.HTMLEscaper),
		"js":       escaping(template.JSEscaper),
		"urlquery": escaping(template.URLQueryEscaper),
		"json": func(v any) (string, error) {
			b, err := json.Marshal(v)
			if err != nil {
				return "", err
			}
			return r.result(string(b))
		},
		"base64": func(s string) (string, error) { return r.result(base64.StdEncoding.EncodeToString([]byte(s))) },
		"quote": func(v any) (string, error) {
			if !simple(v) {
				return "", nstance.Errorf(nstance.Invalid, "quote: only texts and numbers can be quoted")
			}
			q, err := Quote(fmt.Sprint(v))
			if err != nil {
				return "", err
			}
			return r.result(q)
		},
	}
}

// Quote spells s as one word of a POSIX shell (2.2, "Quoting"). Fails with
// Invalid for a zero byte, which no word can hold.
func Quote(s string) (string, error) {
	if strings.ContainsRune(s, 0) {
		return "", nstance.Errorf(nstance.Invalid, "a zero byte cannot be quoted for a shell")
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'", nil
}

// fits refuses arguments that are too long together, before they are joined.
func (r *run) fits(args []any) error {
	size := 0
	for _, arg := range args {
		v := reflect.ValueOf(arg)
		for v.Kind() == reflect.Pointer && !v.IsNil() {
			v = v.Elem()
		}
		if v.Kind() == reflect.String {
			size += v.Len()
		} else {
			size += len(fmt.Sprint(arg))
		}
		if size > maxResult {
			return r.end(limited("a function is given more than %d bytes", maxResult))
		}
	}
	return nil
}

// printf is fmt.Sprintf without what makes a long text of a short format: wide
// fields, widths from arguments, arguments used again.
func (r *run) printf(format string, args ...any) (string, error) {
	var out strings.Builder
	for format != "" {
		verb, wide, rest, err := nextVerb(format)
		if err != nil {
			return "", r.end(err)
		}
		n := 0
		if strings.Count(verb, "%") == 1 && len(args) > 0 { // two stand for the character
			n = 1
		}
		if wide && n == 1 && !simple(args[0]) {
			return "", r.end(limited("printf: a width is for texts and numbers"))
		}
		if _, err := fmt.Fprintf(&out, verb, args[:n]...); err != nil {
			return "", err
		}
		if out.Len() > maxResult {
			return r.result(out.String())
		}
		args, format = args[n:], rest
	}
	if len(args) > 0 {
		if err := r.fits(args); err != nil {
			return "", err
		}
		fmt.Fprintf(&out, format, args...) // nothing is left of it: this says that they are too many
	}
	return r.result(out.String())
}

// maxWidth is how wide printf makes a field, and how many digits it prints.
const maxWidth = 256

// nextVerb cuts a format behind its first verb. It says whether that sets a
// width or precision.
func nextVerb(format string) (verb string, wide bool, rest string, err error) {
	at := strings.IndexByte(format, '%')
	if at < 0 {
		return format, false, "", nil
	}
	number := 0
	for i := at + 1; i < len(format); i++ {
		switch c := format[i]; {
		case c == '*' || c == '[':
			return "", false, "", limited("printf: %q cannot be used in a format: write the number itself, and each argument once", c)
		case c >= '0' && c <= '9':
			if number = number*10 + int(c-'0'); number > maxWidth {
				return "", false, "", limited("printf: a width or precision is larger than %d", maxWidth)
			}
			wide = wide || number > 0
		case c == '.', c == '+', c == '-', c == '#', c == ' ':
			number = 0
		default:
			for i++; i < len(format) && format[i]&0xC0 == 0x80; i++ { // the rest of a character
			}
			return format[:i], wide, format[i:], nil
		}
	}
	return format, wide, "", nil
}

// simple reports whether v prints as one text.
func simple(v any) bool {
	if _, ok := v.(fmt.Stringer); ok {
		return true
	}
	switch reflect.ValueOf(v).Kind() {
	case reflect.Map, reflect.Slice, reflect.Array, reflect.Struct, reflect.Pointer, reflect.Interface:
		return false
	}
	return true
}
