package ec2test

import (
	"context"
	"strconv"
	"strings"
)

// The input and output of GetParameter (Systems Manager API Reference).
type (
	parameterInput struct {
		Name           string
		WithDecryption bool
	}
	parameterOutput struct{ Parameter parameterItem }
	parameterItem   struct {
		ARN      string
		DataType string
		Name     string
		Selector string `json:",omitempty"`
		Type     string
		Value    string
		Version  int
	}
)

// getParameter returns a parameter in its newest version, or in the one that follows
// the name and a colon.
func (v *inventory) getParameter(_ context.Context, in *parameterInput) (*parameterOutput, error) {
	name, version, pinned := strings.Cut(in.Name, ":")
	if name == "" {
		return nil, refuse("ValidationException", "1 validation error detected: Value at 'name' failed to satisfy constraint: Member must have length greater than or equal to 1")
	}
	values := v.o.Catalog.Parameters[name]
	if len(values) == 0 {
		return nil, refuse("ParameterNotFound", "")
	}
	n, selector := len(values), ""
	if pinned {
		var err error
		if n, err = strconv.Atoi(version); err != nil || n < 1 || n > len(values) {
			return nil, refuse("ParameterVersionNotFound", "Systems Manager could not find version %s of %s. Verify the version and try again.", version, name)
		}
		selector = ":" + version
	}
	arn := "arn:aws:ssm:" + v.o.Region + ":" + v.o.Account + ":parameter" + name
	if strings.HasPrefix(name, "/aws/service/") {
		arn = "arn:aws:ssm:" + v.o.Region + "::parameter" + name
	}
	return &parameterOutput{parameterItem{ARN: arn, DataType: "text", Name: name, Selector: selector, Type: "String", Value: values[n-1], Version: n}}, nil
}
