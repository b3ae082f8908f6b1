// Package tutorial runs the commands of docs/tutorial.md, and the first days of the four clouds'
// pages, each on that cloud's test cloud.
package tutorial
