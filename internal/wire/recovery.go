package wire

// RecoveryProof is the metadata of RegisterAgent that carries the proof for an
// expired certificate. It is no field of the message, because a message is
// composed before it is known on which connection it will travel.
const RecoveryProof = "nstance-recovery-proof-bin"
