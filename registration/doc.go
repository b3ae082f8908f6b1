// Package registration turns one-time nonces into certificates.
//
// A nonce is a JSON Web Token, signed with the cluster's nonce key and written
// into a machine's user data or handed to an operator. With it and a PKCS#10
// request for a key that never leaves its machine, the holder gets a
// certificate of the identity [Authority]; from then on it renews over that
// certificate. A second authority, for workloads, signs what machines show each
// other, so that nothing which a guest may ask for is ever trusted as a server
// of the cluster.
//
// The [Registrar] keeps no state of its own. What was issued to whom stands in
// the instance's record, behind the [Records] port, and changes by one
// conditional write, made durable before the reply. A lost reply therefore
// heals itself: the same nonce with the same key gets the same certificate
// again. The same nonce with another key is refused and raises an alarm, since
// then two parties know the nonce.
//
// A renewal leaves two certificates standing, the current and the pending one,
// until the pending one has been used; whichever the client still has is good.
// A certificate that is neither has been superseded: whoever shows it has a
// copy, and that too raises an alarm.
//
// An agent whose certificate has expired renews it all the same, without a
// nonce: by a signature of its key over the connection and the request. A fleet
// survives a day without servers, and a machine wakes after months.
//
// [Bootstrap] makes the authorities, the nonce key and the installation's ID,
// exactly once for a cluster, however many servers try.
package registration
