package logqueue

import (
	"fmt"
	"log"
	"os"

	"google.golang.org/grpc/grpclog"
)

// init has gRPC log through package log, as other libraries do. gRPC's logger is global and
// may only be set before gRPC is used; this package is linked with programs only.
func init() { //nolint:gochecknoinits // see above
	if os.Getenv("GRPC_GO_LOG_SEVERITY_LEVEL") == "" { // it asks for gRPC's own log
		grpclog.SetLoggerV2(grpcLines{})
	}
}

// grpcLines leaves out what is no error, as gRPC does by default.
type grpcLines struct{}

func (grpcLines) Info(...any)                  {}
func (grpcLines) Infoln(...any)                {}
func (grpcLines) Infof(string, ...any)         {}
func (grpcLines) Warning(...any)               {}
func (grpcLines) Warningln(...any)             {}
func (grpcLines) Warningf(string, ...any)      {}
func (grpcLines) V(int) bool                   { return false }
func (grpcLines) Error(args ...any)            { grpcLine(fmt.Sprint(args...)) }
func (grpcLines) Errorln(args ...any)          { grpcLine(fmt.Sprintln(args...)) }
func (grpcLines) Errorf(f string, args ...any) { grpcLine(fmt.Sprintf(f, args...)) }
func (grpcLines) Fatal(args ...any)            { log.Fatal(args...) }
func (grpcLines) Fatalln(args ...any)          { log.Fatalln(args...) }
func (grpcLines) Fatalf(f string, args ...any) { log.Fatalf(f, args...) }

func grpcLine(text string) { log.Print("grpc: " + text) }
