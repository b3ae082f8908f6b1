package wire

// RecoveryProof is the metadata of RegisterAgent that carries the proof for an
// expired certificate. It is no field of the message, because a message is
// composed before it is known on which connection it will travel.
const RecoveryProof = "nstance-recovery-proof-bin"

// SessionInstance is the metadata of Connect in which an agent names the instance that it
// runs on. An older agent does not.
const SessionInstance = "nstance-instance-id"

// SessionMachine is the metadata of Connect in which an agent names the machine that it runs
// on: a kind of provider, a slash, and the name that the metadata service says. An agent
// without one does not.
const SessionMachine = "nstance-machine"
