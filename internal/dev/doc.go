// Package dev is single-machine mode: a whole shard in one process tree, for a
// first look, for demonstrations and for tests that shall use the real thing.
//
// [Run] starts a shard server over a directory and the cloud of package
// provider/local, whose machines are child processes that run the real agent
// ([Machine]). There is nothing to set up: the authorities are made on the
// spot, everything listens on loopback only, root is not needed. When Run
// returns, no process is left and no temporary directory; when its process is
// killed instead, the machines notice and exit.
//
// A scenario runs one case and fails unless all expected steps happened:
//
//	interrupt  one spot member is reclaimed: replacement, drain, deletion
//	mass       all members of a larger group are reclaimed at once
//	crash      a member's process is killed: replacement without drain
//	rollout    the template changes: one by one, replacement first
//	failover   of two servers the leader is killed, in the middle of a drain
//	           and of making machines: the other one finishes both, once
//	kill       two servers and their machines are killed at random instants
//	           while the group is kept busy: it comes to rest all the same
//	bridge     members of a group with a warm pool and of one without are
//	           reclaimed at the same moment: how soon each has its capacity back
//
// In failover and kill the servers are processes of their own. The cloud stays in this
// one, so that the machines outlive the server that made them.
package dev
