package admin

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/duration"
	"github.com/nstance-go/nstance/internal/wire"
)

func instancePreserveCommand(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use: "preserve ID", Short: "Keep an instance for inspection, while its group replaces it",
		Long: `Keep an instance for inspection. It does not count any more, so its group replaces
it, and it is not drained or deleted before its time is over; then it is drained and
deleted. Only the cloud may still reclaim it. --end ends the time now.`,
		Args: instanceArgument,
	}
	r, out := newRemote(cmd, env), newOutput(cmd)
	var keep time.Duration
	var end, yes, dryRun bool
	cmd.Flags().Var(duration.NewFlag(&keep, 24*time.Hour), "for", "how long, at most 30d")
	cmd.Flags().BoolVar(&end, "end", false, "end it instead: drain and delete the instance")
	yesFlag(cmd, &yes)
	dryRunFlag(cmd, &dryRun)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, how := cmd.Context(), "has it replaced and keeps it for "+keep.String()
		if end {
			keep, how = 0, "drains it, then deletes it"
		} else if keep <= 0 {
			return nstance.FieldError("--for", "use more than 0, or --end", "is %s", keep)
		}
		return r.withInstance(ctx, args[0], func(c *client, id nstance.InstanceID) error {
			s, err := c.instanceHistory(ctx, id)
			if err != nil {
				return seek(err)
			}
			if err := confirm(cmd, yes || dryRun, fmt.Sprintf("instance %s of group %s is %s; this %s", id, wire.GroupKeyOf(s.GetInstance()), s.GetInstance().GetState(), how)); err != nil {
				return err
			}
			resp, err := c.PreserveInstance(ctx, &apiv1.PreserveInstanceRequest{Id: string(id), Duration: durationpb.New(keep), DryRun: dryRun})
			return out.result(document{resp}, seek(err), func(t *table) {
				switch {
				case dryRun:
					t.say("%s: would be accepted", id)
				case end:
					t.say("%s: it is drained, then deleted", id)
				default:
					t.say("%s: kept until %s", id, stampOf(resp.GetInstance().GetPreservedUntil()))
				}
			})
		})
	}
	return cmd
}
