// Package tutorial runs the commands of docs/tutorial.md.
package tutorial
