// Package sim plays a shard's life from a seed, in virtual time: several
// servers that compete for the lease, a store and a cloud that delay, lose and
// refuse, an agent on every machine, groups of two tenants that come and go,
// people who order instances, freeze, preserve, pause and roll back, and a driver
// that crashes, cuts off, freezes and reclaims. What must hold always is checked
// at every call that could break it, and what must hold in the end when the
// faults have stopped. What one feature promises stands in its own file: what is
// done to it, what is checked, and a drill.
//
// The servers are the real lease, reconciler and drain coordinator. Only the
// wire between agents and servers is left out.
//
// A run happens inside a testing/synctest bubble. The seed decides every fault
// and its time; the order of goroutines within one virtual instant is the
// runtime's. Package exact makes that the seed's too: make sim builds with it,
// and then a seed replays exactly.
package sim
