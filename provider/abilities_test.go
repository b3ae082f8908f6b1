package provider_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/simcloud"
)

func TestAbilities(t *testing.T) {
	t.Run("a provider without any has none", func(t *testing.T) {
		require.Zero(t, client(t, scripted{}, nil).Abilities())
		require.Zero(t, provider.AbilitiesOf(scripted{}))
	})
	t.Run("nodes have the instance ID where the cloud names none", func(t *testing.T) {
		can := client(t, scripted{}, nil).Abilities()
		require.Equal(t, "nstance:///tst1", can.NodeProviderID(nstance.Machine{ID: "tst1", ProviderID: "100"}))
		require.Empty(t, can.NodeProviderID(nstance.Machine{ID: "tst1"}), "the machine is not known")
		can = client(t, namer{}, nil).Abilities()
		require.Equal(t, "test://100", can.NodeProviderID(nstance.Machine{ID: "tst1", ProviderID: "100"}))
		require.Empty(t, can.NodeProviderID(nstance.Machine{ID: "tst1"}), "the machine is not known")
	})
	t.Run("reads are repeated while throttled, changes are not", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			cloud := simcloud.New(&simcloud.Options{Balancers: []string{"lb"}})
			defer cloud.Close()
			can := client(t, cloud, nil).Abilities()
			lb := nstance.LoadBalancer{ID: "lb"}
			cloud.Inject(simcloud.Fault{Op: simcloud.OpMembers, Times: 2, Code: nstance.Throttled})
			_, err := can.Balancers.BalancerMembers(t.Context(), lb)
			require.NoError(t, err)
			require.Equal(t, 3, cloud.Count(simcloud.OpMembers))

			cloud.Inject(simcloud.Fault{Op: simcloud.OpJoin, Code: nstance.Throttled})
			require.ErrorIs(t, can.Balancers.JoinBalancer(t.Context(), lb, nil), nstance.Throttled)
			require.Equal(t, 1, cloud.Count(simcloud.OpJoin))
		})
	})
	t.Run("each call has a timeout, a code, and is observed", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			type call struct {
				op   string
				code nstance.Code
				took time.Duration
			}
			var calls []call
			can := client(t, stuck{}, &provider.Options{Timeout: time.Second, Retries: -1, Observe: func(op string, code nstance.Code, took time.Duration) {
				calls = append(calls, call{op, code, took})
			}}).Abilities()
			_, err := can.Images.ResolveImage(t.Context(), nstance.ImageQuery{})
			require.ErrorIs(t, err, nstance.Unavailable)
			require.ErrorContains(t, err, "resolve_image")
			_, err = can.Subnets.FreeAddresses(t.Context(), nil)
			require.ErrorIs(t, err, nstance.Internal)
			_, err = can.Zones.SubnetZones(t.Context(), nil)
			require.ErrorIs(t, err, nstance.Internal)
			_, err = can.Shifts.ShiftedZones(t.Context())
			require.ErrorIs(t, err, nstance.Internal)
			require.Equal(t, []call{
				{"resolve_image", nstance.Unavailable, time.Second}, {"free_addresses", nstance.Internal, 0}, {"subnet_zones", nstance.Internal, 0}, {"shifted_zones", nstance.Internal, 0},
			}, calls)
		})
	})
	t.Run("what comes with an error is no answer", func(t *testing.T) {
		score, err := client(t, halfway{}, nil).Abilities().Scores.ZoneScores(t.Context(), nil, 1)
		require.ErrorIs(t, err, nstance.Denied)
		require.Nil(t, score)
	})
	t.Run("of a console the end counts", func(t *testing.T) {
		out, err := client(t, halfway{}, nil).Abilities().Console.ConsoleOutput(t.Context(), nstance.Machine{})
		require.NoError(t, err)
		require.Len(t, out, clip.MaxConsole)
		require.Equal(t, byte('!'), out[len(out)-1])
	})
	t.Run("an empty answer is an error", func(t *testing.T) {
		_, err := client(t, blank{}, nil).Abilities().Images.ResolveImage(t.Context(), nstance.ImageQuery{})
		require.ErrorIs(t, err, nstance.Internal)
	})
	t.Run("a price that no record can hold is an error", func(t *testing.T) {
		for _, price := range []float64{0, -1, math.NaN(), math.Inf(1)} {
			_, err := client(t, priced{price: price}, nil).Abilities().Prices.Prices(t.Context(), nil)
			require.ErrorIs(t, err, nstance.Internal, price)
		}
	})
}

// stuck does not answer, or answers badly.
type stuck struct{ scripted }

func (stuck) ResolveImage(ctx context.Context, _ nstance.ImageQuery) (string, error) {
	<-ctx.Done()
	return "", ctx.Err()
}

func (stuck) FreeAddresses(context.Context, []string) (map[string]int, error) {
	return nil, errors.New("boom")
}

func (stuck) SubnetZones(context.Context, []string) (map[string]string, error) {
	return nil, errors.New("boom")
}

func (stuck) ShiftedZones(context.Context) ([]nstance.ZoneShift, error) {
	return nil, errors.New("boom")
}

type namer struct{ scripted }

func (namer) NodeProviderID(m nstance.Machine) string { return "test://" + m.ProviderID }

type priced struct {
	scripted
	price float64
}

func (p priced) Prices(context.Context, []string) ([]nstance.Price, error) {
	return []nstance.Price{{InstanceType: "small", PerHour: p.price}}, nil
}

type blank struct{ scripted }

func (blank) ResolveImage(context.Context, nstance.ImageQuery) (string, error) { return "", nil }

// halfway answers with a part and an error, and has a long console.
type halfway struct{ scripted }

func (halfway) ZoneScores(context.Context, []string, int) (map[string]int, error) {
	return map[string]int{"a": 1}, nstance.Errorf(nstance.Denied, "page 2")
}

func (halfway) ConsoleOutput(context.Context, nstance.Machine) ([]byte, error) {
	return append(make([]byte, clip.MaxConsole), '!'), nil
}
