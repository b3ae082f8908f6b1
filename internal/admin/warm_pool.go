package admin

import (
	"cmp"
	"time"

	"github.com/spf13/cobra"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/duration"
)

// month is how long prices for a month last.
const month = 730 * time.Hour

// A PoolEstimate is what warm-pool estimate prints. Costs are for a month, in the currency of
// the given prices.
type PoolEstimate struct {
	Size             int     `json:"size"`
	Mode             string  `json:"mode"`
	Waiting          float64 `json:"waiting"`           // for disks and memory, or for machines that run
	Bridging         float64 `json:"bridging"`          // for machines that run in place of lost ones, or are made anew
	Total            float64 `json:"total"`             // of both
	RunningSpares    float64 `json:"running_spares"`    // what as many machines would cost that always run
	Reclaims         float64 `json:"reclaims"`          // in a month
	MissingWithout   float64 `json:"missing_without"`   // machine hours without capacity in a month, without the pool
	MissingWith      float64 `json:"missing_with"`      // with it, if no more machines are lost at once than it has
	CostOfHourLess   float64 `json:"cost_of_hour_less"` // Total for each hour less that capacity is missing; 0: none is less
	GapWithout       string  `json:"gap_without"`       // of one loss
	GapWith          string  `json:"gap_with"`
	LostWithinNotice bool    `json:"lost_within_notice"` // a new machine is ready before the old one is gone
}

// poolPrices are the flags of the estimate.
type poolPrices struct {
	size                                 int
	mode                                 string
	price, disk, memory                  float64
	diskPrice, memoryPrice, reclaims     float64
	boot, wake, drain, maxAge, warnedFor time.Duration
}

func warmPoolCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "warm-pool", Short: "Stand-by machines: what a pool of them costs, and what it saves"}
	cmd.AddCommand(warmPoolEstimateCommand())
	return cmd
}

func warmPoolEstimateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "estimate", Short: "Estimate what a warm pool costs in a month, and how much capacity it saves",
		Long: "Estimate what a warm pool costs in a month, and how long capacity is missing without it and with it. It asks no\n" +
			"server: prices are those of your cloud's price list, and how often machines are reclaimed is in interruption rates.",
		Args: arguments(),
	}
	var in poolPrices
	cmd.Flags().IntVar(&in.size, "size", 1, "stand-by machines")
	choice(cmd, &in.mode, "mode", "", "how they wait", string(nstance.ParkStopped), string(nstance.ParkHibernated), string(nstance.ParkRunning))
	cmd.Flags().Float64Var(&in.price, "price", 0, "on-demand price of a machine for an hour")
	cmd.Flags().Float64Var(&in.disk, "disk", 0, "GB of disk of a machine, which is paid for while it is parked")
	cmd.Flags().Float64Var(&in.diskPrice, "disk-price", 0, "price of a GB of disk for a month")
	cmd.Flags().Float64Var(&in.memory, "memory", 0, "with --mode hibernated: GB of memory that are stored beside the disk (Compute Engine); 0 where they are on the disk")
	cmd.Flags().Float64Var(&in.memoryPrice, "memory-price", 0, "price of a stored GB of memory for a month")
	cmd.Flags().Float64Var(&in.reclaims, "reclaims", 0, "machines of the group that are lost in a month")
	cmd.Flags().Var(duration.NewFlag(&in.boot, 0), "boot", "from the request for a new machine until it is ready")
	cmd.Flags().Var(duration.NewFlag(&in.wake, 0), "wake", "from waking a stand-by machine until it is ready")
	cmd.Flags().Var(duration.NewFlag(&in.drain, 0), "drain", "how long a machine is drained before it is parked again")
	cmd.Flags().Var(duration.NewFlag(&in.maxAge, 0), "max-age", "age from which a stand-by machine is made anew; 0: never")
	cmd.Flags().Var(duration.NewFlag(&in.warnedFor, 0), "notice", "how long before the loss the cloud announces it")
	out := newOutput(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		if err := in.check(); err != nil {
			return err
		}
		e := in.estimate()
		return out.print(e, func(t *table) { writePoolEstimate(t, e) })
	}
	return cmd
}

// check refuses numbers that make no sense.
func (in *poolPrices) check() error {
	for _, n := range []struct {
		flag  string
		value float64
	}{
		{"--size", float64(in.size)},
		{"--price", in.price}, {"--disk", in.disk}, {"--disk-price", in.diskPrice}, {"--memory", in.memory}, {"--memory-price", in.memoryPrice},
		{"--reclaims", in.reclaims},
	} {
		if !(n.value >= 0 && n.value < 1e9) {
			return nstance.FieldError(n.flag, "use 0 or more", "%g is out of range", n.value)
		}
	}
	switch {
	case in.size == 0:
		return nstance.FieldError("--size", "use 1 or more", "is 0")
	case in.price == 0:
		return nstance.FieldError("--price", "say what a machine costs an hour, such as 0.096", "is missing")
	case in.boot <= 0:
		return nstance.FieldError("--boot", "say how long a new machine takes, such as 3m", "is missing")
	case in.wake <= 0 && in.mode != string(nstance.ParkRunning):
		return nstance.FieldError("--wake", "say how long waking takes, such as 20s", "is missing")
	case in.memory > 0 && in.mode != string(nstance.ParkHibernated):
		return nstance.FieldError("--memory", "add --mode hibernated", "is stored for hibernated machines only")
	}
	return nil
}

func (in *poolPrices) estimate() PoolEstimate {
	size := float64(in.size)
	e := PoolEstimate{Size: in.size, Mode: in.mode, Reclaims: in.reclaims, RunningSpares: size * (in.price*month.Hours() + in.disk*in.diskPrice)}
	if in.mode == string(nstance.ParkRunning) {
		e.Waiting = e.RunningSpares
	} else {
		e.Waiting = size * (in.disk*in.diskPrice + in.memory*in.memoryPrice)
		e.Bridging = in.reclaims * (in.boot + in.drain).Hours() * in.price
	}
	if in.maxAge > 0 {
		e.Bridging += size * month.Hours() / in.maxAge.Hours() * (in.boot + in.drain).Hours() * in.price
	}
	e.Total = e.Waiting + e.Bridging
	without, with := max(0, in.boot-in.warnedFor), max(0, in.wake-in.warnedFor)
	e.GapWithout, e.GapWith, e.LostWithinNotice = without.String(), with.String(), without == 0
	e.MissingWithout, e.MissingWith = in.reclaims*without.Hours(), in.reclaims*with.Hours()
	if saved := e.MissingWithout - e.MissingWith; saved > 0 {
		e.CostOfHourLess = e.Total / saved
	}
	return e
}

func writePoolEstimate(t *table, e PoolEstimate) {
	t.say("%d stand-by machines, %s, for a month of 730 h", e.Size, e.Mode)
	t.row("Waiting:", decimal(e.Waiting, 2))
	t.row("Bridging and renewal:", decimal(e.Bridging, 2))
	t.row("Total:", decimal(e.Total, 2))
	t.row("As many machines that always run:", decimal(e.RunningSpares, 2))
	t.row("Capacity is missing after one loss:", e.GapWithout+" without, "+e.GapWith+" with the pool")
	t.row("In a month:", decimal(e.MissingWithout, 2)+" h without, "+decimal(e.MissingWith, 2)+" h with the pool")
	hour := "none is saved"
	switch {
	case e.LostWithinNotice:
		hour = "none is saved: a new machine is ready before the old one is gone"
	case e.CostOfHourLess > 0:
		hour = decimal(e.CostOfHourLess, 2)
	}
	t.row("Each hour less costs:", cmp.Or(hour, "-"))
}
