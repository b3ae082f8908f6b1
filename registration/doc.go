// Package registration turns one-time nonces into certificates.
//
// A nonce is a JSON Web Token, signed with the cluster's nonce key and written
// into a machine's user data or handed to an operator. With it and a PKCS#10
// request for a key that never leaves its machine, the holder gets a
// certificate of the authority in [Keys]; from then on it renews over that
// certificate.
//
// The [Registrar] keeps no state of its own. The issued certificates are in the
// instance's record, behind the [Records] port, and change by one conditional
// write, durable before the reply. A request whose reply was lost can be repeated:
// the same nonce with the same key gets the same certificate. The same nonce with
// another key is refused and raises an alarm, because two parties have the nonce.
//
// After a renewal two certificates are valid, the current and the pending one,
// until the pending one has been used. Any other certificate of the holder has
// been superseded: its use means that there is a copy, and raises an alarm.
//
// An agent whose certificate has expired renews it without a nonce, by a signature
// of its key over the connection and the request. So a fleet survives a day
// without servers, and a machine can resume after months.
//
// [NewKeys] makes the authority and the nonce key. A program that stores what
// MarshalPEM returns loads the same keys after a restart.
//
// Registrars, [Keys] and [Memory] are safe for concurrent use.
package registration
