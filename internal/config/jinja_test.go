package config_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/config"
)

// TestBracesOfOthers: user data with braces for a program on the machine are refused with
// how to escape them, and accepted escaped.
func TestBracesOfOthers(t *testing.T) {
	for name, text := range map[string]string{
		"cloud-init's Jinja":        "## template: jinja\n#cloud-config\nhostname: '{{ ds.meta_data.local_hostname }}'\n",
		"standardized keys":         "## template: jinja\n#cloud-config\nhostname: {{ v1.local_hostname }}\n",
		"without its header":        "#cloud-config\nhostname: '{{ ds.meta_data.local_hostname }}'\n",
		"a filter with an argument": "## template: jinja\n#cloud-config\nhostname: {{ v1.local_hostname|replace('a', 'b') }}\n",
		"a list":                    "## template: jinja\n#cloud-config\nhostname: {{ ds['meta_data'] }}\n",
		"another program's":         "#!/bin/bash\ndocker ps --format '{{.Names}}'\n",
		"a function of another's":   "#!/bin/bash\nnomad alloc status -t '{{ range_alloc .Whatsoever }}'\n",
	} {
		t.Run(name, func(t *testing.T) {
			err := config.CheckUserData("templates.web.userdata", text)
			var e *nstance.Error
			require.True(t, errors.As(err, &e), "%v", err)
			require.Equal(t, nstance.Invalid, e.Code)
			require.Equal(t, "templates.web.userdata", e.Field)
			require.Contains(t, e.Remedy, "escaped")
			require.Contains(t, e.Remedy, "{{`{{ ds.meta_data.local_hostname }}`}}")
		})
	}
	require.NoError(t, config.CheckUserData("x", "## template: jinja\n#cloud-config\nhostname: '{{`{{ ds.meta_data.local_hostname }}`}}'\n"))
	for _, text := range []string{"{{.Clutser.ID}}", "{{quot .Image}}"} { // ours, misspelt
		var e *nstance.Error
		require.True(t, errors.As(config.CheckUserData("x", text), &e))
		require.NotContains(t, e.Remedy, "escaped")
	}
}
