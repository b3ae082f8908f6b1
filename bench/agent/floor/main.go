// Command floor is the least that an agent could be: a gRPC client with one
// connection. It ends when its standard input does.
package main

import (
	"fmt"
	"io"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/nstance-go/nstance/internal/session"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: floor ADDRESS")
		os.Exit(2)
	}
	conn, err := grpc.NewClient("passthrough:///"+os.Args[1], grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithKeepaliveParams(session.Client()), grpc.WithDisableServiceConfig())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer conn.Close()
	conn.Connect()
	_, _ = io.Copy(io.Discard, os.Stdin)
}
