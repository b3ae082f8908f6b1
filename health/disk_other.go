//go:build !linux

package health

import (
	"errors"
	"math"
)

func diskUsage(string) (float64, error) { return math.NaN(), errors.ErrUnsupported }
