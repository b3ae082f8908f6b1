package registration_test

import (
	"context"
	"crypto/x509"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/pki"
)

// noDependents reports that nothing depends on the retired key.
func noDependents(context.Context, keyring.KeyEntry) error { return nil }

func (w *world) step(set string, step keyring.Step) (keyring.KeySet, error) {
	return w.ring.Rotate(w.t.Context(), keyring.Rotation{Set: set, Step: step, Free: noDependents})
}

func (w *world) mustStep(set string, step keyring.Step) keyring.KeySet {
	w.t.Helper()
	s, err := w.step(set, step)
	require.NoError(w.t, err)
	return s
}

// phases returns the phases of a set's keys, from the oldest to the newest.
func phases(s keyring.KeySet) string {
	out := ""
	for _, k := range s.Keys {
		out += fmt.Sprintf("%d:%s ", k.Generation, k.Phase)
	}
	return out
}

// other is a process of its own with the same vault.
func (w *world) other() *keyring.Keyring {
	ring, err := keyring.OpenKeyring(w.t.Context(), w.vault, w.clock)
	require.NoError(w.t, err)
	return ring
}

func TestRotationOfAnAuthority(t *testing.T) {
	w := newWorld(t, nil)
	_, nonce := w.instance()
	key := pki.NewKey()
	who := w.mustRegister(nonce, key)
	old := w.keys.Identity.Issuer()
	require.Equal(t, old, who.Issuer)

	require.Equal(t, "1:current 2:next ", phases(w.mustStep(keyring.Identity, keyring.StepBegin)))
	require.Equal(t, old, w.keys.Identity.Issuer(), "it signs nothing yet")
	require.Len(t, w.keys.Identity.Issuers(), 2, "but is trusted")
	cred, err := w.register(nonce, key)
	require.NoError(t, err)
	require.Equal(t, w.keys.Identity.Certificates(), cred.Roots, "clients hear of it with every certificate")

	w.pass(keyring.Settle)
	require.Equal(t, "1:retired 2:current ", phases(w.mustStep(keyring.Identity, keyring.StepActivate)))
	next := w.keys.Identity.Issuer()
	require.NotEqual(t, old, next)
	cert, err := w.keys.Identity.Server(shard, cluster, time.Hour, w.clock())
	require.NoError(t, err)
	id, err := pki.IdentityOf(cert.Leaf)
	require.NoError(t, err)
	require.Equal(t, old, id.Issuer, "those who know the old one only still know their server")
	require.Equal(t, old, w.keys.Identity.ServerIssuer())

	renewed := w.mustRenew(who, pki.NewKey())
	require.Equal(t, next, renewed.Issuer)
	_, err = w.reg.Verify(t.Context(), who)
	require.NoError(t, err, "the old certificate is good until the new one is used")
	_, nonce = w.instance()
	require.Equal(t, next, w.mustRegister(nonce, pki.NewKey()).Issuer)

	w.pass(keyring.Settle)
	require.Equal(t, "2:current ", phases(w.mustStep(keyring.Identity, keyring.StepFinish)))
	require.False(t, w.keys.Identity.Trusts(old))
	require.Equal(t, next, w.keys.Identity.ServerIssuer())
	require.Equal(t, deletedKey, string(w.vault.objects["identity-ca.key"]))
	require.NotEqual(t, deletedKey, string(w.vault.objects["identity-ca.2.key"]))
	require.Equal(t, [][]byte{w.keys.Identity.Certificate()}, w.keys.Identity.Certificates())

	t.Run("a process that starts now trusts the new one only", func(t *testing.T) {
		require.Equal(t, w.keys.Identity.Issuers(), w.other().Keys().Identity.Issuers())
	})
	t.Run("other sets are unchanged", func(t *testing.T) {
		require.Equal(t, "1:current ", phases(w.ring.Set(keyring.Workload)))
		require.Equal(t, "1:current ", phases(w.ring.Set(keyring.Nonces)))
	})
}

func TestRecoveryAcrossRotation(t *testing.T) {
	for _, finished := range []bool{false, true} {
		t.Run(fmt.Sprintf("finished %v", finished), func(t *testing.T) {
			s := newExpiredAgent(t, nil)
			s.mustStep(keyring.Identity, keyring.StepBegin)
			s.pass(keyring.Settle)
			s.mustStep(keyring.Identity, keyring.StepActivate)
			s.pass(30 * 24 * time.Hour)
			if finished {
				s.mustStep(keyring.Identity, keyring.StepFinish)
				_, err := s.recover(pki.NewKey())
				require.ErrorIs(t, err, nstance.Denied)
				return
			}
			cred, err := s.recover(pki.NewKey())
			require.NoError(t, err, "its authority is retired, not gone")
			require.Equal(t, s.keys.Identity.Issuer(), s.identity(cred).Issuer)
			require.Len(t, cred.Roots, 2)
		})
	}
}

func TestRotationOfNonces(t *testing.T) {
	w := newWorld(t, nil)
	id, nonce := w.instance()
	old := w.keys.Nonces.KeyID()
	verify := func(token string) error {
		_, err := w.keys.Nonces.Verify(token, w.clock(), here)
		return err
	}
	w.mustStep(keyring.Nonces, keyring.StepBegin)
	require.Equal(t, old, w.keys.Nonces.KeyID())
	w.pass(keyring.Settle)
	w.mustStep(keyring.Nonces, keyring.StepActivate)
	require.NotEqual(t, old, w.keys.Nonces.KeyID())
	require.NoError(t, verify(nonce), "nonces that are out stay good")
	again, err := w.keys.Nonces.Mint(old, agentClaims(id, epoch))
	require.NoError(t, err)
	require.Equal(t, nonce, again, "what an intent recorded is minted again, byte by byte")

	fresh := w.mint(agentClaims(id, w.clock()))
	w.pass(keyring.Settle)
	w.mustStep(keyring.Nonces, keyring.StepFinish)
	require.NoError(t, verify(fresh))
	require.ErrorIs(t, verify(nonce), nstance.Denied)
	_, err = w.keys.Nonces.Mint(old, agentClaims(id, epoch))
	require.ErrorIs(t, err, nstance.NotFound)
}

func TestStepsOutOfOrder(t *testing.T) {
	const set = keyring.Workload
	conflict := func(t *testing.T, w *world, step keyring.Step, says string) {
		t.Helper()
		before := w.ring.Set(set)
		_, err := w.step(set, step)
		require.ErrorIs(t, err, nstance.Conflict)
		require.ErrorContains(t, err, says)
		require.Equal(t, before, w.ring.Set(set))
	}
	t.Run("each is idempotent", func(t *testing.T) {
		w := newWorld(t, nil)
		for _, step := range []keyring.Step{keyring.StepBegin, keyring.StepActivate, keyring.StepFinish} {
			first := w.mustStep(set, step)
			objects, puts := maps.Clone(w.vault.objects), w.vault.puts
			require.Equal(t, first, w.mustStep(set, step))
			require.Equal(t, objects, w.vault.objects)
			require.LessOrEqual(t, w.vault.puts, puts+1)
			w.pass(keyring.Settle)
		}
	})
	t.Run("activate waits until every server may have the key", func(t *testing.T) {
		w := newWorld(t, nil)
		conflict(t, w, keyring.StepActivate, "begin a rotation first")
		w.mustStep(set, keyring.StepBegin)
		w.pass(keyring.Settle - time.Second)
		conflict(t, w, keyring.StepActivate, "may not have read it before 2026-03-01T12:05:00Z")
		w.pass(time.Second)
		w.mustStep(set, keyring.StepActivate)
	})
	t.Run("finish waits for servers that may still sign", func(t *testing.T) {
		w := newWorld(t, nil)
		w.mustStep(set, keyring.StepBegin)
		conflict(t, w, keyring.StepFinish, "activate the next key, or abort")
		_, err := w.ring.Rotate(t.Context(), keyring.Rotation{Set: set, Step: keyring.StepFinish})
		require.ErrorIs(t, err, nstance.Conflict, "not even forced")
		w.pass(keyring.Settle)
		w.mustStep(set, keyring.StepActivate)
		conflict(t, w, keyring.StepFinish, "may sign with it until 2026-03-01T12:10:00Z")
		conflict(t, w, keyring.StepBegin, "finish the rotation under way")
		conflict(t, w, keyring.StepAbort, "has already replaced")
		_, err = w.ring.Rotate(t.Context(), keyring.Rotation{Set: set, Step: keyring.StepFinish})
		require.NoError(t, err, "unless forced")
		_, err = w.ring.Rotate(t.Context(), keyring.Rotation{Set: set, Step: keyring.StepFinish, Free: func(context.Context, keyring.KeyEntry) error {
			t.Error("there is no retired key to ask for")
			return nil
		}})
		require.NoError(t, err)
	})
	t.Run("finish waits for certificates of the key", func(t *testing.T) {
		w := newWorld(t, nil)
		w.mustStep(set, keyring.StepBegin)
		w.pass(keyring.Settle)
		w.mustStep(set, keyring.StepActivate)
		w.pass(keyring.Settle)
		_, err := w.ring.Rotate(t.Context(), keyring.Rotation{Set: set, Step: keyring.StepFinish, Free: func(_ context.Context, k keyring.KeyEntry) error {
			require.Equal(t, 1, k.Generation)
			return nstance.Errorf(nstance.Conflict, "three machines do")
		}})
		require.ErrorContains(t, err, "three machines do")
		require.Equal(t, "1:retired 2:current ", phases(w.ring.Set(set)))
	})
	t.Run("an aborted generation is not reused", func(t *testing.T) {
		w := newWorld(t, nil)
		w.mustStep(set, keyring.StepBegin)
		require.Equal(t, "1:current ", phases(w.mustStep(set, keyring.StepAbort)))
		objects := maps.Clone(w.vault.objects)
		require.Equal(t, "1:current ", phases(w.mustStep(set, keyring.StepAbort)))
		require.Equal(t, objects, w.vault.objects, "nothing more is destroyed")
		require.Equal(t, deletedKey, string(w.vault.objects["workload-ca.2.key"]))
		require.Equal(t, "1:current 3:next ", phases(w.mustStep(set, keyring.StepBegin)))
	})
	t.Run("a dry run changes nothing", func(t *testing.T) {
		w := newWorld(t, nil)
		before, puts := w.ring.Set(set), w.vault.puts
		s, err := w.ring.Rotate(t.Context(), keyring.Rotation{Set: set, Step: keyring.StepBegin, DryRun: true})
		require.NoError(t, err)
		require.Equal(t, "1:current 2:next ", phases(s))
		require.Equal(t, before, w.other().Set(set))
		require.Equal(t, puts, w.vault.puts)
	})
	t.Run("of an unknown set", func(t *testing.T) {
		w := newWorld(t, nil)
		puts := w.vault.puts
		_, err := w.step("encryption", keyring.StepBegin)
		require.ErrorIs(t, err, nstance.Invalid)
		require.Equal(t, puts, w.vault.puts)
		_, err = w.step(set, "end")
		require.ErrorIs(t, err, nstance.Invalid)
	})
}

func TestOperatorNoncesHoldTheirKey(t *testing.T) {
	w := newWorld(t, nil)
	until := epoch.Add(3 * time.Hour)
	require.NoError(t, w.ring.UseUntil(t.Context(), keyring.Nonces, "of another key", until))
	require.Zero(t, w.other().Set(keyring.Nonces).Keys[0].UsedUntil)
	require.NoError(t, w.ring.UseUntil(t.Context(), keyring.Nonces, w.keys.Nonces.KeyID(), until.Add(time.Millisecond).Local()))
	require.Equal(t, until, w.other().Set(keyring.Nonces).Keys[0].UsedUntil, "in whole seconds")
	require.NoError(t, w.ring.UseUntil(t.Context(), keyring.Nonces, w.keys.Nonces.KeyID(), epoch.Add(time.Hour)), "the latest counts")
	w.mustStep(keyring.Nonces, keyring.StepBegin)
	w.pass(keyring.Settle)
	w.mustStep(keyring.Nonces, keyring.StepActivate)
	w.pass(keyring.Settle)
	_, err := w.step(keyring.Nonces, keyring.StepFinish)
	require.ErrorIs(t, err, nstance.Conflict)
	require.ErrorContains(t, err, "valid until 2026-03-01T15:00:00Z")
	w.pass(3 * time.Hour)
	w.mustStep(keyring.Nonces, keyring.StepFinish)
}

// A server may die at any point of a step, with or without its last write having landed.
// Repeating the step completes it, and no process ever sees an incomplete key.
func TestRotationSurvivesCrashAtEveryCall(t *testing.T) {
	steps := []keyring.Step{keyring.StepBegin, keyring.StepActivate, keyring.StepFinish}
	for _, set := range []string{keyring.Identity, keyring.Nonces} {
		for _, land := range []bool{false, true} {
			for n, step := range steps {
				t.Run(fmt.Sprintf("%s of %s, landed %v", step, set, land), func(t *testing.T) {
					died := 0
					for at := 1; ; at++ {
						w := newWorld(t, nil)
						for _, before := range steps[:n] {
							w.mustStep(set, before)
							w.pass(keyring.Settle)
						}
						w.vault.calls, w.vault.dieAt, w.vault.land = 0, at, land
						_, err := w.step(set, step)
						if err == nil {
							require.Less(t, w.vault.calls, at)
							break
						}
						died++
						w.vault.dieAt = 0
						next := w.other() // possible for every process at any time
						s, err := next.Rotate(t.Context(), keyring.Rotation{Set: set, Step: step, Free: noDependents})
						require.NoError(t, err)
						require.Equal(t, []string{"1:current 2:next ", "1:retired 2:current ", "2:current "}[n], phases(s))
						require.Empty(t, s.Gone)
						if step == keyring.StepFinish {
							require.Equal(t, deletedKey, string(w.vault.objects[map[string]string{keyring.Nonces: "nonce.key", keyring.Identity: "identity-ca.key"}[set]]))
						}
						_, err = w.ring.Refresh(t.Context())
						require.NoError(t, err)
						require.Equal(t, next.Set(set), w.ring.Set(set), "the one that died, had it lived")
						require.Equal(t, next.Keys().Identity.Issuers(), w.keys.Identity.Issuers())
					}
					require.GreaterOrEqual(t, died, 2)
				})
			}
		}
	}
}

func TestRotationByEightServers(t *testing.T) {
	w := newWorld(t, nil)
	for _, step := range []keyring.Step{keyring.StepBegin, keyring.StepActivate, keyring.StepFinish} {
		var wg sync.WaitGroup
		var rings [8]*keyring.Keyring
		var errs [8]error
		for i := range rings {
			rings[i] = w.other()
		}
		for i, ring := range rings {
			wg.Go(func() {
				_, errs[i] = ring.Rotate(t.Context(), keyring.Rotation{Set: keyring.Identity, Step: step, Free: noDependents})
			})
		}
		wg.Wait()
		for i, ring := range rings {
			require.NoError(t, errs[i], "%s", step)
			_, err := ring.Refresh(t.Context())
			require.NoError(t, err)
			require.Equal(t, rings[0].Set(keyring.Identity), ring.Set(keyring.Identity))
			require.Equal(t, rings[0].Keys().Identity.Issuers(), ring.Keys().Identity.Issuers())
		}
		w.pass(keyring.Settle)
	}
	require.Equal(t, "2:current ", phases(w.other().Set(keyring.Identity)))
}

func TestRefresh(t *testing.T) {
	t.Run("sees changes of other processes", func(t *testing.T) {
		w := newWorld(t, nil)
		standby := w.other()
		pool := func() *x509.CertPool { return standby.Keys().Identity.Pool() }
		before := pool()
		w.mustStep(keyring.Identity, keyring.StepBegin)
		changed, err := standby.Refresh(t.Context())
		require.NoError(t, err)
		require.True(t, changed)
		require.Equal(t, w.keys.Identity.Issuers(), standby.Keys().Identity.Issuers())
		require.False(t, before.Equal(pool()))
	})
	t.Run("costs one read without a change", func(t *testing.T) {
		w := newWorld(t, nil)
		w.vault.calls = 0
		w.pass(time.Minute)
		changed, err := w.ring.Refresh(t.Context())
		require.NoError(t, err)
		require.False(t, changed)
		require.Equal(t, 1, w.vault.calls)
		require.Equal(t, w.clock(), w.ring.ReadAt())
	})
	t.Run("an error is not a change", func(t *testing.T) {
		for name, corrupt := range map[string]func(*vault){
			"unreadable":        func(v *vault) { v.failing = "catalogue" },
			"gone":              func(v *vault) { v.keys = keyring.Catalogue{} },
			"a new key is gone": func(v *vault) { delete(v.objects, "identity-ca.2.key") },
			"a new key is another": func(v *vault) {
				v.objects["identity-ca.2.key"], v.objects["identity-ca.2.crt"] = v.objects["identity-ca.key"], v.objects["identity-ca.crt"]
			},
			"two are current": func(v *vault) {
				s := v.keys.Sets[keyring.Identity]
				keys := []keyring.KeyEntry{s.Keys[0], s.Keys[1]}
				keys[1].Phase = keyring.PhaseCurrent
				v.keys.Sets = maps.Clone(v.keys.Sets)
				v.keys.Sets[keyring.Identity] = keyring.KeySet{Last: 2, Keys: keys}
			},
		} {
			t.Run(name, func(t *testing.T) {
				w := newWorld(t, nil)
				standby := w.other()
				before, at := standby.Keys().Identity.Issuers(), standby.ReadAt()
				w.mustStep(keyring.Identity, keyring.StepBegin)
				corrupt(w.vault)
				w.pass(time.Minute)
				_, err := standby.Refresh(t.Context())
				if name == "unreadable" {
					require.ErrorIs(t, err, nstance.Unavailable)
				} else {
					require.ErrorIs(t, err, nstance.Invalid)
				}
				if name == "gone" {
					require.ErrorContains(t, err, "restore it from a backup")
				}
				require.Equal(t, before, standby.Keys().Identity.Issuers())
				require.Equal(t, at, standby.ReadAt())
			})
		}
	})
}

func TestNextStepAt(t *testing.T) {
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, tc := range map[string]struct {
		key  keyring.KeyEntry
		want time.Time
	}{
		"a current key waits for another one":     {keyring.KeyEntry{Phase: keyring.PhaseCurrent, Since: since}, time.Time{}},
		"a next key settles":                      {keyring.KeyEntry{Phase: keyring.PhaseNext, Since: since}, since.Add(keyring.Settle)},
		"a retired key outlasts what it signed":   {keyring.KeyEntry{Phase: keyring.PhaseRetired, Since: since, UsedUntil: since.Add(time.Hour)}, since.Add(time.Hour)},
		"a retired key settles, even if not used": {keyring.KeyEntry{Phase: keyring.PhaseRetired, Since: since, UsedUntil: since}, since.Add(keyring.Settle)},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tc.want, tc.key.NextStepAt()) })
	}
}

// TestStepsOfTwoProcesses: a step that was decided on what another process has changed meanwhile
// is decided again.
func TestStepsOfTwoProcesses(t *testing.T) {
	const set = keyring.Identity
	// overtaken returns a ring over the same vault; before happens ahead of its next writes.
	overtaken := func(w *world, before func()) *keyring.Keyring {
		v := &overtakenVault{vault: w.vault}
		ring, err := keyring.OpenKeyring(t.Context(), v, w.clock)
		require.NoError(t, err)
		v.before = before
		return ring
	}
	once := func(do func()) func() {
		var done bool
		return func() {
			if !done {
				done = true
				do()
			}
		}
	}
	t.Run("a key that has become current is not aborted", func(t *testing.T) {
		w := newWorld(t, nil)
		w.mustStep(set, keyring.StepBegin)
		w.pass(keyring.Settle)
		ring := overtaken(w, once(func() { w.mustStep(set, keyring.StepActivate) }))
		_, err := ring.Rotate(t.Context(), keyring.Rotation{Set: set, Step: keyring.StepAbort})
		require.ErrorIs(t, err, nstance.Conflict)
		require.ErrorContains(t, err, "has already replaced")
		require.Equal(t, "1:retired 2:current ", phases(w.other().Set(set)))
		require.NotEqual(t, deletedKey, string(w.vault.objects["identity-ca.2.key"]))
	})
	t.Run("a generation that was destroyed is not used", func(t *testing.T) {
		w := newWorld(t, nil)
		ring := overtaken(w, once(func() {
			w.mustStep(set, keyring.StepBegin)
			w.mustStep(set, keyring.StepAbort)
		}))
		s, err := ring.Rotate(t.Context(), keyring.Rotation{Set: set, Step: keyring.StepBegin})
		require.NoError(t, err)
		require.Equal(t, "1:current 3:next ", phases(s))
		require.Equal(t, "1:current 3:next ", phases(w.other().Set(set)))
	})
	t.Run("a change at every attempt is told", func(t *testing.T) {
		w := newWorld(t, nil)
		ring := overtaken(w, func() {
			w.mustStep(set, keyring.StepBegin)
			w.mustStep(set, keyring.StepAbort)
		})
		_, err := ring.Rotate(t.Context(), keyring.Rotation{Set: set, Step: keyring.StepBegin})
		require.ErrorIs(t, err, nstance.Conflict)
		require.ErrorContains(t, err, "begin of the identity keys: they were changed concurrently 5 times, repeat it")
	})
}

// TestStepReadsFirst: no step is decided on a catalogue or keys that cannot be read.
func TestStepReadsFirst(t *testing.T) {
	const set = keyring.Identity
	w := newWorld(t, nil)
	late := w.other()
	w.mustStep(set, keyring.StepBegin)
	w.pass(keyring.Settle)
	before := w.vault.keys
	activate := func() error {
		_, err := late.Rotate(t.Context(), keyring.Rotation{Set: set, Step: keyring.StepActivate})
		return err
	}
	w.vault.failing = "catalogue"
	require.ErrorIs(t, activate(), nstance.Unavailable)
	w.vault.failing = "identity-ca.2.key"
	require.ErrorIs(t, activate(), nstance.Unavailable)
	require.Equal(t, before, w.vault.keys)
	w.vault.failing = ""
	require.NoError(t, activate())
}

// TestKeyThatCannotBeRead: an object that does not answer is not one that is missing.
func TestKeyThatCannotBeRead(t *testing.T) {
	for name, set := range map[string]string{"nonce.2.key": keyring.Nonces, "identity-ca.2.key": keyring.Identity, "identity-ca.2.crt": keyring.Identity} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil)
			standby := w.other()
			w.mustStep(set, keyring.StepBegin)
			w.vault.failing = name
			_, err := standby.Refresh(t.Context())
			require.ErrorIs(t, err, nstance.Unavailable)
			require.ErrorContains(t, err, name)
			w.vault.failing = ""
			kept := w.vault.objects[name]
			delete(w.vault.objects, name)
			_, err = standby.Refresh(t.Context())
			require.ErrorIs(t, err, nstance.Invalid)
			require.ErrorContains(t, err, name+" is missing: restore it from a backup")
			w.vault.objects[name] = kept
			changed, err := standby.Refresh(t.Context())
			require.NoError(t, err)
			require.True(t, changed)
		})
	}
}

// A failingVault refuses some writes.
type failingVault struct {
	*vault
	puts, destroys error
}

func (f *failingVault) PutIfAbsent(ctx context.Context, name string, data []byte) error {
	if f.puts != nil {
		return f.puts
	}
	return f.vault.PutIfAbsent(ctx, name, data)
}

func (f *failingVault) Destroy(ctx context.Context, name string) error {
	if f.destroys != nil {
		return f.destroys
	}
	return f.vault.Destroy(ctx, name)
}

// TestStepsWithoutTheirWrites: what a step could not write is told, and done when it is repeated.
func TestStepsWithoutTheirWrites(t *testing.T) {
	const set = keyring.Workload
	denied := nstance.Errorf(nstance.Denied, "no right to write")
	open := func(w *world) (*keyring.Keyring, *failingVault) {
		v := &failingVault{vault: w.vault}
		ring, err := keyring.OpenKeyring(t.Context(), v, w.clock)
		require.NoError(t, err)
		return ring, v
	}
	t.Run("a key that cannot be stored", func(t *testing.T) {
		w := newWorld(t, nil)
		ring, v := open(w)
		v.puts = denied
		_, err := ring.Rotate(t.Context(), keyring.Rotation{Set: set, Step: keyring.StepBegin})
		require.ErrorIs(t, err, nstance.Denied)
		require.Equal(t, "1:current ", phases(w.other().Set(set)))
	})
	t.Run("a key that cannot be destroyed", func(t *testing.T) {
		w := newWorld(t, nil)
		ring, v := open(w)
		abort := keyring.Rotation{Set: set, Step: keyring.StepAbort}
		w.mustStep(set, keyring.StepBegin)
		v.destroys = denied
		_, err := ring.Rotate(t.Context(), abort)
		require.ErrorIs(t, err, nstance.Denied)
		require.ErrorContains(t, err, "abort is done, but a private key has not been destroyed, repeat the step: workload-ca.2.key")
		require.Equal(t, []int{2}, w.other().Set(set).Gone)
		v.destroys = nil
		s, err := ring.Rotate(t.Context(), abort)
		require.NoError(t, err)
		require.Nil(t, s.Gone, "as it is read again: that is no change")
		require.Equal(t, deletedKey, string(w.vault.objects["workload-ca.2.key"]))
	})
}
