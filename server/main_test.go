package server_test

import (
	"os"
	"testing"

	"github.com/nstance-go/nstance/internal/test/parallel"
)

func TestMain(m *testing.M) { os.Exit(parallel.Run(m)) }
