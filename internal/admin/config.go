package admin

import (
	"bytes"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/config"
)

func configCommand(env environment, open openStore) *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "The configuration that the server runs with"}
	cmd.AddCommand(configStatusCommand(env), configShowCommand(env), configRefreshCommand(env), configConfirmCommand(env), configValidateCommand(), configPutCommand(open))
	return cmd
}

func configStatusCommand(env environment) *cobra.Command {
	cmd := &cobra.Command{Use: "status", Short: "Show which configuration is in force", Args: arguments()}
	r, out := newRemote(cmd, env), newOutput(cmd)
	cmd.RunE = r.run(func(c *client, _ []string) error {
		resp, err := c.GetConfigStatus(cmd.Context(), &apiv1.GetConfigStatusRequest{})
		return out.result(document{resp}, err, func(t *table) { writeConfig(t, resp) })
	})
	return cmd
}

func writeConfig(t *table, s *apiv1.GetConfigStatusResponse) {
	t.row("In force:", s.GetDigest())
	t.row("Since:", t.since("", s.GetLoadedAt()))
	if s.GetRejectedError() != "" {
		t.row("Rejected:", t.since("", s.GetRejectedAt()))
		t.row("Because:", s.GetRejectedError())
	}
	if s.GetHeldDigest() != "" {
		t.row("Held:", s.GetHeldDigest())
		t.row("Since:", t.since("", s.GetHeldAt()))
		t.row("Because:", s.GetHeldReason())
	}
}

func configRefreshCommand(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use: "refresh", Short: "Reload the server's configuration",
		Long: "Reload the server's configuration. A configuration that it refuses changes nothing. One\nthat would change more than shard.max_change permits is held: see config confirm.\nWith --dry-run it only reads and checks.",
		Args: arguments(),
	}
	var dryRun bool
	dryRunFlag(cmd, &dryRun)
	r, out := newRemote(cmd, env), newOutput(cmd)
	cmd.RunE = r.run(func(c *client, _ []string) error {
		resp, err := c.RefreshConfig(cmd.Context(), &apiv1.RefreshConfigRequest{DryRun: dryRun})
		return out.result(document{resp}, err, func(t *table) {
			switch {
			case !resp.GetChanged():
				t.say("configuration %s is in force already", resp.GetDigest())
			case dryRun:
				t.say("configuration %s would be in force", resp.GetDigest())
			default:
				t.say("configuration %s is in force now", resp.GetDigest())
			}
		})
	})
	return cmd
}

func configConfirmCommand(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use: "confirm DIGEST", Short: "Confirm a held configuration",
		Long: `Put a held configuration in force. It is held because it would change more than
shard.max_change permits at once. DIGEST is its digest in config status and
config refresh, or the first 8 digits or more. Newer configurations stay
unconfirmed.`,
		Args: arguments("DIGEST"),
	}
	r, out := newRemote(cmd, env), newOutput(cmd)
	var yes, dryRun bool
	yesFlag(cmd, &yes)
	dryRunFlag(cmd, &dryRun)
	cmd.RunE = r.run(func(c *client, args []string) error {
		ctx := cmd.Context()
		status, err := c.GetConfigStatus(ctx, &apiv1.GetConfigStatusRequest{})
		if err != nil {
			return err
		}
		held := status.GetHeldDigest()
		if held == "" || len(args[0]) < shortDigest || !strings.HasPrefix(held, args[0]) {
			return fault(nstance.Conflict, nil, "see nstance-admin config status", fmt.Sprintf("no configuration %.64s is held", args[0]))
		}
		if err := confirm(cmd, yes || dryRun, "The configuration takes effect: "+status.GetHeldReason()); err != nil {
			return err
		}
		resp, err := c.ConfirmConfig(ctx, &apiv1.ConfirmConfigRequest{Digest: held, DryRun: dryRun})
		return out.result(document{resp}, err, func(t *table) {
			if dryRun {
				t.say("configuration %s would be in force: %s", held, status.GetHeldReason())
				return
			}
			t.say("configuration %s is in force now", held)
		})
	})
	return cmd
}

// shortDigest is how many digits of a digest name a configuration.
const shortDigest = 8

// A ConfigValidation is what config validate prints.
type ConfigValidation struct {
	File   string          `json:"file"`
	Digest string          `json:"digest"`
	Shard  nstance.ShardID `json:"shard"`
	Groups int             `json:"groups"`
}

// readConfiguration reads and parses a file that the command line names.
func readConfiguration(path string) (*config.Config, []byte, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, nstance.FieldError("FILE", "name a file that can be read", "%v", err)
	}
	conf, err := config.Parse(path, data)
	return conf, data, err
}

func configValidateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "validate FILE", Short: "Check a configuration without using it",
		Long: `Check a configuration without using it, and without calling a server or a cloud.
For the effect of a change on machines, see plan. nstance-server validate also
checks what only the provider understands, such as its arguments.`,
		Args: arguments("FILE"),
	}
	out := newOutput(cmd)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		conf, _, err := readConfiguration(args[0])
		if err != nil {
			return err
		}
		s := ConfigValidation{File: args[0], Digest: conf.Digest(), Shard: conf.Shard.ID, Groups: len(conf.Groups())}
		return out.print(s, func(t *table) { t.say("%s: ok, shard %s with %d groups", s.File, s.Shard, s.Groups) })
	}
	return cmd
}

func configShowCommand(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use: "show", Short: "Show the configuration in force",
		Long: "Show the configuration in force, as it was written. Only administrators may see it.", Args: arguments(),
	}
	r, out := newRemote(cmd, env), newOutput(cmd)
	cmd.RunE = r.run(func(c *client, _ []string) error {
		resp, err := c.GetConfig(cmd.Context(), &apiv1.GetConfigRequest{})
		if err != nil {
			return err
		}
		if out.form == formTable {
			return out.write(append(bytes.TrimRight(resp.GetContent(), "\n"), '\n'))
		}
		return out.print(document{resp}, nil)
	})
	return cmd
}
