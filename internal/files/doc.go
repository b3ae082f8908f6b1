// Package files makes the files of machines from what their group's definition
// says: it renders templates, fetches secrets and stored objects, and has
// certificates issued. It knows nothing of sessions and of the wire.
//
// [Prepare] does once for a group what is alike on all of its machines, which is
// all of the fetching and, as a rule, most of the rendering: a template is
// rendered for each machine only if it looks at .Instance or .Image.
// [Kit.Set] then is cheap. Equal contents are one in memory, named by digest.
//
// A file that cannot be made has an error in place of its content. The machine
// keeps the one that it has.
package files
