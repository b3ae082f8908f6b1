package admin

import (
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/nstance-go/nstance/internal/version"
)

// A Version is what version prints.
type Version struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"` // of the sources, where the build knows it
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func versionCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "version", Short: "Print the version", Args: arguments()}
	out := newOutput(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		v := Version{Version: version.Software, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
		if info, ok := debug.ReadBuildInfo(); ok {
			for _, s := range info.Settings {
				if s.Key == "vcs.revision" {
					v.Revision = s.Value
				}
			}
		}
		return out.print(v, func(t *table) { t.say("nstance-admin %s %s %s %s", v.Version, v.Revision, v.Go, v.Platform) })
	}
	return cmd
}
