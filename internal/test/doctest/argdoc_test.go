package doctest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/provider"
)

type args struct {
	Disk   disk              `json:"disk" doc:"the first disk"`
	Disks  []disk            `json:"disks" doc:"further disks"`
	Tags   map[string]string `json:"tags" doc:"further tags"`
	Boot   provider.Duration `json:"boot" doc:"how long it takes to start" default:"0s"`
	Hidden string            `json:"-"`
}

type disk struct {
	Size int `json:"size" min:"1" doc:"gigabytes"`
}

func TestArgTable(t *testing.T) {
	table, err := ArgTable(&args{})
	require.NoError(t, err)
	require.Equal(t, "| name | type | default | meaning |\n|---|---|---|---|\n"+
		"| `disk` | object | — | the first disk |\n"+
		"| `disk.size` | whole number | — | gigabytes |\n"+
		"| `disks` | list of object | — | further disks |\n"+
		"| `disks[].size` | whole number | — | gigabytes |\n"+
		"| `tags` | map of text | — | further tags |\n"+
		"| `boot` | duration | 0s | how long it takes to start |\n", table)
	_, err = ArgTable(&struct{ Silent string }{})
	require.ErrorContains(t, err, "Silent", "each argument is documented")
}

func TestArgSchema(t *testing.T) {
	schema, err := argSchemaOf("Args", &args{})
	require.NoError(t, err)
	require.JSONEq(t, `{
		"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Args",
		"type": "object", "additionalProperties": false, "properties": {
			"disk": {"description": "the first disk", "type": "object", "additionalProperties": false,
				"properties": {"size": {"type": "integer", "minimum": 1, "description": "gigabytes"}}},
			"disks": {"description": "further disks", "type": "array", "items": {"type": "object", "additionalProperties": false,
				"properties": {"size": {"type": "integer", "minimum": 1, "description": "gigabytes"}}}},
			"tags": {"description": "further tags", "type": "object", "additionalProperties": {"type": "string"}},
			"boot": {"description": "how long it takes to start", "type": "string"}
		}}`, string(schema))
}
