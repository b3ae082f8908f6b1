// Package dev plays single-machine mode over an S3 server.
package dev
