package repository_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRightsAreExplained: the table in docs/security.md names each resource on which the
// operator has rights.
func TestRightsAreExplained(t *testing.T) {
	_, table, found := strings.Cut(read(t, "docs/security.md"), "**What the operator may do**")
	require.True(t, found)
	n := 0
	for _, role := range []string{"rbac", "secrets", "manager"} {
		for _, resources := range regexp.MustCompile(`(?m)^  resources:\n((?:  - .*\n)+)`).FindAllStringSubmatch(read(t, "kubernetes/config/"+role+"/role.yaml"), -1) {
			for _, name := range regexp.MustCompile(`- ([a-z]+)`).FindAllStringSubmatch(resources[1], -1) {
				n++
				require.Contains(t, table, "`"+name[1]+"`", role)
			}
		}
	}
	require.Greater(t, n, 20)
}
