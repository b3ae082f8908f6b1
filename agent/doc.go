// Package agent speaks for one machine: it obtains the machine's identity,
// keeps one session with the server of its shard, reports health, and passes on
// at once what the cloud announces. A program embeds it with New and Run;
// cmd/nstance-agent is the same with flags. It links no cloud's SDK.
//
// # Identity
//
// User data puts two files into Options.IdentityDir: nonce.jwt and ca.crt. The
// agent makes a key, exchanges the nonce for a certificate, and keeps key.pem,
// cert.pem, ca.pem, server.json and config.hash there. From then on the nonce
// does not matter. Two thirds of the way through its life the certificate is
// exchanged for a new one, with a new key; both change together, and whoever
// reads the directory sees the old pair or the new. A certificate that has
// expired, since no server answered or the machine slept, is exchanged by proof
// of its key, as long as the instance exists. A nonce that the server
// refuses is tried again about once a minute and is seen in GET /healthz; it
// does not end the program.
//
// # Session
//
// A session is disposable. What must not be lost stands in an outbox until a
// server has acknowledged it: notices that still stand, and drain results.
// After any failure the agent comes back, with jitter, to the next address.
//
// # Files
//
// What a server sends goes into Options.RecvDir, all of a set at once: see
// package files. Reports say how each file is at that moment. Keys for
// certificates are made in Options.KeysDir when a server asks for them, and only
// their public halves are ever sent.
//
// # Drains
//
// The hook runs when the server asks for it, once for each generation, and its
// outcome is sent until it is acknowledged. When a notice dooms the machine and
// no server has acknowledged it within 5 s, the agent runs the hook by itself
// and has the outcome ready for when it is asked. A hook that runs again after
// the agent was restarted must find that there is nothing left to do.
package agent
