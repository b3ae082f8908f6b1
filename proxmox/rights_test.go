package proxmox_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/test/doctest"
	"github.com/nstance-go/nstance/provider/providertest"
	"github.com/nstance-go/nstance/proxmox/pvetest"
)

// role is what docs/providers/proxmox-acl.json grants at one path.
type role struct {
	Path       string
	Role       string
	Privileges map[string]string // use of each privilege
}

func roles(t *testing.T) (out []role) {
	t.Helper()
	b, err := os.ReadFile("../docs/providers/proxmox-acl.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, &out))
	return out
}

// token has the documented privileges, except one.
func token(roles []role, without string) map[string]pvetest.Token {
	var acl []pvetest.ACL
	for _, r := range roles {
		a := pvetest.ACL{Path: r.Path}
		for p := range r.Privileges {
			if r.Path+" "+p != without {
				a.Privileges = append(a.Privileges, p)
			}
		}
		acl = append(acl, a)
	}
	return map[string]pvetest.Token{"root@pam!test": {Secret: "secret", ACL: acl}}
}

// TestRights: the documented privileges suffice, and each is needed.
func TestRights(t *testing.T) {
	all := roles(t)
	t.Run("suffice", func(t *testing.T) {
		o := &pvetest.Options{Tokens: token(all, "")}
		require.NoError(t, newHardwareBench(t, &pvetest.Options{Tokens: token(all, "")}).lifeOfMachine())
		providertest.Run(t, func(t *testing.T) providertest.Subject {
			b := newBench(t, o)
			t.Cleanup(func() { require.Empty(t, b.cloud.Denied()) })
			return providertest.Subject{Provider: b.p, Shape: func(s *nstance.MachineSpec) {
				s.Args, s.Subnet, s.InstanceType = json.RawMessage(`{"template": 9000}`), "vmbr0", "small"
			}}
		})
	})
	for _, r := range all {
		for _, p := range slices.Sorted(maps.Keys(r.Privileges)) {
			t.Run("without "+p+" on "+r.Path, func(t *testing.T) {
				b := newHardwareBench(t, &pvetest.Options{Tokens: token(all, r.Path+" "+p)})
				require.Error(t, b.lifeOfMachine())
			})
		}
	}
}

// lifeOfMachine makes the calls of the lives of two machines, until the cluster refuses one:
// one with all hardware, and one that hibernates.
func (b *bench) lifeOfMachine() error {
	if err := b.lifeOf(b.specOf(everything), false); err != nil {
		return err
	}
	return b.lifeOf(b.specOf(`{"template": 9000}`), true)
}

func (b *bench) lifeOf(s nstance.MachineSpec, hibernates bool) error {
	m, err := b.p.Create(b.Context(), s)
	if err != nil {
		return err
	}
	reach := func(act func() error) error {
		b.eventually(func() bool { return len(b.cloud.Denied()) > 0 || act() == nil }, "neither done nor denied")
		if d := b.cloud.Denied(); len(d) > 0 {
			return errors.New(d[0])
		}
		return nil
	}
	is := func(want nstance.MachineStatus) func() error {
		return func() error {
			if got, err := b.p.Get(b.Context(), s.ID); err != nil || got.Status != want || want == nstance.StatusRunning && !b.finished() {
				return fmt.Errorf("status %s: %w", got.Status, err)
			}
			return nil
		}
	}
	acts := []func() error{is(nstance.StatusRunning)}
	if hibernates {
		acts = append(acts,
			func() error { return b.p.Park(b.Context(), m, nstance.ParkHibernated) }, is(nstance.StatusStopped),
			func() error { return b.p.Wake(b.Context(), m) }, is(nstance.StatusRunning))
	}
	acts = append(acts, func() error {
		if err := b.p.Delete(b.Context(), m); nstance.CodeOf(err) != nstance.NotFound {
			return fmt.Errorf("not gone: %w", err)
		}
		return nil
	})
	for _, act := range acts {
		if err := reach(act); err != nil {
			return err
		}
	}
	b.clean()
	return nil
}

// TestCommands: the documented commands grant exactly those privileges.
func TestCommands(t *testing.T) {
	var s strings.Builder
	fmt.Fprintln(&s, "```sh")
	for _, r := range roles(t) {
		fmt.Fprintf(&s, "pveum role add %s --privs %q\n", r.Role, strings.Join(slices.Sorted(maps.Keys(r.Privileges)), " "))
	}
	fmt.Fprintln(&s, "pveum user add nstance@pve\npveum user token add nstance@pve server --privsep 0")
	for _, r := range roles(t) {
		fmt.Fprintf(&s, "pveum acl modify %s --users nstance@pve --roles %s\n", r.Path, r.Role)
	}
	fmt.Fprintln(&s, "```")
	doctest.Section(t, document, "commands", s.String())
	s.Reset()
	fmt.Fprintln(&s, "| path | privilege | needed to |\n|---|---|---|")
	for _, r := range roles(t) {
		for _, p := range slices.Sorted(maps.Keys(r.Privileges)) {
			fmt.Fprintf(&s, "| `%s` | `%s` | %s |\n", r.Path, p, r.Privileges[p])
		}
	}
	doctest.Section(t, document, "privileges", s.String())
}
