package discovery

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
)

// A schema describes one value: of a body, or of a parameter.
type schema struct {
	Ref                  string             `json:"$ref"`
	Type                 string             `json:"type"`
	Format               string             `json:"format"`
	Pattern              string             `json:"pattern"`
	Enum                 []string           `json:"enum"`
	Minimum              string             `json:"minimum"`
	Maximum              string             `json:"maximum"`
	ReadOnly             bool               `json:"readOnly"`
	Properties           map[string]*schema `json:"properties"`
	AdditionalProperties *schema            `json:"additionalProperties"`
	Items                *schema            `json:"items"`
	Location             string             `json:"location"`
	Repeated             bool               `json:"repeated"`
	Annotations          struct {
		Required []string `json:"required"`
	} `json:"annotations"`
}

// check compares a value with its schema. request is the method's ID when the
// value is sent to the cloud: what only the cloud may write must not be there,
// and what the method requires must.
func (d *document) check(s *schema, v any, path, request string) error {
	if s.Ref != "" {
		named := d.Schemas[s.Ref]
		if named == nil {
			return fmt.Errorf("%s: no schema %s", path, s.Ref)
		}
		return d.check(named, v, path, request)
	}
	err := s.checkValue(v)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	switch value := v.(type) {
	case map[string]any:
		return d.checkObject(s, value, path, request)
	case []any:
		for i, part := range value {
			if err := d.check(s.Items, part, fmt.Sprintf("%s[%d]", path, i), request); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *document) checkObject(s *schema, object map[string]any, path, request string) error {
	for _, name := range slices.Sorted(maps.Keys(object)) {
		p := s.Properties[name]
		if p == nil {
			p = s.AdditionalProperties
		}
		switch {
		case p == nil:
			return fmt.Errorf("%s: no field %s", path, name)
		case request != "" && p.ReadOnly:
			return fmt.Errorf("%s: only the cloud writes %s", path, name)
		}
		if err := d.check(p, object[name], path+"."+name, request); err != nil {
			return err
		}
	}
	for name, p := range s.Properties {
		if _, there := object[name]; !there && request != "" && slices.Contains(p.Annotations.Required, request) {
			return fmt.Errorf("%s: %s is required", path, name)
		}
	}
	return nil
}

// checkValue compares the value itself, without its parts.
func (s *schema) checkValue(v any) error {
	switch s.Type {
	case "object":
		_, ok := v.(map[string]any)
		return mismatch(ok, s, v)
	case "array":
		_, ok := v.([]any)
		return mismatch(ok, s, v)
	case "boolean":
		_, ok := v.(bool)
		return mismatch(ok, s, v)
	case "string":
		text, ok := v.(string)
		if !ok {
			return mismatch(ok, s, v)
		}
		return s.checkText(text)
	case "integer", "number":
		n, ok := v.(json.Number)
		if !ok {
			return mismatch(ok, s, v)
		}
		return s.checkText(n.String())
	case "any":
		return nil
	}
	return fmt.Errorf("the schema's type %q is not known", s.Type)
}

func mismatch(ok bool, s *schema, v any) error {
	if ok {
		return nil
	}
	return fmt.Errorf("%v is no %s", v, s.Type)
}

// checkText checks a value by the text that stands for it in a URL, or in a
// string.
func (s *schema) checkText(v string) error {
	var err error
	switch {
	case s.Type == "boolean":
		_, err = strconv.ParseBool(v)
	case s.Format == "int32":
		_, err = strconv.ParseInt(v, 10, 32)
	case s.Format == "uint32":
		_, err = strconv.ParseUint(v, 10, 32)
	case s.Format == "int64":
		_, err = strconv.ParseInt(v, 10, 64)
	case s.Format == "uint64":
		_, err = strconv.ParseUint(v, 10, 64)
	case s.Format == "byte":
		_, err = base64.StdEncoding.DecodeString(v)
	case s.Type == "integer" || s.Type == "number":
		_, err = strconv.ParseFloat(v, 64)
	}
	if err != nil {
		return err
	}
	if len(s.Enum) > 0 && !slices.Contains(s.Enum, v) {
		return fmt.Errorf("%q is none of %v", v, s.Enum)
	}
	if s.Pattern != "" {
		if ok, err := regexp.MatchString("^(?:"+s.Pattern+")$", v); err != nil || !ok {
			return errors.Join(err, fmt.Errorf("%q does not match %s", v, s.Pattern))
		}
	}
	return s.checkBounds(v)
}

func (s *schema) checkBounds(v string) error {
	n, err := strconv.ParseFloat(v, 64)
	if err != nil {
		return nil //nolint:nilerr // not a number: it has no bounds
	}
	if low, err := strconv.ParseFloat(s.Minimum, 64); err == nil && n < low {
		return fmt.Errorf("%s is less than %s", v, s.Minimum)
	}
	if high, err := strconv.ParseFloat(s.Maximum, 64); err == nil && n > high {
		return fmt.Errorf("%s is more than %s", v, s.Maximum)
	}
	return nil
}
