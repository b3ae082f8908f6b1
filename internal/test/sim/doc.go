// Package sim simulates a shard from a seed, in virtual time: several servers that
// compete for the lease, a store and a cloud that delay, lose and refuse calls, an agent
// on every machine, changing groups of two tenants, operators who request instances,
// freeze, preserve, avoid pools, pause and roll back, and a driver that crashes, partitions, freezes
// and reclaims. Invariants are checked at every call that could break them, and the
// final state after the faults have stopped. Each feature has a file with its faults,
// its checks and a drill.
//
// The servers are the real lease, reconciler and drain coordinator. Only the
// wire between agents and servers is left out.
//
// A run happens inside a testing/synctest bubble. The seed decides every fault
// and its time; the order of goroutines within one virtual instant is the
// runtime's. Package exact makes that the seed's too: make sim builds with it,
// and then a seed replays exactly.
package sim
