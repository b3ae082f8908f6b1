package confighash

// NamedVars is namedVars.
var NamedVars = namedVars
