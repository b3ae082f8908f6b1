// Package config reads the configuration of one shard: a JSONC file, which is
// JSON with comments and trailing commas.
//
// Reading is strict, because a setting that is silently ignored costs money or
// machines. An unknown field, a wrong type, a duplicate key, a reference to
// something that is not there: each is an error that names the file, line and
// column, the path of the setting and, where there is one, the name that was
// probably meant. Settings of the specification whose behaviour this version
// does not have are known and refused by name.
//
// The types of this package are the only description of the format. Their tags
// hold every default and its meaning, and docs/configuration.md is generated
// from them (see [Fields]):
//
//	name      the name of the setting
//	doc       what it means
//	required  must be given
//	default   the value of an absent setting, spelled as in the file
//	absent    for documentation: where an absent setting's value comes from
//	inherits  the same, within a group
//	enum      the permitted words
//	later     words of the specification that this version refuses
//	min, max  the permitted range
//	key       for documentation: what the keys of a map are
//	rendered  the strings within are templates (text/template); files: of files, which see no nonce
//	restart   a running server refuses a change: true if another start accepts
//	          it, never if none does
//
// A template and a group become one [nstance.Definition] by merging: defaults,
// then template, then group. The objects args and vars merge deeply; everything
// else replaces.
package config
