// Package sdklog has Amazon's SDK log as other libraries do.
package sdklog

import (
	"log"

	"github.com/aws/smithy-go/logging"
)

// Logger returns a logger for a configuration of the SDK: through package log, which programs
// lead into their own log, instead of standard error.
func Logger() logging.Logger {
	return logging.LoggerFunc(func(_ logging.Classification, format string, v ...any) { log.Printf("aws sdk: "+format, v...) })
}
