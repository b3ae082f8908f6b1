// Package agent is the runtime on each machine: it obtains the machine's identity,
// keeps one session with the server of its shard, reports health, and forwards the
// cloud's notices at once. A program embeds it with New and Run; cmd/nstance-agent
// is the same with flags. It links no cloud SDK.
//
// # Identity
//
// User data puts two files into Options.UserDataDir: nonce.jwt and ca.crt. The
// agent makes a key, exchanges the nonce for a certificate, and keeps key.pem,
// cert.pem, ca.pem, server.json and config.hash in Options.IdentityDir. From then on the nonce
// is not needed. After two thirds of its life the certificate is exchanged for a
// new one, with a new key; both change together, and every reader of the directory
// sees the old pair or the new. A certificate that has expired, because no server
// answered or the machine was suspended, is renewed by proof of its key, as long
// as the instance exists. A nonce that the server refuses is retried about once a
// minute and shown in GET /healthz; it does not end the program.
//
// Everything in Options.IdentityDir but nonce.jwt and ca.crt belongs to one instance, whose
// ID is in the file instance_id. What belongs to another one, as on a machine made from an
// image of an enrolled machine, is moved to a folder named of-ID before anything of it is
// used, and so are keys in Options.KeysDir and the files in Options.RecvDir; a key that no
// certificate was received for, and whose owner is not known, is moved to of-unknown. GET /healthz says so, and the agent registers with
// the nonce of its own. A session names its instance, and the server refuses one that
// its certificate is not for.
//
// # Session
//
// A session is disposable. Standing notices, and drain results until a server has
// acknowledged them, stay in an outbox. The notices are also in notices.json in
// Options.IdentityDir: after a restart they are sent as before, and what the cloud
// announces no more is withdrawn. A file that cannot be used is renamed to
// notices.json.damaged. A detector of Options.Detector takes part if it has the method
// Resume of spot.AWS. After any failure the agent reconnects,
// with jitter, to the next address.
//
// # Files
//
// Files from the server go into Options.RecvDir, all of a set at once: see
// package files. Reports carry the present state of each file. Keys for
// certificates are generated in Options.KeysDir when a server requests them, and
// only their public halves are ever sent.
//
// # Drains
//
// The hook runs when the server requests it, once for each generation, and its
// outcome is sent until it is acknowledged. When a notice dooms the machine and
// no server has acknowledged it within 5 s, or no server is connected any more for
// 5 to 15 s, the agent runs the hook without a
// request and answers a later request with its outcome. After a restart of the
// agent the hook may run again: it must be idempotent. An agent that is stopped while its
// hook runs, or is about to, goes on until the hook has ended or its deadline has passed.
//
// The methods of an [Agent] may be called concurrently; Run is called once.
package agent
