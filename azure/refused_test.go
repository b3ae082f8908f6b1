package azure_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/azure"
	"github.com/nstance-go/nstance/azure/armtest"
	"github.com/nstance-go/nstance/provider"
)

var settings = provider.Settings{Region: "westeurope", Options: []byte(`{"subscription_id": "` + subscription + `", "resource_group": "machines"}`)}

// TestConfidential: a confidential machine says how its firmware's state is encrypted, and
// no other machine does.
func TestConfidential(t *testing.T) {
	for _, disk := range []map[string]any{nil, {"type": "Premium_LRS"}, {"size_gb": 64}} {
		_, server := serve(t, nil)
		p, err := azure.New(options(t, server))
		require.NoError(t, err)
		s := newSpec(t)
		s.InstanceType = "Standard_DC2as_v5"
		s.Args = args(t, map[string]any{"security_type": "ConfidentialVM", "os_disk": disk})
		if disk == nil {
			s.Args = args(t, map[string]any{"security_type": "ConfidentialVM"})
		}
		require.NoError(t, azure.Kind().CheckSpec(settings, s))
		m, err := p.Create(t.Context(), s)
		require.NoError(t, err)
		got := raw(t, server.Client(), server.URL+m.ProviderID+"?api-version=2025-04-01")
		for _, want := range []string{`"securityType":"ConfidentialVM"`, `"securityEncryptionType":"VMGuestStateOnly"`, `"vTpmEnabled":true`, `"secureBootEnabled":true`} {
			require.Contains(t, got, want)
		}
	}
	_, p := open(t, nil)
	s := newSpec(t)
	s.InstanceType, s.Args = "Standard_D2s_v5", args(t, map[string]any{"security_type": "ConfidentialVM"})
	_, err := p.Create(t.Context(), s)
	require.Equal(t, nstance.Invalid, nstance.CodeOf(err), "%v", err)
}

// TestRefused: what Azure refuses, the test cloud does, and validation where it shows
// offline.
func TestRefused(t *testing.T) {
	const net = "/subscriptions/" + subscription + "/resourceGroups/net/providers/"
	for name, c := range map[string]struct {
		size  string
		args  map[string]any
		field string // empty: it does not show offline
	}{
		"disk below the image":      {"Standard_D2s_v5", map[string]any{"os_disk": map[string]any{"size_gb": 1}}, ""},
		"large ephemeral disk":      {"Standard_D2ds_v5", map[string]any{"os_disk": map[string]any{"size_gb": 4095, "ephemeral": true}}, "args.os_disk.size_gb"},
		"no premium storage":        {"Standard_D2_v5", map[string]any{"os_disk": map[string]any{"type": "Premium_LRS"}}, "args.os_disk.type"},
		"no premium storage either": {"Standard_A1_v2", map[string]any{"os_disk": map[string]any{"type": "Premium_ZRS"}}, "args.os_disk.type"},
		"size":                      {"Nonsense_X", nil, ""},
		"network security group":    {"Standard_D2s_v5", map[string]any{"network_security_group": net + "Microsoft.Network/networkSecurityGroups/nope"}, ""},
		"identity":                  {"Standard_D2s_v5", map[string]any{"user_assigned_identities": []string{net + "Microsoft.ManagedIdentity/userAssignedIdentities/nope"}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			cloud, p := open(t, &armtest.Options{Resources: []string{net + "Microsoft.Network/networkSecurityGroups/main"}})
			s := newSpec(t)
			s.InstanceType, s.Args = c.size, args(t, c.args)
			if err := azure.Kind().CheckSpec(settings, s); c.field == "" {
				require.NoError(t, err)
			} else {
				var e *nstance.Error
				require.ErrorAs(t, err, &e)
				require.Equal(t, c.field, e.Field)
				require.NotEmpty(t, e.Remedy)
			}
			_, err := p.Create(t.Context(), s)
			require.Equal(t, nstance.Invalid, nstance.CodeOf(err), "%v", err)
			require.Empty(t, cloud.Machines())
		})
	}
	for _, size := range []string{"Standard_DS2_v2", "Standard_B2s", "Standard_E4-2ds_v5", "Standard_M64s", "Standard_NC6s_v3", "Standard_D2pds_v6", "Standard_HB120rs_v3", "Standard_L8s_v3"} {
		s := newSpec(t)
		s.InstanceType, s.Args = size, args(t, map[string]any{"os_disk": map[string]any{"type": "Premium_LRS"}})
		require.NoError(t, azure.Kind().CheckSpec(settings, s), size)
		_, p := open(t, nil)
		_, err := p.Create(t.Context(), s)
		require.NoError(t, err, size)
	}
}
