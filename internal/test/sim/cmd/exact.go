package main

// exact reports whether this program was built with the overlay of
// internal/test/sim/exact, which sets it: then a seed replays exactly.
const exact = false
