package aws_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/aws"
	"github.com/nstance-go/nstance/provider"
)

// TestRefusedByEC2: what does not show offline is refused by the test cloud as EC2 does.
func TestRefusedByEC2(t *testing.T) {
	for args, code := range map[string]nstance.Code{
		`{"volumes": [{"device": "/dev/xvda", "size_gib": 1}]}`:                  nstance.Invalid, // smaller than the image
		`{"volumes": [{"device": "/dev/xvda", "size_gib": 500, "type": "st1"}]}`: nstance.Invalid, // does not boot
		`{"volumes": [{"device": "/dev/sdb"}]}`:                                  nstance.Invalid, // neither size nor snapshot
		`{"volumes": [{"device": "/dev/sdb", "snapshot_id": "snap-1"}]}`:         nstance.Invalid,
		`{"placement_group": "nope"}`:                                            nstance.Invalid,
		`{"placement_group": "spread", "placement_partition": 3}`:                nstance.Invalid,
		`{"tenancy": "host", "host_id": "h-1"}`:                                  nstance.Invalid,
		`{"capacity_reservation": {"id": "cr-1"}}`:                               nstance.Invalid,
		`{"key_name": "nope"}`:                                                   nstance.Invalid,
		`{"security_group_ids": ["sg-nope"]}`:                                    nstance.Invalid,
		`{"iam_instance_profile": "nope"}`:                                       nstance.Unavailable, // may be known in a moment
		`{"ipv6_addresses": 1}`:                                                  nstance.Invalid,     // the subnet has none
	} {
		t.Run(args, func(t *testing.T) {
			w := newWorld(t, nil)
			s := w.spec()
			s.Args = json.RawMessage(args)
			require.NoError(t, aws.Kind().CheckSpec(provider.Settings{Region: region}, s))
			_, err := w.Create(t.Context(), s)
			w.refused(code, err)
			require.Empty(t, w.cloud.Machines())
		})
	}
}
