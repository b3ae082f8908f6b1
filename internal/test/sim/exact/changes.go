package exact

// file is a file that is built in a changed form.
type file struct {
	path    string // below GOROOT/src, or below the module
	own     bool   // of this module
	changes []change
	more    string // added at the end
}

// change replaces text that occurs exactly once.
type change struct{ old, new string }

// files are the changes, in the form of Go 1.26.
var files = []file{
	{
		path: "runtime/rand.go",
		changes: []change{
			// Hash keys and the heap's base are the same in every process.
			{"globalRand.state.Init(*seed)\n", "*seed = [32]byte{1}\n\tglobalRand.state.Init(*seed)\n"},
			// Order of maps, math/rand and hash/maphash within a bubble.
			{"\tmp := getg().m\n\tc := &mp.chacha8\n", "\tif exactRand.on && getg().bubble != nil {\n\t\treturn exactNext()\n\t}\n\tmp := getg().m\n\tc := &mp.chacha8\n"},
		},
		more: `
// exactRand is the state of every random choice within a bubble.
var exactRand struct {
	on    bool
	state uint64
}

// exactStart seeds it from the environment, if set.
func exactStart() {
	text, seed := gogetenv("SIM_SCHEDULE"), uint64(0)
	for _, digit := range []byte(text) {
		seed = seed*10 + uint64(digit-'0')
	}
	exactRand.on, exactRand.state = text != "", seed
}

// exactNext is splitmix64.
//
//go:nosplit
func exactNext() uint64 {
	exactRand.state += 0x9e3779b97f4a7c15
	z := exactRand.state
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// exactCheap is cheaprand for choices that a bubble can see.
func exactCheap() uint32 {
	if exactRand.on {
		return uint32(exactNext())
	}
	return cheaprand()
}
`,
	},
	{
		path: "runtime/synctest.go",
		changes: []change{
			{"\tgp.bubble = bubble\n\tdefer func() {\n\t\tgp.bubble = nil\n\t}()\n", "\tgp.bubble = bubble\n\texactStart()\n\tdefer func() {\n\t\tgp.bubble = nil\n\t\texactRand.on = false\n\t}()\n"},
		},
	},
	{
		path: "runtime/select.go",
		changes: []change{
			// Which of several ready cases.
			{"j := cheaprandn(uint32(norder + 1))", "j := uint32((uint64(exactCheap()) * uint64(norder+1)) >> 32)"},
		},
	},
	{
		path: "runtime/time.go",
		changes: []change{
			// Order of timers that fire at one instant.
			{"t.rand = cheaprand()", "t.rand = exactCheap()"},
		},
	},
	{
		path: "runtime/proc.go",
		changes: []change{
			// No preemption because of real time.
			{"const forcePreemptNS = 10 * 1000 * 1000 // 10ms", "const forcePreemptNS = 1 << 60"},
			{"func runqgrab(pp *p, batch *[256]guintptr,", "func runqgrab(pp *p, batch *[2048]guintptr,"},
			// The tick counts the runtime's own goroutines too.
			{"if pp.schedtick%61 == 0 && !sched.runq.empty() {", "if !exactRand.on && pp.schedtick%61 == 0 && !sched.runq.empty() {"},
			// What has just become ready goes first only sometimes, so that
			// another seed tries another order.
			{"if randomizeScheduler && next && randn(2) == 0 {", "if next && exactRand.on && gp.bubble != nil && exactNext()&1 == 0 {"},
		},
	},
	{
		path: "runtime/runtime2.go",
		changes: []change{
			// Room for all that a bubble wakes at once: when the queue overflows
			// depends on the runtime's own goroutines in it.
			{"runq     [256]guintptr", "runq     [2048]guintptr"},
		},
	},
	{
		path: "runtime/iface.go",
		changes: []change{
			// When these caches grow, and move what is allocated next, depends on
			// chance outside the bubble too.
			{"\tif cheaprand()&1023 != 0 {\n\t\t// Only bother updating the cache ~1 in 1000 times.\n\t\treturn tab\n", "\tif exactRand.on || cheaprand()&1023 != 0 {\n\t\treturn tab\n"},
			{"\tif cheaprand()&1023 != 0 {\n\t\t// Only bother updating the cache ~1 in 1000 times.\n\t\t// This ensures", "\tif exactRand.on || cheaprand()&1023 != 0 {\n\t\t// This ensures"},
		},
	},
	{
		path: "context/context.go",
		changes: []change{
			// Children are cancelled in the order of their making, not in that of
			// a map of addresses.
			{"\t\"internal/reflectlite\"\n", "\t\"internal/reflectlite\"\n\t\"slices\"\n"},
			{"\tchildren map[canceler]struct{} // set", "\tborn     uint64\n\tchildren map[canceler]uint64 // set"},
			{"p.children = make(map[canceler]struct{})", "p.children = make(map[canceler]uint64)"},
			{"p.children[child] = struct{}{}", "p.born++\n\t\t\tp.children[child] = p.born"},
			{"\tfor child := range c.children {\n", "\tordered := make([]canceler, 0, len(c.children))\n\tfor child := range c.children {\n\t\tordered = append(ordered, child)\n\t}\n\tslices.SortFunc(ordered, func(a, b canceler) int { return int(c.children[a]) - int(c.children[b]) })\n\tfor _, child := range ordered {\n"},
		},
	},
	{
		path: "internal/sync/mutex.go",
		changes: []change{
			// No different order of waiters for a mutex because of real time.
			{"starvationThresholdNs = 1e6", "starvationThresholdNs = 1 << 62"},
		},
	},
	{
		path: "internal/test/sim/cmd/exact.go", own: true,
		changes: []change{{"const exact = false", "const exact = true"}},
	},
}
