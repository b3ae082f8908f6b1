package agent

import (
	"errors"
	"fmt"
	"time"

	"github.com/tailscale/hujson"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/health"
	"github.com/nstance-go/nstance/internal/duration"
	"github.com/nstance-go/nstance/internal/regular"
)

// maxProbesFile bounds the file of probes: 32 of them fit many times over.
const maxProbesFile = 64 << 10

// probes reads the file that a variable names: JSON with comments, an array of
// objects with the fields of setProbe.
func (e *env) probes(name string) []health.Probe {
	path := e.text(name)
	if path == "" {
		return nil
	}
	probes, err := readProbes(path)
	if err != nil {
		e.errs = append(e.errs, fmt.Errorf("%s: %s: %w", name, path, err))
	}
	return probes
}

func readProbes(path string) ([]health.Probe, error) {
	text, err := regular.File(path, maxProbesFile)
	if err != nil {
		return nil, nstance.FieldError("", "name a file of a few lines that the agent's user can read, or unset the variable", "%v", err)
	}
	v, err := hujson.Parse(append(text, '\n')) // a comment may end the file
	if err != nil {
		return nil, nstance.FieldError("", "correct the JSON", "%v", err)
	}
	list, ok := v.Value.(*hujson.Array)
	if !ok {
		return nil, nstance.FieldError("", `write [{"name": …}, …]`, "is not an array of probes")
	}
	probes := make([]health.Probe, len(list.Elements))
	var errs []error
	for i := range list.Elements {
		errs = append(errs, decodeProbe(&probes[i], fmt.Sprintf("probes[%d]", i), &list.Elements[i]))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	_, err = health.NewCollector(&health.CollectorOptions{Probes: probes})
	return probes, err
}

// decodeProbe fails for a field that is unknown, twice, or of another type.
func decodeProbe(p *health.Probe, field string, v *hujson.Value) error {
	object, ok := v.Value.(*hujson.Object)
	if !ok {
		return nstance.FieldError(field, `write {"name": …}`, "is not an object")
	}
	seen := map[string]bool{}
	var errs []error
	for i := range object.Members {
		m := &object.Members[i]
		name := m.Name.Value.(hujson.Literal).String()
		if at := field + "." + name; seen[name] {
			errs = append(errs, nstance.FieldError(at, "write it once", "appears twice"))
		} else {
			errs = append(errs, setProbe(p, name, at, &m.Value))
		}
		seen[name] = true
	}
	return errors.Join(errs...)
}

func setProbe(p *health.Probe, name, field string, v *hujson.Value) error {
	switch name {
	case "name":
		return decodeText(&p.Name, field, v)
	case "command":
		return decodeArgv(&p.Command, field, v)
	case "http":
		return decodeText(&p.HTTP, field, v)
	case "tcp":
		return decodeText(&p.TCP, field, v)
	case "interval":
		return decodeDuration(&p.Interval, field, v)
	case "timeout":
		return decodeDuration(&p.Timeout, field, v)
	}
	return nstance.FieldError(field, "use name, command, http, tcp, interval and timeout", "is unknown")
}

// decodeText refuses "", which has the same meaning as a missing field.
func decodeText(dst *string, field string, v *hujson.Value) error {
	if l, ok := v.Value.(hujson.Literal); ok && l.Kind() == '"' && l.String() != "" {
		*dst = l.String()
		return nil
	}
	return nstance.FieldError(field, "use a string that is not empty, or leave the field out", "is not a text")
}

// decodeArgv accepts an array of strings only: there is no shell to split one
// string.
func decodeArgv(dst *[]string, field string, v *hujson.Value) error {
	list, _ := v.Value.(*hujson.Array)
	if list == nil || len(list.Elements) == 0 {
		return nstance.FieldError(field, `use an array of strings such as ["/usr/bin/test", "-e", "/run/ready"]; there is no shell`, "is not a command")
	}
	for i, e := range list.Elements {
		word, ok := e.Value.(hujson.Literal)
		if !ok || word.Kind() != '"' {
			return nstance.FieldError(fmt.Sprintf("%s[%d]", field, i), "use a string", "is not a string")
		}
		*dst = append(*dst, word.String())
	}
	return nil
}

func decodeDuration(dst *time.Duration, field string, v *hujson.Value) error {
	var s string
	if err := decodeText(&s, field, v); err == nil {
		if d, err := duration.Parse(s); err == nil && d > 0 {
			*dst = d
			return nil
		}
	}
	return nstance.FieldError(field, `use a duration such as "5s"`, "is not a positive duration")
}
