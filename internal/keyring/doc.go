// Package keyring holds the keys of a cluster: the two authorities, which sign
// certificates, and the keys that sign nonces. A [Keyring] reads them from a [Vault]
// and rotates them while they are in use.
//
// [Bootstrap] creates the authorities, the nonce key and the installation's ID
// exactly once for a cluster, even if several servers start together.
package keyring
