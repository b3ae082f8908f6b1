// Package storage runs the contract of stores against real servers of each protocol.
package storage
