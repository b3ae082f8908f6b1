package admin

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/config"
)

// completeTimeout is how long a shell waits at most for names.
const completeTimeout = 2 * time.Second

// complete has a shell offer the names of groups, instances, templates and shards
// wherever a command takes one.
func complete(cmd *cobra.Command, env environment, open openStore) {
	for _, sub := range cmd.Commands() {
		complete(sub, env, open)
	}
	if cmd.Flags().Lookup("server") != nil && cmd.ValidArgsFunction == nil {
		switch _, argument, _ := strings.Cut(strings.ReplaceAll(cmd.Use, "[", ""), " "); {
		case strings.HasPrefix(argument, "GROUP"):
			cmd.ValidArgsFunction = first(completeNames(env, (*client).groupNames))
		case strings.HasPrefix(argument, "ID"), strings.HasPrefix(argument, "INSTANCE"):
			cmd.ValidArgsFunction = first(completeNames(env, (*client).instanceNames))
		}
		for flag, names := range map[string]func(*client, context.Context) ([]string, error){
			"group": (*client).groupNames, "instance": (*client).instanceNames, "template": (*client).templateNames,
		} {
			if cmd.Flags().Lookup(flag) != nil {
				_ = cmd.RegisterFlagCompletionFunc(flag, completeNames(env, names)) // it fails for one that has another
			}
		}
	}
	if cmd.Flags().Lookup("storage") != nil && cmd.Flags().Lookup("shard") != nil {
		_ = cmd.RegisterFlagCompletionFunc("shard", shardNames(open))
	}
}

// first offers names for the first argument only.
func first(names cobra.CompletionFunc) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return names(cmd, args, begun)
	}
}

// completeNames asks the server that the command would ask. Errors are not shown to the shell.
func completeNames(env environment, ask func(*client, context.Context) ([]string, error)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, begun string) (out []cobra.Completion, _ cobra.ShellCompDirective) {
		r := &remote{env: env, stderr: stderrOf(cmd), timeout: completeTimeout}
		r.dir, _ = cmd.Flags().GetString("identity")
		r.servers, _ = cmd.Flags().GetStringSlice("server")
		ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
		defer cancel()
		_ = r.with(ctx, func(c *client) error {
			names, err := ask(c, ctx)
			out = beginning(names, begun)
			return err
		})
		return out, cobra.ShellCompDirectiveNoFileComp
	}
}

func beginning(names []string, begun string) (out []cobra.Completion) {
	for _, name := range names {
		if strings.HasPrefix(name, begun) {
			out = append(out, name)
		}
	}
	return out
}

func (c *client) groupNames(ctx context.Context) ([]string, error) {
	groups, err := c.groups(ctx, "")
	names := map[string]bool{}
	for _, g := range groups {
		names[g.GetGroup()] = true
	}
	return slices.Sorted(maps.Keys(names)), err
}

func (c *client) instanceNames(ctx context.Context) (names []string, err error) {
	list, err := c.instances(ctx, "", "")
	for _, i := range list {
		names = append(names, i.GetId())
	}
	return names, err
}

// templateNames returns those of the configuration or, for a caller that may not
// see it, those that groups are made from.
func (c *client) templateNames(ctx context.Context) ([]string, error) {
	names := map[string]bool{}
	groups, err := c.groups(ctx, "")
	for _, g := range groups {
		names[g.GetTemplate()] = true
	}
	if resp, cerr := c.GetConfig(ctx, &apiv1.GetConfigRequest{}); cerr == nil {
		if conf, cerr := config.Parse(resp.GetName(), resp.GetContent()); cerr == nil {
			for name := range conf.Templates {
				names[string(name)] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names)), err
}

func shardNames(open openStore) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, begun string) (out []cobra.Completion, _ cobra.ShellCompDirective) {
		d := storageAccess{opener: open}
		d.url, _ = cmd.Flags().GetString("storage")
		ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
		defer cancel()
		if store, err := d.read(ctx); err == nil {
			shards, _ := shardsIn(ctx, store)
			for _, s := range shards {
				out = append(out, beginning([]string{string(s)}, begun)...)
			}
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
}
