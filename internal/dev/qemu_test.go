//go:build linux && qemu

package dev_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/dev"
	"github.com/nstance-go/nstance/provider/qemu"
)

// TestQEMU plays scenarios on virtual machines: each boots a kernel whose user
// data, from the metadata service at 169.254.169.254, starts the agent as it is
// shipped.
func TestQEMU(t *testing.T) {
	dir := os.Getenv("NSTANCE_TEST_QEMU")
	require.NotEmpty(t, dir, "NSTANCE_TEST_QEMU must name the folder with vmlinuz and initrd: run make test-qemu")
	for _, scenario := range []string{dev.Interrupt, dev.Mass, dev.Crash, dev.Rollout, dev.Failover} {
		t.Run(scenario, func(t *testing.T) {
			var out, machines screen
			err := dev.Run(t.Context(), &dev.Options{
				Scenario: scenario, JSON: true, Out: &out, HTTP: "127.0.0.1:0",
				QEMU: &qemu.Options{Kernel: filepath.Join(dir, "vmlinuz"), Initrd: filepath.Join(dir, "initrd"), Accel: "tcg", Console: &machines},
			})
			require.NoError(t, err, "%s\n%s", &out, &machines)
			require.True(t, lastLine(t, out.String()).OK)
			if scenario == dev.Crash {
				require.NotContains(t, machines.String(), "emptied ")
				return
			}
			require.Regexp(t, `emptied web[0-9a-z]{26} because of `, machines.String(), "the hook of the machine that leaves")
			require.Regexp(t, `received by web[0-9a-z]{26}: one of the machines of dev, whose shard is local`, machines.String())
		})
	}
}
